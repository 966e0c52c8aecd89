-- Jobs are claimed by account in turn. A lane is one account's: its jobs to verify, with an empty
-- host, or those to one of its receivers.
CREATE TABLE lanes_of_accounts (
    state TEXT NOT NULL,
    account INTEGER NOT NULL,
    host TEXT NOT NULL,  -- empty: the jobs are pending
    jobs INTEGER NOT NULL,
    due_at INTEGER,  -- null where all are claimed
    PRIMARY KEY (state, account, host)
) WITHOUT ROWID;

INSERT INTO lanes_of_accounts
    SELECT state, account, iif(state = 'pending', '', host), count(*),
        min(iif(lease_until IS NULL, due_at, NULL))
    FROM jobs WHERE state IN ('pending', 'delivering') GROUP BY 1, 2, 3;

DROP TABLE lanes;
ALTER TABLE lanes_of_accounts RENAME TO lanes;
CREATE INDEX lanes_by_due ON lanes (state, account, due_at) WHERE due_at IS NOT NULL;

-- What an account has in all its lanes, and when the first of them is due.
CREATE TABLE backlogs (
    account INTEGER PRIMARY KEY,
    pending INTEGER NOT NULL,
    undelivered INTEGER NOT NULL,  -- the pending ones among them
    pending_due_at INTEGER,
    delivering_due_at INTEGER
);
INSERT INTO backlogs
    SELECT account, sum(iif(state = 'pending', jobs, 0)), sum(jobs),
        min(iif(state = 'pending', due_at, NULL)), min(iif(state = 'delivering', due_at, NULL))
    FROM lanes GROUP BY account;
CREATE INDEX backlogs_pending ON backlogs (pending_due_at) WHERE pending_due_at IS NOT NULL;
CREATE INDEX backlogs_delivering ON backlogs (delivering_due_at)
    WHERE delivering_due_at IS NOT NULL;

DROP INDEX jobs_delivering;
CREATE INDEX jobs_delivering ON jobs (account, host, due_at)
    WHERE state = 'delivering' AND lease_until IS NULL;

-- Receivers of callbacks whose last tries failed, and how many of them one after another.
CREATE TABLE receivers (
    account INTEGER NOT NULL,
    host TEXT NOT NULL,
    failures INTEGER NOT NULL,
    tried_at INTEGER NOT NULL,
    PRIMARY KEY (account, host)
) WITHOUT ROWID;
CREATE INDEX receivers_by_try ON receivers (tried_at);
