-- Publishable keys: the origins of the pages that may use one, with spaces between, and its units a minute.
ALTER TABLE keys ADD COLUMN origins text;
ALTER TABLE keys ADD COLUMN rate_per_min bigint;
CREATE INDEX keys_by_origins ON keys (origins) WHERE origins IS NOT NULL AND revoked_at IS NULL;
