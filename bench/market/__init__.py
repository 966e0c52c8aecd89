"""Mail hosts without sockets, and a client of them, to simulate the tolerance on virtual time."""
