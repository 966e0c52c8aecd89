-- The audit log: who did what to an account, when, and from where. Entries never change, but for
-- the count of failed sign-ins, and an instant of a clock that was ahead.
CREATE TABLE audit_entries (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id text NOT NULL UNIQUE,
    account bigint NOT NULL,  -- not checked: a deletion of a list must not wait for its account
    at bigint NOT NULL,
    kind text NOT NULL,
    subject text,
    name text,
    prefix text,
    changes text NOT NULL,  -- JSON: by the account's fields, before and after
    actor text NOT NULL,
    actor_key text,
    actor_prefix text,
    address text,
    times bigint NOT NULL
);
CREATE INDEX audit_of_account ON audit_entries (account, at, number);
CREATE INDEX audit_of_kind ON audit_entries (account, kind, at, number);
CREATE INDEX audit_by_instant ON audit_entries (at);
CREATE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'an entry of the audit log never changes';
END
$$;
CREATE TRIGGER audit_entries_never_change
    BEFORE UPDATE OF number, id, account, kind, subject, name, prefix, changes,
        actor, actor_key, actor_prefix, address ON audit_entries
    FOR EACH ROW EXECUTE FUNCTION refuse_change();
