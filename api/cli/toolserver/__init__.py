"""`mailprobe mcp`: the tool server on standard input and output."""
