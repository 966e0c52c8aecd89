"""Who may have how many units: plans, limits, reservations, settlement."""
