"""What only a real PostgreSQL server shows."""
