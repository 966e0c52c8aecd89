-- The sliding window with a running total: `total` is the key's units up to this row and with it.
-- The sum of a minute is the difference of two rows, however many lie between them.
CREATE TABLE running_windows (
    key INTEGER NOT NULL,
    at INTEGER NOT NULL,
    units INTEGER NOT NULL,
    total INTEGER NOT NULL,
    PRIMARY KEY (key, at)
) WITHOUT ROWID;

INSERT INTO running_windows (key, at, units, total)
    SELECT key, at, units, sum(units) OVER (PARTITION BY key ORDER BY at) FROM windows;

DROP TABLE windows;
ALTER TABLE running_windows RENAME TO windows;
