-- What was found at each address of a chunk, a character for each, so that a page of a long list
-- is counted and filtered without its rows. A chunk without an answer has none.
CREATE TABLE list_marks (
    list INTEGER NOT NULL REFERENCES lists,
    place INTEGER NOT NULL,
    marks TEXT NOT NULL,
    PRIMARY KEY (list, place)
) WITHOUT ROWID;
-- Until when a limit lets a list wait, and which; of the past once it goes on.
ALTER TABLE lists ADD COLUMN waits_until INTEGER;
ALTER TABLE lists ADD COLUMN waits_for TEXT;
-- Its rows without an address; null where an earlier version has read it.
ALTER TABLE lists ADD COLUMN blank_rows INTEGER;
-- When it was started or resumed, and how many addresses were answered before; null before a start.
ALTER TABLE lists ADD COLUMN ran_at INTEGER;
ALTER TABLE lists ADD COLUMN ran_from INTEGER;
