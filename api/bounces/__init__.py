"""Bounces that are fed back: reports of mail servers, and events of mail services."""
