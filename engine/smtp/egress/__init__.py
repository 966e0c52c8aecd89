"""The egresses: mail hosts as each knows them, which one asks, and what happens when it is refused.

Each has hosts, permits, tolerances and back-offs of its own.
"""
