"""A service in the place of an engine on this machine."""
