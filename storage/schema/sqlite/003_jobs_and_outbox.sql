-- Verifications that were promised, and letters that must reach somebody outside.

ALTER TABLE accounts ADD COLUMN customer_id TEXT;
CREATE UNIQUE INDEX accounts_by_customer ON accounts (customer_id) WHERE customer_id IS NOT NULL;

CREATE TABLE jobs (
    number INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    account INTEGER NOT NULL REFERENCES accounts,
    key INTEGER NOT NULL REFERENCES keys,
    email TEXT NOT NULL,
    webhook TEXT NOT NULL,
    host TEXT NOT NULL,
    secret BLOB,  -- sealed, bound to the id
    state TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    due_at INTEGER,  -- null once it has ended
    tries INTEGER NOT NULL DEFAULT 0,
    payload BLOB,
    ended_at INTEGER,
    lease_until INTEGER,  -- null where nobody has it
    fence INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX jobs_of_account ON jobs (account);
CREATE INDEX jobs_in_state ON jobs (state);
CREATE INDEX jobs_of_account_in_state ON jobs (account, state);
CREATE INDEX jobs_ended ON jobs (account, ended_at) WHERE ended_at IS NOT NULL;

-- What a claim looks at: who waits in a lane, and what is claimed. Ended jobs are in none of them.
CREATE INDEX jobs_pending ON jobs (account, due_at)
    WHERE state = 'pending' AND lease_until IS NULL;
CREATE INDEX jobs_delivering ON jobs (host, due_at)
    WHERE state = 'delivering' AND lease_until IS NULL;
CREATE INDEX jobs_claimed ON jobs (state, lease_until, account, host)
    WHERE lease_until IS NOT NULL;

-- A lane is what a claim's bound holds for: the account whose jobs are pending, the host to which
-- they are delivered. It knows how many it has, and when the first that nobody has claimed is due,
-- so that a claim finds those who wait longest without looking at whoever waits behind a lane that
-- is full. A pending job is its own reservation of one unit, for as long as it is pending.
CREATE TABLE lanes (
    state TEXT NOT NULL,
    name NOT NULL,  -- the account's number, or the host; of no type, lest a host become a number
    jobs INTEGER NOT NULL,
    due_at INTEGER,  -- null where all are claimed
    PRIMARY KEY (state, name)
) WITHOUT ROWID;
CREATE INDEX lanes_by_due ON lanes (state, due_at) WHERE due_at IS NOT NULL;

-- Tries to deliver a callback; `place` is the order they were logged in.
CREATE TABLE attempts (
    job INTEGER NOT NULL,
    place INTEGER NOT NULL,
    number INTEGER NOT NULL,
    at INTEGER NOT NULL,
    took_ms INTEGER NOT NULL,
    status INTEGER,
    error TEXT,
    PRIMARY KEY (job, place)
) WITHOUT ROWID;

CREATE TABLE letters (
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
CREATE INDEX letters_of_kind ON letters (kind);
CREATE INDEX letters_of_account ON letters (account, kind);
CREATE INDEX letters_due ON letters (kind, due_at) WHERE due_at IS NOT NULL;
CREATE INDEX letters_ended ON letters (kind, made_at) WHERE due_at IS NULL;
