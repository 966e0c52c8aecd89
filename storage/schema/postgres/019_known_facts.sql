-- What one process knows of domains and mail hosts, for the others. No row is about a mailbox.
CREATE TABLE known_facts (
    seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    kind text NOT NULL,
    key text NOT NULL CHECK (length(key) <= 640),
    value text NOT NULL CHECK (length(value) <= 4096),
    until bigint NOT NULL,
    by_process text NOT NULL,
    UNIQUE (kind, key)
);
CREATE INDEX known_facts_of_kind ON known_facts (kind, seq);
CREATE INDEX known_facts_by_end ON known_facts (until);
