"""The HTTP server: connections, parsing, overload control."""
