"""Logs, request context and metrics."""
