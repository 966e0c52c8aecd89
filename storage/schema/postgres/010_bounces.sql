-- Addresses whose mail came back: a keyed hash of each, and how it became known.
CREATE TABLE bounces (
    account bigint NOT NULL,
    address text NOT NULL,
    source text NOT NULL,
    at bigint NOT NULL,
    PRIMARY KEY (account, address)
);
CREATE INDEX bounces_of_account ON bounces (account, at);
CREATE INDEX bounces_by_instant ON bounces (at);
