-- Egresses that rest: paused by the operator, or quarantined because mail hosts refuse them.
CREATE TABLE egress_rests (
    egress TEXT PRIMARY KEY,
    paused_at INTEGER,
    quarantined_at INTEGER,
    why TEXT,
    trial_at INTEGER  -- when a process may try one address by it
) WITHOUT ROWID;
-- Addresses of each UTC day: set aside by processes (where there is a limit), and asked.
CREATE TABLE egress_days (
    day TEXT NOT NULL,  -- as in 2026-03-14
    egress TEXT NOT NULL,
    reserved INTEGER NOT NULL,
    asked INTEGER NOT NULL,
    PRIMARY KEY (day, egress)
) WITHOUT ROWID;
-- What mail hosts replied: how often on the last day that had such a reply, and when last.
CREATE TABLE egress_replies (
    egress TEXT NOT NULL,
    operator TEXT NOT NULL,
    reason TEXT NOT NULL,
    day TEXT NOT NULL,
    times INTEGER NOT NULL,
    last_at INTEGER NOT NULL,
    PRIMARY KEY (egress, operator, reason)
) WITHOUT ROWID;
