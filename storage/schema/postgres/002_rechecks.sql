-- Whether a job is verified again later where time may cure what made its result unknown.
ALTER TABLE jobs ADD COLUMN recheck bigint NOT NULL DEFAULT 0;
