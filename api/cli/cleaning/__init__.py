"""`mailprobe clean`: reads a list, verifies its addresses, writes the result."""
