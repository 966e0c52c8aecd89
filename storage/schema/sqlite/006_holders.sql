-- The process that has claimed a chunk; null while it is not claimed.
ALTER TABLE list_chunks ADD COLUMN holder TEXT;
CREATE INDEX list_chunks_held ON list_chunks (holder) WHERE holder IS NOT NULL;
