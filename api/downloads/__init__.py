"""Downloads of the service and its commands: lists of domains and of mail hosts."""
