"""Several egresses: which one asks a mail host, and what happens when it is refused.

Each egress has a dispatcher, with pools, permits, budgets and back-offs of its own.
"""
