"""Tolerances of mail hosts: records, allocation and commands, and the part of the store."""
