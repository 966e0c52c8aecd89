-- What the operator has paused: a 'domain', an 'operator' of mail hosts, an 'account' with its
-- lists, a 'machine' that is drained of lists. Every process reads it once a second.
CREATE TABLE pauses (
    kind text NOT NULL,
    name text NOT NULL,
    since bigint NOT NULL,
    until bigint,
    why text NOT NULL,
    PRIMARY KEY (kind, name)
);
-- The machines whose processes use this database, by host name.
CREATE TABLE machines (
    name text NOT NULL PRIMARY KEY,
    version text NOT NULL,
    seen_at bigint NOT NULL
);
-- The trace of the request that made it (id, span and flags of `traceparent`), for its callback.
ALTER TABLE jobs ADD COLUMN trace text;
ALTER TABLE lists ADD COLUMN trace text;
