-- The same tables as SQLite's schema has; that one says more of each.
-- Instants are microseconds since 1970 in UTC. Whatever else is counted by account or key
-- refers to its small number, not to its uuid.
-- Texts hold no octet zero in PostgreSQL: one is kept as U+0001 and "0", U+0001 as itself twice.
-- Properties of the whole database: a known value, encrypted with the shared secret key.
CREATE TABLE store_properties (
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
    customer_id text,
    -- How many customers of the billing provider's the account has had that are no more.
    customer_generation bigint NOT NULL DEFAULT 0
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
CREATE INDEX keys_in_force ON keys (account, kind) WHERE revoked_at IS NULL;
CREATE INDEX keys_revoked ON keys (account, revoked_at) WHERE revoked_at IS NOT NULL;
CREATE INDEX keys_made ON keys (account, created_at);

-- The sliding window: what was granted to a key, by instant. Read from its index alone.
CREATE TABLE rate_windows (
    key bigint NOT NULL,
    at bigint NOT NULL,
    units bigint NOT NULL,
    total bigint NOT NULL,  -- the key's units up to this row: a sum is a difference of two
    PRIMARY KEY (key, at) INCLUDE (units, total)
);
CREATE INDEX rate_windows_by_instant ON rate_windows USING brin (at);

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
CREATE TABLE job_backlogs (
    account bigint PRIMARY KEY,
    jobs bigint NOT NULL,
    -- Jobs of an account that are not delivered yet, the pending ones among them.
    undelivered bigint NOT NULL DEFAULT 0
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
CREATE TABLE idempotency_records (
    account bigint NOT NULL,
    key text NOT NULL,
    body_sha256 text NOT NULL,
    lease_until bigint NOT NULL,
    keep_until bigint NOT NULL,
    answer bytea,
    PRIMARY KEY (account, key)
);
CREATE INDEX idempotency_records_by_end ON idempotency_records (keep_until);
CREATE INDEX idempotency_records_running ON idempotency_records (lease_until) WHERE answer IS NULL;

CREATE TABLE jobs (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id text NOT NULL UNIQUE,
    account bigint NOT NULL REFERENCES accounts,
    key bigint NOT NULL REFERENCES keys,
    email text NOT NULL,
    webhook text,  -- null: the result is fetched, not posted
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

-- For claims: the jobs that wait longest, and the claimed ones. No index has ended jobs.
CREATE INDEX jobs_waiting ON jobs (state, due_at, number)
    WHERE lease_until IS NULL AND due_at IS NOT NULL;
CREATE INDEX jobs_claimed ON jobs (state, lease_until) WHERE lease_until IS NOT NULL;

-- Jobs are claimed by account in turn; of an account those due longest first.
CREATE INDEX jobs_in_turn ON jobs (state, account, due_at, number)
    WHERE lease_until IS NULL AND due_at IS NOT NULL;
CREATE INDEX jobs_of_key ON jobs (key);

-- Tries to deliver a callback; `place` is the order they were logged in.
CREATE TABLE job_attempts (
    job bigint NOT NULL,
    place bigint NOT NULL,
    number bigint NOT NULL,
    at bigint NOT NULL,
    took_ms bigint NOT NULL,
    status bigint,
    error text,
    PRIMARY KEY (job, place)
);

CREATE TABLE outbox (
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
CREATE INDEX outbox_of_kind ON outbox (kind, number);
CREATE INDEX outbox_of_account ON outbox (account, kind, number);
CREATE INDEX outbox_due ON outbox (kind, due_at, number) WHERE due_at IS NOT NULL;
CREATE INDEX outbox_ended ON outbox (kind, made_at) WHERE due_at IS NULL;

-- How many connections to an IP address each process may hold, and until when.
-- A row with no connections is a place in the queue. A lease call holds advisory locks
-- of the addresses until the commit.
CREATE TABLE connection_leases (
    address text NOT NULL,
    holder text NOT NULL,
    connections integer NOT NULL,
    since bigint NOT NULL,
    until bigint NOT NULL,
    PRIMARY KEY (address, holder)
) WITH (fillfactor = 50);
CREATE INDEX connection_leases_wanted ON connection_leases (address) WHERE connections = 0;

-- Receivers of callbacks whose last tries failed, and how many of them one after another.
CREATE TABLE receivers (
    account bigint NOT NULL,
    host text NOT NULL,
    failures bigint NOT NULL,
    tried_at bigint NOT NULL,
    PRIMARY KEY (account, host)
) WITH (fillfactor = 70);
CREATE INDEX receivers_by_try ON receivers (tried_at);
