-- The same as SQLite's schema, as it is after all its steps; it says more of each table.
-- Instants are microseconds since 1970 in UTC. Whatever else is counted by account or key
-- refers to its small number, not to its uuid.
-- Texts hold no octet zero in PostgreSQL: one is kept as U+0001 and "0", U+0001 as itself twice.

-- What holds for the whole database: the value that was sealed with everybody's secret key.
CREATE TABLE house (
    name text PRIMARY KEY,
    value bytea NOT NULL
);

-- Whoever changes what is counted for an account holds its row (FOR NO KEY UPDATE) to the commit.
CREATE TABLE accounts (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id text NOT NULL UNIQUE,
    email text NOT NULL,
    tier text NOT NULL,
    created_at bigint NOT NULL,
    soft_cap_micros bigint,
    hard_cap_micros bigint,
    alerts boolean NOT NULL,
    subscription_status text,
    current_period_start bigint,
    current_period_end bigint,
    cancel_at_period_end boolean,
    canceled_at bigint,
    cancel_at bigint,
    trial_start bigint,
    trial_end bigint,
    billing_cycle_anchor bigint,
    customer_id text
) WITH (fillfactor = 70);
CREATE UNIQUE INDEX accounts_by_customer ON accounts (customer_id) WHERE customer_id IS NOT NULL;
CREATE INDEX accounts_by_tier ON accounts (tier);

CREATE TABLE keys (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id text NOT NULL UNIQUE,
    account bigint NOT NULL REFERENCES accounts,
    kind text NOT NULL,
    label text,
    prefix text NOT NULL,
    sha256 text NOT NULL UNIQUE,  -- of the raw key, which is kept nowhere
    created_at bigint NOT NULL,
    revoked_at bigint
);
CREATE INDEX keys_of_account ON keys (account);

-- The sliding window: what was granted to a key, by instant. Read from its index alone.
CREATE TABLE windows (
    key bigint NOT NULL,
    at bigint NOT NULL,
    units bigint NOT NULL,
    total bigint NOT NULL,  -- the key's units up to this row: a sum is a difference of two
    PRIMARY KEY (key, at) INCLUDE (units, total)
);
CREATE INDEX windows_by_instant ON windows USING brin (at);

-- Granted and under way. The id begins with its time, so that settlements lie in its order.
CREATE TABLE reservations (
    id uuid PRIMARY KEY,
    account bigint NOT NULL,
    units bigint NOT NULL,
    lease_until bigint NOT NULL
);
CREATE INDEX reservations_of_account ON reservations (account, lease_until) INCLUDE (units);

-- Each part of a reservation's settlement, and when: a part settled again changes nothing.
CREATE TABLE settlements (
    reservation uuid NOT NULL,
    part bigint NOT NULL,
    at bigint NOT NULL,
    PRIMARY KEY (reservation, part)
);

-- Counters. Rows of usage go with their retention; these stay.
CREATE TABLE months (
    account bigint NOT NULL,
    month date NOT NULL,  -- its first day
    units bigint NOT NULL,
    billable bigint NOT NULL,
    PRIMARY KEY (account, month)
) WITH (fillfactor = 50);

CREATE TABLE days (
    account bigint NOT NULL,
    day date NOT NULL,
    billable bigint NOT NULL,
    PRIMARY KEY (account, day)
) WITH (fillfactor = 50);

CREATE TABLE periods (
    account bigint NOT NULL,
    start bigint NOT NULL,
    billable bigint NOT NULL,
    PRIMARY KEY (account, start)
) WITH (fillfactor = 50);

-- Pending jobs of an account: each is its own reservation of one unit, and is not counted anew.
CREATE TABLE promises (
    account bigint PRIMARY KEY,
    jobs bigint NOT NULL
) WITH (fillfactor = 50);

-- A partition a UTC day, made ahead and where one is missing: retention drops it whole.
CREATE SEQUENCE usage_numbers CACHE 100;
CREATE TABLE usage (
    number bigint NOT NULL DEFAULT nextval('usage_numbers'),
    account bigint NOT NULL,
    key bigint NOT NULL,
    at bigint NOT NULL,
    operation text NOT NULL,
    status text,
    failed_check text,
    units bigint NOT NULL,
    billable boolean NOT NULL,
    latency_ms bigint NOT NULL
) PARTITION BY RANGE (at);
CREATE INDEX usage_of_account ON usage (account, at, number);

