"""The location of a store, as the operator gives it: a path or a URL."""

from pathlib import Path
from urllib.parse import urlsplit

DEFAULT_FOLDER = Path("data")  # of the database where no other is named: it is created
POSTGRES = ("postgresql://", "postgres://")


def is_postgres(url_or_path: str | Path) -> bool:
    """Return whether this is the URL of a PostgreSQL database."""
    return str(url_or_path).startswith(POSTGRES)


def shown(url_or_path: str | Path) -> str:
    """Return the location for display: without a password."""
    text = str(url_or_path)
    if "://" not in text:
        return text
    try:
        parts = urlsplit(text)
    except ValueError:
        return f"{text.partition('://')[0]}://…"
    user, at, place = parts.netloc.rpartition("@")
    return f"{parts.scheme}://{user.partition(':')[0]}{at}{place}{parts.path}"
