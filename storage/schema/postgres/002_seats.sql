-- How many connections to an IP address each process may hold, and until when.
-- A row without seats is a place in the queue for one. Who leases holds advisory locks
-- of the addresses to the commit.
CREATE TABLE seats (
    address text NOT NULL,
    holder text NOT NULL,
    seats integer NOT NULL,
    since bigint NOT NULL,
    until bigint NOT NULL,
    PRIMARY KEY (address, holder)
) WITH (fillfactor = 50);
CREATE INDEX seats_wanted ON seats (address) WHERE seats = 0;
