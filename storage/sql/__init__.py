"""The SQL that SQLite and PostgreSQL share."""
