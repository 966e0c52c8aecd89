-- What was learned of mail hosts, by egress; and of the last hour: their refusals, as a JSON array of
-- [at, account, count, holder], and the processes that lease some. Instants in JSON are seconds.
CREATE TABLE host_tolerances (
    egress TEXT NOT NULL,
    host TEXT NOT NULL,
    learned TEXT NOT NULL,
    refusals TEXT NOT NULL,
    holders TEXT NOT NULL,
    used_at INTEGER NOT NULL,  -- rounded down to the hour
    PRIMARY KEY (egress, host)
);
CREATE INDEX host_tolerances_by_use ON host_tolerances (used_at);
CREATE INDEX host_tolerances_in_use ON host_tolerances (used_at) WHERE holders <> '{}';
CREATE INDEX host_tolerances_of_egress ON host_tolerances (egress, used_at);
