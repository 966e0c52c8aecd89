"""Reads lists and makes workbooks in a process of their own, which has bounds and no network."""
