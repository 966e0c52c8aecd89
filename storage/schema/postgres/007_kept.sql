-- What a list takes: the octets of its rows, its columns' names and its results.
ALTER TABLE lists ADD COLUMN octets bigint NOT NULL DEFAULT 0;
UPDATE lists SET octets = octet_length(columns) + coalesce((SELECT
    sum(octet_length(list_chunks.rows) + octet_length(results))
    FROM list_chunks WHERE list = lists.number), 0);
-- How far ahead of its rate an account has sent lists; null before its first.
ALTER TABLE accounts ADD COLUMN lists_paced_until bigint;
-- The search for due times that a clock wrote that was ahead must not read all rows of all lists.
CREATE INDEX list_chunks_by_due ON list_chunks (due_at) WHERE due_at IS NOT NULL;
-- When the latest claim of a job began: long calls of a receiver make it slow.
ALTER TABLE jobs ADD COLUMN claimed_at bigint;
-- Sessions of browsers that were signed out before their cookies end.
CREATE TABLE ended_sessions (
    id text PRIMARY KEY,
    until bigint NOT NULL  -- the cookie is valid no longer
);
CREATE INDEX ended_sessions_by_end ON ended_sessions (until);
