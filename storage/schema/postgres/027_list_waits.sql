-- How long each chunk of a list may wait for its mail hosts, from its first wait on.
ALTER TABLE lists ADD COLUMN patience_s bigint NOT NULL DEFAULT 14400;
ALTER TABLE list_chunks ADD COLUMN waits_since bigint;
-- JSON: which of its addresses wait for which host; they are counted in list_waits.
ALTER TABLE list_chunks ADD COLUMN waits text;
-- How many addresses of a list wait for a mail host, and until when.
CREATE TABLE list_waits (
    list bigint NOT NULL REFERENCES lists,
    host text NOT NULL,
    reason text NOT NULL,
    takes bigint NOT NULL,  -- refusals that the host takes in ten minutes, or 0
    addresses bigint NOT NULL,
    until_at bigint NOT NULL,
    PRIMARY KEY (list, host)
);
