"""What the world says of the address that probes come from: blocklists and SPF."""
