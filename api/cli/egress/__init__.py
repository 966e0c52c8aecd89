"""`mailprobe egress`, and the checks of each egress."""
