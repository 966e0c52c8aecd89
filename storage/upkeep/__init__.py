"""What both databases delete, in small transactions: what is past its retention, an account that goes."""
