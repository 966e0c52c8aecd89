"""Parts of the command line for the shell: its completion."""
