"""The reputation of the address that probes come from: blocklists and SPF."""
