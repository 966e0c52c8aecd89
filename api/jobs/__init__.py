"""Asynchronous verification: the job worker and webhook delivery."""
