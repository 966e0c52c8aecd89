-- Keys: by what each was made ('session', 'command_line' or 'key'), and its last use, to the hour.
ALTER TABLE keys ADD COLUMN made_by TEXT;
ALTER TABLE keys ADD COLUMN used_at INTEGER;
