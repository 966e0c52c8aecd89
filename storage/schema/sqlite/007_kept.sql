-- What a list takes: the octets of its rows, its columns' names and its results.
ALTER TABLE lists ADD COLUMN octets INTEGER NOT NULL DEFAULT 0;
UPDATE lists SET octets = length(CAST(columns AS BLOB)) + coalesce((SELECT
    sum(length(CAST(list_chunks.rows AS BLOB)) + length(CAST(results AS BLOB)))
    FROM list_chunks WHERE list = lists.number), 0);
-- How far ahead of its rate an account has sent lists; null before its first.
ALTER TABLE accounts ADD COLUMN lists_paced_until INTEGER;
-- The search for due times that a clock wrote that was ahead must not read all rows of all lists.
CREATE INDEX list_chunks_by_due ON list_chunks (due_at) WHERE due_at IS NOT NULL;
-- When the latest claim of a job began: long calls of a receiver make it slow.
ALTER TABLE jobs ADD COLUMN claimed_at INTEGER;
-- Sessions of browsers that were signed out before their cookies end.
CREATE TABLE ended_sessions (
    id TEXT PRIMARY KEY,
    until INTEGER NOT NULL  -- the cookie is valid no longer
) WITHOUT ROWID;
CREATE INDEX ended_sessions_by_end ON ended_sessions (until);
