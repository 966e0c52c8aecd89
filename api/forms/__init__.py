"""Forms without a server: origins of pages, visitors by network, the script, proof of work."""
