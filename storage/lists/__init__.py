"""Lists: their records, their commands, the part of the store that makes these, and the shared SQL."""
