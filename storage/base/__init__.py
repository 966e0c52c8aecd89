"""What every store is built on, whatever its database: queue of calls, encryption, order of claims, leases."""
