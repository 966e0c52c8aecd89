"""Answers for test keys: sends nothing, costs nothing; the address selects the outcome."""
