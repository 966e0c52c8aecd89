-- How long each chunk of a list may wait for its mail hosts, from its first wait on.
ALTER TABLE lists ADD COLUMN patience_s INTEGER NOT NULL DEFAULT 14400;
ALTER TABLE list_chunks ADD COLUMN waits_since INTEGER;
-- JSON: which of its addresses wait for which host; they are counted in list_waits.
ALTER TABLE list_chunks ADD COLUMN waits TEXT;
-- How many addresses of a list wait for a mail host, and until when.
CREATE TABLE list_waits (
    list INTEGER NOT NULL REFERENCES lists,
    host TEXT NOT NULL,
    reason TEXT NOT NULL,
    takes INTEGER NOT NULL,  -- refusals that the host takes in ten minutes, or 0
    addresses INTEGER NOT NULL,
    until_at INTEGER NOT NULL,
    PRIMARY KEY (list, host)
) WITHOUT ROWID;
