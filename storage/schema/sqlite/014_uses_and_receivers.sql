-- Keys: by what each was made ('session', 'command_line' or 'key'), and its last use, to the hour.
ALTER TABLE keys ADD COLUMN made_by TEXT;
ALTER TABLE keys ADD COLUMN used_at INTEGER;

-- The jobs of a receiver, newest first.
CREATE INDEX jobs_of_receiver ON jobs (account, host) WHERE webhook IS NOT NULL;
