"""The benchmark, its load generators, the lab and the demo."""
