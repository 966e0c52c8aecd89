"""The documentation in the browser: Markdown pages, the reference, search."""
