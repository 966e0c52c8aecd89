"""Lists: their rows in chunks, the claims, results and marks of these, and the part of the store."""
