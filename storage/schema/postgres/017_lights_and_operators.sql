-- How many addresses of a day got each light; days of an earlier version have none.
ALTER TABLE days ADD COLUMN green bigint NOT NULL DEFAULT 0;
ALTER TABLE days ADD COLUMN yellow bigint NOT NULL DEFAULT 0;
ALTER TABLE days ADD COLUMN red bigint NOT NULL DEFAULT 0;
-- The reputation is counted by the operator of the mail hosts, too; empty for earlier versions.
ALTER TABLE reputation ADD COLUMN operator text NOT NULL DEFAULT '';
ALTER TABLE reputation DROP CONSTRAINT reputation_pkey, ADD PRIMARY KEY (day, operator);
