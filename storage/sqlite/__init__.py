"""The store in one SQLite file: the default."""
