"""Commands that act on a running fleet through its database."""
