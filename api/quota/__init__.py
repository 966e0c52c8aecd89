"""Units of accounts: plans, limits, reservations, settlement."""
