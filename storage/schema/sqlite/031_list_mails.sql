-- Whether the account gets a mail when a list is done.
ALTER TABLE lists ADD COLUMN mails INTEGER NOT NULL DEFAULT 0;
