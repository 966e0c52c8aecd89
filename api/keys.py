"""API keys: making them, checking their form, hashing them, and noting when they are used.

A key is a prefix that names its kind, 43 base-62 characters (256 random bits), and six more
with the CRC-32 of all before. The checksum lets a scanner recognise a leaked key, and lets
the API refuse a mistyped or invented one without the store. Only the SHA-256 is stored: a
secret of 256 random bits needs no slow hash. Keys that begin with pk_ are publishable: they stand
in web pages, and are good for the checks of forms alone.
"""

import re
import secrets
import zlib
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from hashlib import sha256
from typing import Literal

from mailprobe.storage.contract import KEY_USE_EVERY
from mailprobe.storage.records import Key, KeyKind

Prefix = Literal["sk_live_", "sk_test_", "sk_mgmt_", "pk_live_", "pk_test_"]
Draw = Callable[[int], int]  # an unguessable integer from 0 to below the argument

LABEL_CHARACTERS_MAX = 100
# In Python "$" also matches before a final line end; in JSON Schema it does not.
LABEL = r"^[^\x00-\x1f\x7f-\x9f]+$(?!\n)"
ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
SECRET_CHARACTERS = 43  # 62**43 > 2**256
CHECK_CHARACTERS = 6  # 62**6 > 2**32
SHOWN_CHARACTERS = 12
# Uses noted of a minute: 1 MB. Keys beyond it are noted in the next minute in which they are used.
USES_MAX = 10_000

KINDS: dict[str, KeyKind] = {
    "sk_live_": "standard",
    "sk_test_": "test",
    "sk_mgmt_": "provisioning",
    "pk_live_": "form",
    "pk_test_": "form_test",
}
SECRET, PUBLISHABLE = "sk_", "pk_"  # what every key of the kind begins with

_FORM = re.compile(r"(?:sk_(?:live|test|mgmt)|pk_(?:live|test))_[0-9A-Za-z]{49}", re.ASCII)


def mint(prefix: Prefix, draw: Draw = secrets.randbelow) -> str:
    """Return a new key; show it once and never store it."""
    body = prefix + "".join(ALPHABET[draw(62)] for _ in range(SECRET_CHARACTERS))
    return body + _check_sum(body)


def well_formed(text: str) -> bool:
    """Has the text the form and checksum of a key? The key need not exist."""
    if not _FORM.fullmatch(text):
        return False
    return text[-CHECK_CHARACTERS:] == _check_sum(text[:-CHECK_CHARACTERS])


def kind_of(key: str) -> KeyKind:
    """The kind of a well-formed key."""
    return KINDS[key[: len("sk_live_")]]


def key_hash(key: str) -> str:
    """The SHA-256, in hexadecimal, that the store holds of a key, or of a link's token."""
    return sha256(key.encode()).hexdigest()


def shown(key: str) -> str:
    """The start of the key, which may be shown again."""
    return key[:SHOWN_CHARACTERS]


def _check_sum(text: str) -> str:
    number = zlib.crc32(text.encode())
    characters = []
    for _ in range(CHECK_CHARACTERS):
        number, digit = divmod(number, 62)
        characters.append(ALPHABET[digit])
    return "".join(reversed(characters))


class KeyUses:
    """Keys that were used since the last time they were stored, once a minute, for their owners.

    A request only adds to a set. A killed process loses its last minute of uses, which the next
    hour's make up for.
    """

    def __init__(self) -> None:
        self._pending: set[str] = set()

    def note(self, key: Key, now: datetime) -> None:
        """A request came with this key. Never waits."""
        is_known = key.used_at is not None and now - KEY_USE_EVERY < key.used_at
        if not is_known and len(self._pending) < USES_MAX:
            self._pending.add(key.id)

    async def save(self, store: Callable[[Sequence[str]], Awaitable[None]]) -> None:
        """Have the ids of what was noted since the last time stored. Raises what `store` raises."""
        noted = sorted(self._pending)
        if noted:
            await store(noted)
            self._pending.difference_update(noted)
