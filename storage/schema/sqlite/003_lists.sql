-- Lists that are verified in the background, with their progress.
CREATE TABLE lists (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    account INTEGER NOT NULL REFERENCES accounts,
    key INTEGER NOT NULL REFERENCES keys,
    name TEXT NOT NULL,
    state TEXT NOT NULL,
    cause TEXT,  -- the code of the error that paused or failed it
    columns TEXT NOT NULL,  -- JSON: the names of its rows' columns
    rows INTEGER NOT NULL,
    addresses INTEGER NOT NULL,
    answered INTEGER NOT NULL,
    counts TEXT NOT NULL,  -- JSON: the answered addresses by status
    created_at INTEGER NOT NULL,
    ended_at INTEGER,
    webhook TEXT,
    host TEXT NOT NULL,
    secret BLOB  -- encrypted, with the id as context
);
CREATE INDEX lists_of_account ON lists (account, number);
CREATE INDEX lists_of_key ON lists (key);
CREATE INDEX lists_running ON lists (number) WHERE state = 'running';
CREATE INDEX lists_ended ON lists (account, ended_at) WHERE ended_at IS NOT NULL;

-- The rows of a list, some hundred together. The chunk without addresses finishes the list.
CREATE TABLE list_chunks (
    list INTEGER NOT NULL REFERENCES lists,
    place INTEGER NOT NULL,
    units INTEGER NOT NULL,  -- addresses that no chunk before has
    rows TEXT NOT NULL,  -- JSON lines
    results TEXT NOT NULL,  -- JSON lines
    due_at INTEGER,  -- null before the list runs, and once it is answered
    lease_until INTEGER,
    fence INTEGER NOT NULL,
    PRIMARY KEY (list, place)
);
CREATE INDEX list_chunks_due ON list_chunks (list, place) WHERE due_at IS NOT NULL;
CREATE INDEX list_chunks_claimed ON list_chunks (lease_until) WHERE lease_until IS NOT NULL;
