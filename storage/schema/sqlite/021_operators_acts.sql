-- The account that an act of an operator was done to, in the operator's own log.
ALTER TABLE audit_entries ADD COLUMN on_account TEXT;
DROP TRIGGER audit_entries_never_change;
CREATE TRIGGER audit_entries_never_change
    BEFORE UPDATE OF number, id, account, kind, subject, name, prefix, changes,
        actor, actor_key, actor_prefix, address, on_account ON audit_entries
BEGIN
    SELECT RAISE(ABORT, 'an entry of the audit log never changes');
END;
