-- How many addresses of a day got each light; days of an earlier version have none.
ALTER TABLE days ADD COLUMN green INTEGER NOT NULL DEFAULT 0;
ALTER TABLE days ADD COLUMN yellow INTEGER NOT NULL DEFAULT 0;
ALTER TABLE days ADD COLUMN red INTEGER NOT NULL DEFAULT 0;
-- The reputation is counted by the operator of the mail hosts, too; empty for earlier versions.
CREATE TABLE reputation_by_operator (
    day TEXT NOT NULL,  -- as in 2026-03-14
    operator TEXT NOT NULL,
    answers INTEGER NOT NULL,
    refused INTEGER NOT NULL,
    PRIMARY KEY (day, operator)
) WITHOUT ROWID;
INSERT INTO reputation_by_operator SELECT day, '', answers, refused FROM reputation;
DROP TABLE reputation;
ALTER TABLE reputation_by_operator RENAME TO reputation;
