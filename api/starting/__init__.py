"""Preparations before the service starts: its database, its first account, its limits."""
