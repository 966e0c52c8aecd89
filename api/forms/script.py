"""The script of forms: its octets, and the value by which a page pins them.

https://www.w3.org/TR/SRI/: a browser runs a script with an `integrity` only if it has this hash.
"""

import base64
from functools import cache
from hashlib import sha384
from pathlib import Path

OCTETS_GZIPPED_MAX = 4096  # a form must not wait for it


@cache
def script_text() -> str:
    return Path(__file__).with_name("form.js").read_text("utf-8")


@cache
def integrity() -> str:
    """The value of a page's `integrity`."""
    return f"sha384-{base64.b64encode(sha384(script_text().encode()).digest()).decode()}"


def script_tag(base_url: str, key: str) -> str:
    """What a page puts into its HTML. Neither argument holds a character that HTML quotes."""
    return (
        f'<script defer src="{base_url}/form.js" data-key="{key}"\n'
        f'  integrity="{integrity()}" crossorigin="anonymous"></script>'
    )
