-- What mail hosts said to the newest answers of lists, for a day: those of a chunk together.
CREATE TABLE conversations (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    account INTEGER NOT NULL REFERENCES accounts,
    list INTEGER NOT NULL REFERENCES lists,
    place INTEGER NOT NULL,  -- of the chunk
    at INTEGER NOT NULL,
    answers INTEGER NOT NULL,
    octets INTEGER NOT NULL,
    packed BLOB NOT NULL
);
CREATE INDEX conversations_of_chunk ON conversations (list, place);
CREATE INDEX conversations_of_account ON conversations (account, number, answers, octets);
CREATE INDEX conversations_by_age ON conversations (at);
