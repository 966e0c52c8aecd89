"""The bench suites, one module each."""
