-- How a list's cells were read: a line of JSON, of the API's own format.
ALTER TABLE lists ADD COLUMN reading TEXT;
