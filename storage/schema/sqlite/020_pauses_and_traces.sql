-- What the operator has paused: a 'domain', an 'operator' of mail hosts, an 'account' with its
-- lists, a 'machine' that is drained of lists. Every process reads it once a second.
CREATE TABLE pauses (
    kind TEXT NOT NULL,
    name TEXT NOT NULL,
    since INTEGER NOT NULL,
    until INTEGER,
    why TEXT NOT NULL,
    PRIMARY KEY (kind, name)
) WITHOUT ROWID;
-- The machines whose processes use this database, by host name.
CREATE TABLE machines (
    name TEXT NOT NULL PRIMARY KEY,
    version TEXT NOT NULL,
    seen_at INTEGER NOT NULL
) WITHOUT ROWID;
-- The trace of the request that made it (id, span and flags of `traceparent`), for its callback.
ALTER TABLE jobs ADD COLUMN trace TEXT;
ALTER TABLE lists ADD COLUMN trace TEXT;
