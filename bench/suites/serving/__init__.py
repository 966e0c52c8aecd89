"""Suites of the running service: its requests, the live socket, a fleet."""
