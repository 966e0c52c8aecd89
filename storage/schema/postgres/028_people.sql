-- Who may sign in to an account. `address` is the e-mail address in lower case.
CREATE TABLE people (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id text NOT NULL UNIQUE,
    account bigint NOT NULL REFERENCES accounts,
    address text NOT NULL,
    role text NOT NULL,
    key bigint REFERENCES keys,  -- what the person's sign-ins act by; null before the first
    invited_at bigint NOT NULL,
    active_at bigint,
    seen_at bigint,
    UNIQUE (account, address)
);
CREATE INDEX people_by_address ON people (address);
CREATE INDEX people_by_key ON people (key);
-- Browsers that are signed in, until their cookies end; those of earlier versions are not here.
CREATE TABLE sign_ins (
    id text PRIMARY KEY,
    account bigint NOT NULL REFERENCES accounts,
    key bigint NOT NULL,
    began_at bigint NOT NULL,
    seen_at bigint NOT NULL,
    until bigint NOT NULL,
    client text,
    browser text NOT NULL
);
CREATE INDEX sign_ins_of_account ON sign_ins (account);
CREATE INDEX sign_ins_by_end ON sign_ins (until);
-- Links that sign in once, by the SHA-256 of what they carry. Unknown addresses have rows, too.
CREATE TABLE sign_in_links (
    sha256 text PRIMARY KEY,
    address text NOT NULL,
    person text,  -- of an invitation: good for this person alone, in any browser
    browser text,  -- SHA-256 of the cookie of the browser that asked; null for an invitation
    client text NOT NULL,
    page text NOT NULL,  -- where to go afterwards
    made_at bigint NOT NULL,
    until bigint NOT NULL
);
CREATE INDEX sign_in_links_of_address ON sign_in_links (address);
CREATE INDEX sign_in_links_of_client ON sign_in_links (client);
CREATE INDEX sign_in_links_by_end ON sign_in_links (until);
-- The e-mail address of the person who did it.
ALTER TABLE audit_entries ADD COLUMN actor_person text;
DROP TRIGGER audit_entries_never_change ON audit_entries;
CREATE TRIGGER audit_entries_never_change
    BEFORE UPDATE OF number, id, account, kind, subject, name, prefix, changes,
        actor, actor_key, actor_prefix, address, on_account, actor_person ON audit_entries
    FOR EACH ROW EXECUTE FUNCTION refuse_change();
