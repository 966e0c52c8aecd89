"""The work of an account: lists and jobs."""
