"""The commands `bench`, `lab` and `demo`."""
