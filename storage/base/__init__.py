"""The base of every store, whatever its database: queue of calls, encryption, order of claims, leases."""
