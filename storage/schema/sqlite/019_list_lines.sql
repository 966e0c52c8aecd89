-- The lines of a list, its rows and its results, are parts of their own: they are added once and
-- never changed, so that a claim or an answer writes little. Part 0 has the rows of a chunk.
CREATE TABLE list_lines (
    day INTEGER NOT NULL,  -- of the list: see lists
    list INTEGER NOT NULL,
    place INTEGER NOT NULL,
    part INTEGER NOT NULL,
    rows TEXT NOT NULL,  -- JSON lines
    results TEXT NOT NULL,  -- JSON lines
    PRIMARY KEY (day, list, place, part)
);
INSERT INTO list_lines SELECT 0, list, place, 0, rows, results FROM list_chunks WHERE place >= 0;
ALTER TABLE list_chunks ADD COLUMN parts INTEGER NOT NULL DEFAULT 0;  -- of results
UPDATE list_chunks SET parts = 1 WHERE results <> '';
ALTER TABLE list_chunks DROP COLUMN rows;
ALTER TABLE list_chunks DROP COLUMN results;
-- The first instant of the UTC day on which it was made; 0 if an earlier version has made it.
ALTER TABLE lists ADD COLUMN day INTEGER NOT NULL DEFAULT 0;
