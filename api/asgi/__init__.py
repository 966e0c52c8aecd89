"""The service as an ASGI application, for a server that is not ours, such as hypercorn."""
