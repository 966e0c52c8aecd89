-- A list that has ended has no claims: else a dead process left one in each that it had finished.
UPDATE list_chunks SET lease_until = NULL, holder = NULL FROM lists
    WHERE list = lists.number AND ended_at IS NOT NULL AND lease_until IS NOT NULL;
-- Uploads that have died, and what a clock that was ahead has written, are found without the lists
-- that have ended. Last, as services that run wait for it.
CREATE INDEX lists_not_ended ON lists (state, created_at) WHERE ended_at IS NULL;
