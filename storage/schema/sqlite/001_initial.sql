-- Instants are microseconds since 1970 in UTC; days and months are dates as text.
-- Whatever else is counted by account or key refers to its small number, not to its uuid.

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
    billing_cycle_anchor INTEGER
);

CREATE TABLE keys (
    number INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    account INTEGER NOT NULL REFERENCES accounts,
    kind TEXT NOT NULL,
    label TEXT,
    prefix TEXT NOT NULL,
    sha256 TEXT NOT NULL UNIQUE,  -- of the raw key, which is kept nowhere
    created_at INTEGER NOT NULL,
    revoked_at INTEGER
);
CREATE INDEX keys_of_account ON keys (account);

-- The sliding window: what was granted to a key, by instant. Its key is its covering index.
CREATE TABLE windows (
    key INTEGER NOT NULL,
    at INTEGER NOT NULL,
    units INTEGER NOT NULL,
    PRIMARY KEY (key, at)
) WITHOUT ROWID;

-- Granted and under way. A number is never used again, so that a settled one is known for good.
CREATE TABLE reservations (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    account INTEGER NOT NULL,
    units INTEGER NOT NULL,
    lease_until INTEGER NOT NULL
);
CREATE INDEX reservations_of_account ON reservations (account, lease_until, units);

-- Which reservations were settled, and when: the second settlement changes nothing.
CREATE TABLE settled (
    reservation INTEGER PRIMARY KEY,
    at INTEGER NOT NULL
);

-- Counters. Rows of usage go with their retention; these stay.
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

-- Refused requests: places 0 to 19 of a minute hold one each, place 20 all the others.
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

-- Idempotency keys; `answer` is sealed, and null while the first request runs.
CREATE TABLE onces (
    number INTEGER PRIMARY KEY,
    account INTEGER NOT NULL,
    key TEXT NOT NULL,
    body_sha256 TEXT NOT NULL,
    lease_until INTEGER NOT NULL,
    keep_until INTEGER NOT NULL,
    answer BLOB,
    UNIQUE (account, key)
);
CREATE INDEX onces_by_end ON onces (keep_until);
CREATE INDEX onces_running ON onces (lease_until) WHERE answer IS NULL;
