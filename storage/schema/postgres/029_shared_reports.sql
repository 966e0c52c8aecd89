-- Links to the report of a list, by the hash of what opens them.
CREATE TABLE shared_reports (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    list bigint NOT NULL REFERENCES lists,
    hash text NOT NULL UNIQUE,
    made_at bigint NOT NULL,
    until bigint NOT NULL
);
CREATE INDEX shared_reports_of_list ON shared_reports (list);
CREATE INDEX shared_reports_by_end ON shared_reports (until);
