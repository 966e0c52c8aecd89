"""What the shell gets from the command line: its completion."""
