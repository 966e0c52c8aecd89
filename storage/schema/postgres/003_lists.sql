-- Lists that are verified in the background, with their progress.
CREATE TABLE lists (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id text NOT NULL UNIQUE,
    account bigint NOT NULL REFERENCES accounts,
    key bigint NOT NULL REFERENCES keys,
    name text NOT NULL,
    state text NOT NULL,
    cause text,  -- the code of the error that paused or failed it
    columns text NOT NULL,  -- JSON: the names of its rows' columns
    rows bigint NOT NULL,
    addresses bigint NOT NULL,
    answered bigint NOT NULL,
    counts text NOT NULL,  -- JSON: the answered addresses by status
    created_at bigint NOT NULL,
    ended_at bigint,
    webhook text,
    host text NOT NULL,
    secret bytea  -- encrypted, with the id as context
);
CREATE INDEX lists_of_account ON lists (account, number);
CREATE INDEX lists_of_key ON lists (key);
CREATE INDEX lists_running ON lists (number) WHERE state = 'running';
CREATE INDEX lists_ended ON lists (account, ended_at) WHERE ended_at IS NOT NULL;

-- The rows of a list, some hundred together. The chunk without addresses finishes the list.
CREATE TABLE list_chunks (
    list bigint NOT NULL REFERENCES lists,
    place bigint NOT NULL,
    units bigint NOT NULL,  -- addresses that no chunk before has
    rows text NOT NULL,  -- JSON lines
    results text NOT NULL,  -- JSON lines
    due_at bigint,  -- null before the list runs, and once it is answered
    lease_until bigint,
    fence bigint NOT NULL,
    PRIMARY KEY (list, place)
);
CREATE INDEX list_chunks_due ON list_chunks (list, place) WHERE due_at IS NOT NULL;
CREATE INDEX list_chunks_claimed ON list_chunks (lease_until) WHERE lease_until IS NOT NULL;
