"""Proofs of who signs in: links by mail, and OpenID Connect."""
