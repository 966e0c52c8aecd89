"""Runs suites, keeps their figures, compares and draws them."""
