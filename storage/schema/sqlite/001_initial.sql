-- Instants are microseconds since 1970 in UTC; days and months are dates as text.
-- Other tables refer to an account or a key by its small number, not by its UUID.
CREATE TABLE accounts (
    number INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    email TEXT NOT NULL,
    tier TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    soft_cap_micros INTEGER,
    hard_cap_micros INTEGER,
    alerts INTEGER NOT NULL,
    subscription_status TEXT,
    current_period_start INTEGER,
    current_period_end INTEGER,
    cancel_at_period_end INTEGER,
    canceled_at INTEGER,
    cancel_at INTEGER,
    trial_start INTEGER,
    trial_end INTEGER,
    billing_cycle_anchor INTEGER,
    customer_id TEXT,  -- the billing provider's
    customer_generation INTEGER NOT NULL DEFAULT 0  -- the account's earlier customers, since deleted
);
CREATE UNIQUE INDEX accounts_by_customer ON accounts (customer_id) WHERE customer_id IS NOT NULL;

CREATE TABLE keys (
    number INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    account INTEGER NOT NULL REFERENCES accounts,
    kind TEXT NOT NULL,
    label TEXT,
    prefix TEXT NOT NULL,
    sha256 TEXT NOT NULL UNIQUE,  -- of the raw key, which is not stored
    created_at INTEGER NOT NULL,
    revoked_at INTEGER
);
CREATE INDEX keys_in_force ON keys (account, kind) WHERE revoked_at IS NULL;
CREATE INDEX keys_revoked ON keys (account, revoked_at) WHERE revoked_at IS NOT NULL;
CREATE INDEX keys_made ON keys (account, created_at);

-- Granted units that are in use. Numbers are never reused, so that a settled one stays recognised.
CREATE TABLE reservations (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    account INTEGER NOT NULL,
    units INTEGER NOT NULL,
    lease_until INTEGER NOT NULL
);
CREATE INDEX reservations_of_account ON reservations (account, lease_until, units);

-- Counters. Rows of usage are deleted after their retention; these stay.
CREATE TABLE months (
    account INTEGER NOT NULL,
    month TEXT NOT NULL,  -- its first day
    units INTEGER NOT NULL,
    billable INTEGER NOT NULL,
    PRIMARY KEY (account, month)
) WITHOUT ROWID;

CREATE TABLE days (
    account INTEGER NOT NULL,
    day TEXT NOT NULL,
    billable INTEGER NOT NULL,
    PRIMARY KEY (account, day)
) WITHOUT ROWID;

CREATE TABLE periods (
    account INTEGER NOT NULL,
    start INTEGER NOT NULL,
    billable INTEGER NOT NULL,
    PRIMARY KEY (account, start)
) WITHOUT ROWID;

CREATE TABLE usage (
    number INTEGER PRIMARY KEY,
    account INTEGER NOT NULL,
    key INTEGER NOT NULL,
    at INTEGER NOT NULL,
    operation TEXT NOT NULL,
    status TEXT,
    failed_check TEXT,
    units INTEGER NOT NULL,
    billable INTEGER NOT NULL,
    latency_ms INTEGER NOT NULL
);
CREATE INDEX usage_of_account ON usage (account, at);

-- Refused requests: places 0 to 19 of a minute hold one each, place 20 counts all the others.
CREATE TABLE refusals (
    account INTEGER NOT NULL,
    minute INTEGER NOT NULL,
    key INTEGER NOT NULL,
    failed_check TEXT NOT NULL,  -- empty for none
    place INTEGER NOT NULL,
    at INTEGER NOT NULL,
    operation TEXT NOT NULL,
    status TEXT,
    units INTEGER NOT NULL,
    billable INTEGER NOT NULL,
    latency_ms INTEGER NOT NULL,
    times INTEGER NOT NULL,
    PRIMARY KEY (account, minute, key, failed_check, place)
) WITHOUT ROWID;

-- Idempotency keys; `answer` is encrypted, and null while the first request runs.
CREATE TABLE idempotency_records (
    number INTEGER PRIMARY KEY,
    account INTEGER NOT NULL,
    key TEXT NOT NULL,
    body_sha256 TEXT NOT NULL,
    lease_until INTEGER NOT NULL,
    keep_until INTEGER NOT NULL,
    answer BLOB,
    UNIQUE (account, key)
);
CREATE INDEX idempotency_records_by_end ON idempotency_records (keep_until);
CREATE INDEX idempotency_records_running ON idempotency_records (lease_until) WHERE answer IS NULL;

-- The settled parts of reservations: a part that is settled again changes nothing.
-- A stream has one part per settlement batch, any other request has one part.
CREATE TABLE settlements (
    reservation INTEGER NOT NULL,
    part INTEGER NOT NULL,
    at INTEGER NOT NULL,
    PRIMARY KEY (reservation, part)
) WITHOUT ROWID;

