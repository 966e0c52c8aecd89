-- Addresses whose mail came back: a keyed hash of each, and how it became known.
CREATE TABLE bounces (
    account INTEGER NOT NULL,
    address TEXT NOT NULL,
    source TEXT NOT NULL,
    at INTEGER NOT NULL,
    PRIMARY KEY (account, address)
) WITHOUT ROWID;
CREATE INDEX bounces_of_account ON bounces (account, at);
CREATE INDEX bounces_by_instant ON bounces (at);
