"""Checks of `mailprobe doctor` as data: the command shows them, and so can a page."""
