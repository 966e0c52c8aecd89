"""Moves everything from an SQLite database to a PostgreSQL one."""
