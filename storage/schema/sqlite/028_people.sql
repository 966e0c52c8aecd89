-- Who may sign in to an account. `address` is the e-mail address in lower case.
CREATE TABLE people (
    number INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    account INTEGER NOT NULL REFERENCES accounts,
    address TEXT NOT NULL,
    role TEXT NOT NULL,
    key INTEGER REFERENCES keys,  -- what the person's sign-ins act by; null before the first
    invited_at INTEGER NOT NULL,
    active_at INTEGER,
    seen_at INTEGER,
    UNIQUE (account, address)
);
CREATE INDEX people_by_address ON people (address);
CREATE INDEX people_by_key ON people (key);
-- Browsers that are signed in, until their cookies end; those of earlier versions are not here.
CREATE TABLE sign_ins (
    id TEXT PRIMARY KEY,
    account INTEGER NOT NULL REFERENCES accounts,
    key INTEGER NOT NULL,
    began_at INTEGER NOT NULL,
    seen_at INTEGER NOT NULL,
    until INTEGER NOT NULL,
    client TEXT,
    browser TEXT NOT NULL
) WITHOUT ROWID;
CREATE INDEX sign_ins_of_account ON sign_ins (account);
CREATE INDEX sign_ins_by_end ON sign_ins (until);
-- Links that sign in once, by the SHA-256 of what they carry. Unknown addresses have rows, too.
CREATE TABLE sign_in_links (
    sha256 TEXT PRIMARY KEY,
    address TEXT NOT NULL,
    person TEXT,  -- of an invitation: good for this person alone, in any browser
    browser TEXT,  -- SHA-256 of the cookie of the browser that asked; null for an invitation
    client TEXT NOT NULL,
    page TEXT NOT NULL,  -- where to go afterwards
    made_at INTEGER NOT NULL,
    until INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX sign_in_links_of_address ON sign_in_links (address);
CREATE INDEX sign_in_links_of_client ON sign_in_links (client);
CREATE INDEX sign_in_links_by_end ON sign_in_links (until);
-- The e-mail address of the person who did it.
ALTER TABLE audit_entries ADD COLUMN actor_person TEXT;
DROP TRIGGER audit_entries_never_change;
CREATE TRIGGER audit_entries_never_change
    BEFORE UPDATE OF number, id, account, kind, subject, name, prefix, changes,
        actor, actor_key, actor_prefix, address, on_account, actor_person ON audit_entries
BEGIN
    SELECT RAISE(ABORT, 'an entry of the audit log never changes');
END;
