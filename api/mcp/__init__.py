"""The tool server: JSON-RPC and the Model Context Protocol."""
