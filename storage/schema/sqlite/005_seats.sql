-- How many connections to an IP address each process may hold, and until when.
-- A row without seats is a place in the queue for one.
CREATE TABLE seats (
    address TEXT NOT NULL,
    holder TEXT NOT NULL,
    seats INTEGER NOT NULL,
    since INTEGER NOT NULL,
    until INTEGER NOT NULL,
    PRIMARY KEY (address, holder)
) WITHOUT ROWID;
CREATE INDEX seats_wanted ON seats (address) WHERE seats = 0;
