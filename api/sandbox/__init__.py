"""Answers for test keys: no packet, no unit, and an outcome of one's choice."""
