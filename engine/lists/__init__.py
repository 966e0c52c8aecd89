"""Layers 2 and 5: lists of domains and local parts, and typos of well-known domains."""
