"""The REST API: operations, schemas, errors, and the Quart application."""
