"""Loads of the pages."""
