"""Layer 4: SMTP conversations, mail hosts, and the meaning of replies."""
