"""Leases of what processes share at mail hosts: the records, the interfaces, and the keeper."""
