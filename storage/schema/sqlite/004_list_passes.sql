-- A list may be verified again, as far as time may have cured its answers.
ALTER TABLE lists ADD COLUMN rechecks INTEGER NOT NULL DEFAULT 0;  -- passes that are left
ALTER TABLE lists ADD COLUMN recheck_at INTEGER;  -- when the next one begins, or has begun
ALTER TABLE list_chunks ADD COLUMN passing INTEGER NOT NULL DEFAULT 0;  -- answers that time may cure
