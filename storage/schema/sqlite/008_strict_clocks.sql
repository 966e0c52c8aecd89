-- A list whose later passes give slow hosts no more time.
ALTER TABLE lists ADD COLUMN strict_clocks INTEGER NOT NULL DEFAULT 0;
