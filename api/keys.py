"""API keys: how they are made, recognised by their form alone, and remembered.

A key is a prefix that tells its kind, 43 base-62 characters (256 random bits)
and six more that hold the CRC-32 of all before. The check sum lets a scanner
tell a leaked key from noise, and us refuse a mistyped or invented one without
asking the store. Only the SHA-256 is kept: what has 256 random bits needs no
slow hash.
"""

import re
import secrets
import zlib
from collections.abc import Callable
from hashlib import sha256
from typing import Literal

from mailprobe.storage.records import KeyKind

Prefix = Literal["sk_live_", "sk_test_", "sk_mgmt_"]
Draw = Callable[[int], int]  # a whole number below the argument, that nobody can guess

ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
SECRET_CHARACTERS = 43  # 62**43 > 2**256
CHECK_CHARACTERS = 6  # 62**6 > 2**32
SHOWN_CHARACTERS = 12

KINDS: dict[str, KeyKind] = {
    "sk_live_": "standard",
    "sk_test_": "standard",  # authenticates the same way; for environments that are not production
    "sk_mgmt_": "provisioning",
}

_FORM = re.compile(r"sk_(?:live|test|mgmt)_[0-9A-Za-z]{49}", re.ASCII)


def mint(prefix: Prefix, draw: Draw = secrets.randbelow) -> str:
    """A new key, to be shown once and never kept."""
    body = prefix + "".join(ALPHABET[draw(62)] for _ in range(SECRET_CHARACTERS))
    return body + _check_sum(body)


def well_formed(text: str) -> bool:
    """Could this be a key of ours? Says nothing on whether it is one."""
    if not _FORM.fullmatch(text):
        return False
    return text[-CHECK_CHARACTERS:] == _check_sum(text[:-CHECK_CHARACTERS])


def kind_of(key: str) -> KeyKind:
    return KINDS[key[: len("sk_live_")]]


def key_hash(key: str) -> str:
    """What the store knows the key by."""
    return sha256(key.encode()).hexdigest()


def shown(key: str) -> str:
    """As much of the key as may be shown again."""
    return key[:SHOWN_CHARACTERS]


def _check_sum(text: str) -> str:
    number = zlib.crc32(text.encode())
    characters = []
    for _ in range(CHECK_CHARACTERS):
        number, digit = divmod(number, 62)
        characters.append(ALPHABET[digit])
    return "".join(reversed(characters))
