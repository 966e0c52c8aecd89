"""The pages' static files, under names that change with their octets.

A browser may keep them for ever, and checks scripts and styles by their hash (Subresource
Integrity). A style names a font by its file, and is served with the font's own name.
"""

import re
from base64 import b64encode
from collections.abc import Mapping
from functools import cache
from hashlib import sha384
from pathlib import Path

from msgspec import Struct

FOLDER = Path(__file__).parent / "static"
MEDIA_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml; charset=utf-8",
    ".woff2": "font/woff2",
}


class Asset(Struct, frozen=True):
    """A static file: where it is served, and what it must be."""

    url: str
    integrity: str
    media_type: str
    octets: bytes


@cache
def assets() -> dict[str, Asset]:
    """Every asset by its file's name."""
    paths = sorted(path for path in FOLDER.rglob("*.*") if path.suffix in MEDIA_TYPES)
    found = {path.name: _asset(path, path.read_bytes()) for path in paths}
    for path in paths:
        if path.suffix == ".css":
            found[path.name] = _asset(path, _with_fonts(path.read_text("utf-8"), found))
    return found


@cache
def assets_by_url() -> dict[str, Asset]:
    return {asset.url: asset for asset in assets().values()}


def _with_fonts(css: str, found: Mapping[str, Asset]) -> bytes:
    return re.sub(
        r'url\("([\w-]+\.woff2)"\)', lambda name: f'url("{found[name[1]].url}")', css
    ).encode()


def _asset(path: Path, octets: bytes) -> Asset:
    digest = sha384(octets).digest()
    name = f"{path.stem}.{digest.hex()[:16]}{path.suffix}"
    integrity = f"sha384-{b64encode(digest).decode()}"
    return Asset(f"/dashboard/static/{name}", integrity, MEDIA_TYPES[path.suffix], octets)
