"""Usage alerts: thresholds and the mails about them."""
