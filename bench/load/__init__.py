"""Load generators, sinks, and services in processes of their own."""
