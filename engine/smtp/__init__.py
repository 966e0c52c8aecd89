"""Layer 4: SMTP conversations, connection pools, and the meaning of replies."""
