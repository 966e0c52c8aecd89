"""The audit log: its records, its commands, and the part of the store that makes these."""
