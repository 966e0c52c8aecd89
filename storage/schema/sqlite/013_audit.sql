-- The audit log: who did what to an account, when, and from where. Entries never change, but for
-- the count of failed sign-ins, and an instant of a clock that was ahead.
CREATE TABLE audit_entries (
    number INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    account INTEGER NOT NULL,
    at INTEGER NOT NULL,
    kind TEXT NOT NULL,
    subject TEXT,
    name TEXT,
    prefix TEXT,
    changes TEXT NOT NULL,
    actor TEXT NOT NULL,
    actor_key TEXT,
    actor_prefix TEXT,
    address TEXT,
    times INTEGER NOT NULL
);
CREATE INDEX audit_of_account ON audit_entries (account, at, number);
CREATE INDEX audit_of_kind ON audit_entries (account, kind, at, number);
CREATE INDEX audit_by_instant ON audit_entries (at);
CREATE TRIGGER audit_entries_never_change
    BEFORE UPDATE OF number, id, account, kind, subject, name, prefix, changes,
        actor, actor_key, actor_prefix, address ON audit_entries
BEGIN
    SELECT RAISE(ABORT, 'an entry of the audit log never changes');
END;
