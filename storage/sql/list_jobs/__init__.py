"""Lists: their rows, claims of their chunks, lines, marks and results, for both stores."""
