"""One mail host: its connections, what is known of it, and the probes that wait for it."""
