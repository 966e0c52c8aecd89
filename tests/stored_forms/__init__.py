"""Stored forms of earlier versions, in files that their code wrote, and that they are read."""
