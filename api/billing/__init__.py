"""Billing: pure rules, the sender of meter events, the client of the provider's SDK."""