CREATE TABLE jobs (
    number INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    account INTEGER NOT NULL REFERENCES accounts,
    key INTEGER NOT NULL REFERENCES keys,
    email TEXT NOT NULL,
    webhook TEXT,  -- null: the result is fetched, not posted
    host TEXT NOT NULL,
    secret BLOB,  -- encrypted, with the id as context
    state TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    due_at INTEGER,  -- null once it has ended
    tries INTEGER NOT NULL DEFAULT 0,
    payload BLOB,
    ended_at INTEGER,
    lease_until INTEGER,  -- null if it is not claimed
    fence INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX jobs_of_account ON jobs (account);
CREATE INDEX jobs_in_state ON jobs (state);
CREATE INDEX jobs_of_account_in_state ON jobs (account, state);
CREATE INDEX jobs_ended ON jobs (account, ended_at) WHERE ended_at IS NOT NULL;

-- For claims: the waiting jobs of a partition, and the claimed ones. No index has ended jobs.
CREATE INDEX jobs_pending ON jobs (account, due_at)
    WHERE state = 'pending' AND lease_until IS NULL;
CREATE INDEX jobs_claimed ON jobs (state, lease_until, account, host)
    WHERE lease_until IS NOT NULL;
CREATE INDEX jobs_delivering ON jobs (account, host, due_at)
    WHERE state = 'delivering' AND lease_until IS NULL;
CREATE INDEX jobs_of_key ON jobs (key);

-- Attempts to deliver a callback; `place` is the order in which they were logged.
CREATE TABLE job_attempts (
    job INTEGER NOT NULL,
    place INTEGER NOT NULL,
    number INTEGER NOT NULL,
    at INTEGER NOT NULL,
    took_ms INTEGER NOT NULL,
    status INTEGER,
    error TEXT,
    PRIMARY KEY (job, place)
) WITHOUT ROWID;

CREATE TABLE outbox (
    number INTEGER PRIMARY KEY,
    kind TEXT NOT NULL,
    account INTEGER NOT NULL REFERENCES accounts,
    name TEXT NOT NULL,
    body BLOB NOT NULL,
    count INTEGER NOT NULL,
    made_at INTEGER NOT NULL,
    due_at INTEGER,  -- null once it is sent or given up
    tries INTEGER NOT NULL DEFAULT 0,
    fence INTEGER NOT NULL DEFAULT 0,
    first_tried_at INTEGER,
    sent_at INTEGER,
    error TEXT,
    lease_until INTEGER,
    UNIQUE (kind, account, name)
);
CREATE INDEX outbox_of_kind ON outbox (kind);
CREATE INDEX outbox_of_account ON outbox (account, kind);
CREATE INDEX outbox_due ON outbox (kind, due_at) WHERE due_at IS NOT NULL;
CREATE INDEX outbox_ended ON outbox (kind, made_at) WHERE due_at IS NULL;

-- The sliding window with a running total: `total` is the key's units up to and including this row.
-- The sum of a minute is the difference of two rows, however many are between them.
CREATE TABLE rate_windows (
    key INTEGER NOT NULL,
    at INTEGER NOT NULL,
    units INTEGER NOT NULL,
    total INTEGER NOT NULL,
    PRIMARY KEY (key, at)
) WITHOUT ROWID;

-- How many connections to an IP address each process may hold, and until when.
-- A row with no connections is a place in the queue.
CREATE TABLE connection_leases (
    address TEXT NOT NULL,
    holder TEXT NOT NULL,
    connections INTEGER NOT NULL,
    since INTEGER NOT NULL,
    until INTEGER NOT NULL,
    PRIMARY KEY (address, holder)
) WITHOUT ROWID;
CREATE INDEX connection_leases_wanted ON connection_leases (address) WHERE connections = 0;

-- Jobs are claimed by account in turn. A partition is an account's jobs to verify, with an empty
-- host, or its jobs to be delivered to one of its receivers.
CREATE TABLE job_partitions (
    state TEXT NOT NULL,
    account INTEGER NOT NULL,
    host TEXT NOT NULL,  -- empty: the jobs are pending
    jobs INTEGER NOT NULL,
    due_at INTEGER,  -- null where all are claimed
    PRIMARY KEY (state, account, host)
) WITHOUT ROWID;
CREATE INDEX job_partitions_by_due ON job_partitions (state, account, due_at) WHERE due_at IS NOT NULL;

-- An account's jobs in all its partitions, and when the first of them is due.
CREATE TABLE job_backlogs (
    account INTEGER PRIMARY KEY,
    pending INTEGER NOT NULL,
    undelivered INTEGER NOT NULL,  -- including the pending ones
    pending_due_at INTEGER,
    delivering_due_at INTEGER
);
CREATE INDEX job_backlogs_pending ON job_backlogs (pending_due_at) WHERE pending_due_at IS NOT NULL;
CREATE INDEX job_backlogs_delivering ON job_backlogs (delivering_due_at)
    WHERE delivering_due_at IS NOT NULL;

-- Receivers of callbacks whose last attempts failed, with the number of consecutive failures.
CREATE TABLE receivers (
    account INTEGER NOT NULL,
    host TEXT NOT NULL,
    failures INTEGER NOT NULL,
    tried_at INTEGER NOT NULL,
    PRIMARY KEY (account, host)
) WITHOUT ROWID;
CREATE INDEX receivers_by_try ON receivers (tried_at);
