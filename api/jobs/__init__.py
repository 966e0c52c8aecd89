"""Asynchronous verification: the job queue and webhook delivery."""
