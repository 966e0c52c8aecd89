-- What one process knows of domains and mail hosts, for the others. No row is about a mailbox.
CREATE TABLE known_facts (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,  -- never used twice: readers continue behind the last
    kind TEXT NOT NULL,
    key TEXT NOT NULL CHECK (length(key) <= 640),
    value TEXT NOT NULL CHECK (length(value) <= 4096),
    until INTEGER NOT NULL,
    by_process TEXT NOT NULL,
    UNIQUE (kind, key)
);
CREATE INDEX known_facts_of_kind ON known_facts (kind, seq);
CREATE INDEX known_facts_by_end ON known_facts (until);
