-- What mail hosts said to the newest answers of lists, for a day: those of a chunk together.
CREATE TABLE conversations (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    account bigint NOT NULL REFERENCES accounts,
    list bigint NOT NULL REFERENCES lists,
    place bigint NOT NULL,  -- of the chunk
    at bigint NOT NULL,
    answers bigint NOT NULL,
    octets bigint NOT NULL,
    packed bytea NOT NULL
);
CREATE INDEX conversations_of_chunk ON conversations (list, place);
CREATE INDEX conversations_of_account ON conversations (account, number, answers, octets);
CREATE INDEX conversations_by_age ON conversations (at);
