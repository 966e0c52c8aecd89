"""The dashboard: pages for people, over the same operations as the API."""
