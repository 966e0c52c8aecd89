-- Revoked keys cost nobody anything: those in force have an index of their own, and revoked ones go
-- when they are past their account's retention.
DROP INDEX keys_of_account;
CREATE INDEX keys_in_force ON keys (account, kind) WHERE revoked_at IS NULL;
CREATE INDEX keys_revoked ON keys (account, revoked_at) WHERE revoked_at IS NOT NULL;
CREATE INDEX keys_made ON keys (account, created_at);
CREATE INDEX jobs_of_key ON jobs (key);
