"""Billing: pure rules, the outbox worker, the client of the provider's SDK."""
