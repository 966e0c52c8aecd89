"""Real programs as children of the tests: mail servers, a resolver, a proxy."""
