-- The process in which the first request with an idempotency key runs, and the one that stores the
-- rows of a list; null where it is not known, and once they are stored.
ALTER TABLE idempotency_records ADD COLUMN holder text;
ALTER TABLE lists ADD COLUMN holder text;
