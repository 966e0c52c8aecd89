"""What the service and its commands download: lists of domains and of mail hosts."""
