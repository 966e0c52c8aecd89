-- Keys: by what each was made ('session', 'command_line' or 'key'), and its last use, to the hour.
ALTER TABLE keys ADD COLUMN made_by text;
ALTER TABLE keys ADD COLUMN used_at bigint;

-- The jobs of a receiver, newest first.
CREATE INDEX jobs_of_receiver ON jobs (account, host, number) WHERE webhook IS NOT NULL;
-- Failed jobs are few among an account's; SQLite finds them by jobs_of_account_in_state.
CREATE INDEX jobs_failed ON jobs (account, number) WHERE state = 'failed';
