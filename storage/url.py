"""Where a store is, as the operator says it: a path or a URL."""

from pathlib import Path
from urllib.parse import urlsplit

POSTGRES = ("postgresql://", "postgres://")


def is_postgres(url_or_path: str | Path) -> bool:
    return str(url_or_path).startswith(POSTGRES)


def shown(url_or_path: str | Path) -> str:
    """Where the store is, as it may be seen: without a password."""
    text = str(url_or_path)
    if "://" not in text:
        return text
    try:
        parts = urlsplit(text)
    except ValueError:
        return f"{text.partition('://')[0]}://…"
    user, at, place = parts.netloc.rpartition("@")
    return f"{parts.scheme}://{user.partition(':')[0]}{at}{place}{parts.path}"
