-- Each part of a reservation's settlement, and when: a part settled again changes nothing.
-- A stream has a part for each of its writes, any other request has one.
CREATE TABLE settlements (
    reservation INTEGER NOT NULL,
    part INTEGER NOT NULL,
    at INTEGER NOT NULL,
    PRIMARY KEY (reservation, part)
) WITHOUT ROWID;

INSERT INTO settlements (reservation, part, at) SELECT reservation, 0, at FROM settled;

DROP TABLE settled;
