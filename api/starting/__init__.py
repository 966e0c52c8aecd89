"""What comes before the service, whoever serves it: its database, its first account, its limits."""
