-- Whether mail hosts are asked about the addresses of a job or a list.
ALTER TABLE jobs ADD COLUMN asks_hosts bigint NOT NULL DEFAULT 1;
ALTER TABLE lists ADD COLUMN asks_hosts bigint NOT NULL DEFAULT 1;
