"""The scripts of forms: the current one and those of earlier releases, and how a page pins them.

https://www.w3.org/TR/SRI/: a browser runs a script with an `integrity` only if it has this hash.
A page therefore names the script by its hash, and each released one stays under its name: what is
pinned lives through an upgrade. `make described` keeps the current script at a release.
"""

import base64
from functools import cache
from hashlib import sha384
from pathlib import Path

OCTETS_GZIPPED_MAX = 4096  # a form must not wait for it
DIGITS = 16  # of the hash, in a name
KEPT = Path(__file__).with_name("kept")


@cache
def script_text() -> str:
    """The current script, which `/form.js` is."""
    return Path(__file__).with_name("form.js").read_text("utf-8")


def script_name(text: str) -> str:
    """The name of a script by its hash, such as `form.0123456789abcdef.js`."""
    return f"form.{sha384(text.encode()).hexdigest()[:DIGITS]}.js"


@cache
def scripts() -> dict[str, str]:
    """The current script and those that releases had, by name."""
    kept = {path.name: path.read_text("utf-8") for path in KEPT.glob("form.*.js")}
    return {**kept, script_name(script_text()): script_text()}


@cache
def integrity() -> str:
    """The value of a page's `integrity`."""
    return f"sha384-{base64.b64encode(sha384(script_text().encode()).digest()).decode()}"


def script_tag(base_url: str, key: str) -> str:
    """What a page puts into its HTML. Neither argument holds a character that HTML quotes."""
    return (
        f'<script defer src="{base_url}/{script_name(script_text())}" data-key="{key}"\n'
        f'  integrity="{integrity()}" crossorigin="anonymous"></script>'
    )
