-- Links to the report of a list, by the hash of what opens them.
CREATE TABLE shared_reports (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    list INTEGER NOT NULL REFERENCES lists,
    hash TEXT NOT NULL UNIQUE,
    made_at INTEGER NOT NULL,
    until INTEGER NOT NULL
);
CREATE INDEX shared_reports_of_list ON shared_reports (list);
CREATE INDEX shared_reports_by_end ON shared_reports (until);
