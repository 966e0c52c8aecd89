-- The process that has claimed a chunk; null while it is not claimed.
ALTER TABLE list_chunks ADD COLUMN holder text;
CREATE INDEX list_chunks_held ON list_chunks (holder) WHERE holder IS NOT NULL;

-- The database session that shows that the holder of a lease lives; see driver/session_lock.py.
-- Null where there was none when it was leased.
ALTER TABLE connection_leases ADD COLUMN session bigint;
