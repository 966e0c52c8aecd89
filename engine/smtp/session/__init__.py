"""A greeted connection: batches of recipients, their replies, and the proof of their order."""
