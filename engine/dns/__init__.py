"""Layer 3: DNS over HTTPS, from a domain to its mail exchanges."""
