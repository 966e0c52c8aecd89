-- A claim reads a few chunks of each running list: those that are free, and those whose lease has
-- ended, without those that are held.
DROP INDEX list_chunks_due;
DROP INDEX list_chunks_by_due;
CREATE INDEX list_chunks_free ON list_chunks (list, due_at, place)
    WHERE due_at IS NOT NULL AND lease_until IS NULL;
DROP INDEX list_chunks_claimed;
CREATE INDEX list_chunks_leased ON list_chunks (list, lease_until) WHERE lease_until IS NOT NULL;
