"""Text that others wrote, made safe to show.

A mail server's reply or a cell of a list may hold escape sequences that drive a
terminal, and marks that turn its text around. Nothing of that kind gets through.
"""

SHORT = {"\n": r"\n", "\r": r"\r", "\t": r"\t"}


def plain(text: str) -> str:
    """The text with whatever is not printable as an escape; of one line, always."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else _escape(c) for c in text)


def _escape(character: str) -> str:
    number = ord(character)
    if character in SHORT:
        return SHORT[character]
    if number < 0x100:
        return f"\\x{number:02x}"
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"
