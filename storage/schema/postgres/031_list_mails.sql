-- Whether the account gets a mail when a list is done.
ALTER TABLE lists ADD COLUMN mails bigint NOT NULL DEFAULT 0;
