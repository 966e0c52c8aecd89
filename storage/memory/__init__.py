"""The store in dictionaries: the readable specification of the others."""