-- Refused requests: places 0 to 19 of a minute hold one each, place 20 all the others.
CREATE TABLE refusals (
    account bigint NOT NULL,
    minute bigint NOT NULL,
    key bigint NOT NULL,
    failed_check text NOT NULL,  -- empty for none
    place bigint NOT NULL,
    at bigint NOT NULL,
    operation text NOT NULL,
    status text,
    units bigint NOT NULL,
    billable boolean NOT NULL,
    latency_ms bigint NOT NULL,
    times bigint NOT NULL,
    PRIMARY KEY (account, minute, key, failed_check, place)
);

-- Idempotency keys; `answer` is sealed, and null while the first request runs.
CREATE TABLE onces (
    account bigint NOT NULL,
    key text NOT NULL,
    body_sha256 text NOT NULL,
    lease_until bigint NOT NULL,
    keep_until bigint NOT NULL,
    answer bytea,
    PRIMARY KEY (account, key)
);
CREATE INDEX onces_by_end ON onces (keep_until);
CREATE INDEX onces_running ON onces (lease_until) WHERE answer IS NULL;

CREATE TABLE jobs (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id text NOT NULL UNIQUE,
    account bigint NOT NULL REFERENCES accounts,
    key bigint NOT NULL REFERENCES keys,
    email text NOT NULL,
    webhook text NOT NULL,
    host text NOT NULL,
    secret bytea,  -- sealed, bound to the id
    state text NOT NULL,
    created_at bigint NOT NULL,
    due_at bigint,  -- null once it has ended
    tries bigint NOT NULL DEFAULT 0,
    payload bytea,
    ended_at bigint,
    lease_until bigint,  -- null where nobody has it
    fence bigint NOT NULL DEFAULT 0
);
CREATE INDEX jobs_of_account ON jobs (account, number);
CREATE INDEX jobs_in_state ON jobs (state, number);
CREATE INDEX jobs_ended ON jobs (account, ended_at) WHERE ended_at IS NOT NULL;

-- What a claim looks at: who waits longest, who waits in a lane (whose verifications an account's
-- bound holds for, whose callbacks a host's), and what is claimed. Ended jobs are in none of them.
CREATE INDEX jobs_waiting ON jobs (state, due_at, number)
    WHERE lease_until IS NULL AND due_at IS NOT NULL;
CREATE INDEX jobs_pending ON jobs (account, due_at, number)
    WHERE state = 'pending' AND lease_until IS NULL;
CREATE INDEX jobs_delivering ON jobs (host, due_at, number)
    WHERE state = 'delivering' AND lease_until IS NULL;
CREATE INDEX jobs_claimed ON jobs (state, lease_until) WHERE lease_until IS NOT NULL;

-- Tries to deliver a callback; `place` is the order they were logged in.
CREATE TABLE attempts (
    job bigint NOT NULL,
    place bigint NOT NULL,
    number bigint NOT NULL,
    at bigint NOT NULL,
    took_ms bigint NOT NULL,
    status bigint,
    error text,
    PRIMARY KEY (job, place)
);

CREATE TABLE letters (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    kind text NOT NULL,
    account bigint NOT NULL REFERENCES accounts,
    name text NOT NULL,
    body bytea NOT NULL,
    count bigint NOT NULL,
    made_at bigint NOT NULL,
    due_at bigint,  -- null once it is sent or given up
    tries bigint NOT NULL DEFAULT 0,
    fence bigint NOT NULL DEFAULT 0,
    first_tried_at bigint,
    sent_at bigint,
    error text,
    lease_until bigint,
    UNIQUE (kind, account, name)
);
CREATE INDEX letters_of_kind ON letters (kind, number);
CREATE INDEX letters_of_account ON letters (account, kind, number);
CREATE INDEX letters_due ON letters (kind, due_at, number) WHERE due_at IS NOT NULL;
CREATE INDEX letters_ended ON letters (kind, made_at) WHERE due_at IS NULL;
