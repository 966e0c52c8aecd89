"""Verdicts as people get them: lights, reasons in words, and counts."""
