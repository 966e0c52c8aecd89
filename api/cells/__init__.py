"""Cells as people fill them: the addresses in one, and what stands for no address. Pure."""
