"""Connections, threads, batches and the schema of the PostgreSQL store."""
