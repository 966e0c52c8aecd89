-- Jobs are claimed by account in turn; of an account those due longest first.
CREATE INDEX jobs_in_turn ON jobs (state, account, due_at, number)
    WHERE lease_until IS NULL AND due_at IS NOT NULL;
DROP INDEX jobs_pending;
DROP INDEX jobs_delivering;

-- Jobs of an account that are not delivered yet, the pending ones among them.
ALTER TABLE promises ADD COLUMN undelivered bigint NOT NULL DEFAULT 0;
INSERT INTO promises (account, jobs, undelivered)
    SELECT account, 0, count(*) FROM jobs WHERE state IN ('pending', 'delivering') GROUP BY account
    ON CONFLICT (account) DO UPDATE SET undelivered = excluded.undelivered;

-- Receivers of callbacks whose last tries failed, and how many of them one after another.
CREATE TABLE receivers (
    account bigint NOT NULL,
    host text NOT NULL,
    failures bigint NOT NULL,
    tried_at bigint NOT NULL,
    PRIMARY KEY (account, host)
) WITH (fillfactor = 70);
CREATE INDEX receivers_by_try ON receivers (tried_at);
