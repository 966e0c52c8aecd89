"""The dashboard's static files, under names that change with their octets.

A browser may keep them for ever, and checks them by their hash (Subresource Integrity).
"""

from base64 import b64encode
from dataclasses import dataclass
from functools import cache
from hashlib import sha384
from pathlib import Path

FOLDER = Path(__file__).parent / "static"
MEDIA_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}


@dataclass(frozen=True, slots=True)
class Asset:
    """A static file: where it is served, and what it must be."""

    url: str
    integrity: str
    media_type: str
    octets: bytes


@cache
def assets() -> dict[str, Asset]:
    """Every asset by its file's name."""
    return {path.name: _read(path) for path in sorted(FOLDER.rglob("*.*")) if _is_served(path)}


@cache
def assets_by_url() -> dict[str, Asset]:
    return {asset.url: asset for asset in assets().values()}


def _is_served(path: Path) -> bool:
    return path.suffix in MEDIA_TYPES


def _read(path: Path) -> Asset:
    octets = path.read_bytes()
    digest = sha384(octets).digest()
    name = f"{path.stem}.{digest.hex()[:16]}{path.suffix}"
    integrity = f"sha384-{b64encode(digest).decode()}"
    return Asset(
        f"/dashboard/static/{name}", integrity, f"{MEDIA_TYPES[path.suffix]}; charset=utf-8", octets
    )
