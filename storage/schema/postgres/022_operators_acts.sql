-- The account that an act of an operator was done to, in the operator's own log.
ALTER TABLE audit_entries ADD COLUMN on_account text;
DROP TRIGGER audit_entries_never_change ON audit_entries;
CREATE TRIGGER audit_entries_never_change
    BEFORE UPDATE OF number, id, account, kind, subject, name, prefix, changes,
        actor, actor_key, actor_prefix, address, on_account ON audit_entries
    FOR EACH ROW EXECUTE FUNCTION refuse_change();
