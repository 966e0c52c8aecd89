"""Deletions of both databases in small transactions: what is past its retention, an account that goes."""
