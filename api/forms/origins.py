"""Origins of web pages (RFC 6454, https://html.spec.whatwg.org/#origin), as browsers send them.

A publishable key names the origins of the pages that may use it. A browser's Origin header is
compared with them octet by octet, so what a person writes is brought into the browser's form first.
"""

import re
from collections.abc import Sequence
from urllib.parse import urlsplit

RATE_DEFAULT = 60  # units a minute of a publishable key: a sign-up each second
RATE_MAX = 1_000_000  # far above any tier's
ORIGINS_MAX = 10  # of a key: one for each site is better, since one is revoked alone
ORIGIN_CHARACTERS_MAX = 255 + len("https://:65535")  # a host name has at most 255 (RFC 1035)

ORIGIN_TAKES = "an origin such as https://shop.example.org: no path, no *, not null"

_DEFAULT_PORTS = {"http": 80, "https": 443}
# The whole text is matched before it is parsed, so no control character reaches a header.
_WRITTEN = re.compile(
    r"https?://(?:[a-z0-9](?:[a-z0-9._-]*[a-z0-9])?|\[[0-9a-f:.]+\])(?::[0-9]{1,5})?/?", re.ASCII
)


def read_origin(text: str) -> str:
    """Return the origin as browsers serialise it. Raises ValueError with what is wrong."""
    lowered = text.strip().lower()
    if len(lowered) > ORIGIN_CHARACTERS_MAX or not _WRITTEN.fullmatch(lowered):
        raise ValueError(f"{text[:80]!r} is not an origin: it takes {ORIGIN_TAKES}")
    try:
        parts = urlsplit(lowered)
        port = parts.port
    except ValueError:
        raise ValueError(f"{text[:80]!r} is not an origin: it takes {ORIGIN_TAKES}") from None
    host = f"[{parts.hostname}]" if "[" in parts.netloc else parts.hostname
    is_default = port in (None, _DEFAULT_PORTS[parts.scheme])
    return f"{parts.scheme}://{host}" + ("" if is_default else f":{port}")


def origin_of(url: str) -> str:
    """The origin of an http or https URL."""
    scheme, _, rest = url.partition("://")
    return read_origin(f"{scheme}://{rest.partition('/')[0]}")


def is_origin(text: str) -> bool:
    """Whether a header's value is an origin as browsers serialise it."""
    try:
        return read_origin(text) == text
    except ValueError:
        return False


def read_origins(texts: Sequence[str]) -> tuple[str, ...]:
    """Return the origins of a key, each once. Raises ValueError."""
    origins = tuple(dict.fromkeys(map(read_origin, texts)))
    if not 1 <= len(origins) <= ORIGINS_MAX:
        raise ValueError(f"a publishable key has 1 to {ORIGINS_MAX} origins, not {len(origins)}")
    return origins
