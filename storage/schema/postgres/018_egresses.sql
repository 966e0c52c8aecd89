-- Egresses that rest: paused by the operator, or quarantined because mail hosts refuse them.
CREATE TABLE egress_rests (
    egress text PRIMARY KEY,
    paused_at bigint,
    quarantined_at bigint,
    why text,
    trial_at bigint  -- when a process may try one address by it
);
-- Addresses of each UTC day: set aside by processes (where there is a limit), and asked.
CREATE TABLE egress_days (
    day text NOT NULL,  -- as in 2026-03-14
    egress text NOT NULL,
    reserved bigint NOT NULL,
    asked bigint NOT NULL,
    PRIMARY KEY (day, egress)
);
-- What mail hosts replied: how often on the last day that had such a reply, and when last.
CREATE TABLE egress_replies (
    egress text NOT NULL,
    operator text NOT NULL,
    reason text NOT NULL,
    day text NOT NULL,
    times bigint NOT NULL,
    last_at bigint NOT NULL,
    PRIMARY KEY (egress, operator, reason)
);
