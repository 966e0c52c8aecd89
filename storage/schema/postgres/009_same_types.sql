-- Days and months are texts, and pending jobs have the same name, as in SQLite.
ALTER TABLE months ALTER COLUMN month TYPE text USING to_char(month, 'YYYY-MM-DD');
ALTER TABLE days ALTER COLUMN day TYPE text USING to_char(day, 'YYYY-MM-DD');
ALTER TABLE job_backlogs RENAME COLUMN jobs TO pending;
