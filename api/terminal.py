"""Makes text from outside safe to print.

A mail server's reply or a list's cell may contain terminal escape sequences, and marks
that change the direction of text. All of these are escaped.
"""

SHORT = {"\n": r"\n", "\r": r"\r", "\t": r"\t"}


def plain(text: str) -> str:
    """The text with unprintable characters escaped; always one line."""
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
