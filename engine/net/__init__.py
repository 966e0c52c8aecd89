"""Connections: which addresses may be connected to, dialling, the epoll reactor, TLS."""
