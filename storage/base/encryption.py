"""Encryption of secrets that must be read again: AES-GCM, under a key outside the database.

The caller of `open_store` passes the key. Without one it is in a file beside the
database, created once, readable by its owner alone.
"""

import hmac
import os
import secrets
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from ..contract import StoreBroken

KEY_OCTETS = 32  # AES-256
# The check value of the key, which every start compares: a known text that the database keeps encrypted.
CHECK_NAME = "seal"  # in `store_properties`; also the context of the encryption
CHECK_TEXT = b"mailprobe"
NONCE_OCTETS = 12  # NIST SP 800-38D 8.2.2: random nonces suffice for 2**32 messages per key


class Cipher:
    """Encrypts and decrypts octets, bound to a context (the additional authenticated data)."""

    def __init__(self, key: bytes) -> None:
        if len(key) != KEY_OCTETS:
            raise ValueError(f"the secret key has {len(key)} octets, not {KEY_OCTETS}")
        self._key = key
        self._cipher = AESGCM(key)

    def derived_key(self, purpose: str) -> bytes:
        """Another key, for signatures: the same in every process, and of no use for decryption."""
        return hmac.digest(self._key, f"mailprobe {purpose}".encode(), "sha256")

    def close(self, octets: bytes, context: str) -> bytes:
        """Return the encrypted octets, with a random nonce in front."""
        nonce = secrets.token_bytes(NONCE_OCTETS)
        return nonce + self._cipher.encrypt(nonce, octets, context.encode())

    def open(self, encrypted: bytes, context: str) -> bytes:
        """Decrypt; raises StoreBroken if another key or another context was used to encrypt."""
        nonce, rest = encrypted[:NONCE_OCTETS], encrypted[NONCE_OCTETS:]
        try:
            return self._cipher.decrypt(nonce, rest, context.encode())
        except InvalidTag:
            message = "a secret in the database was encrypted with another secret key"
            raise StoreBroken(message) from None


def check_value(cipher: Cipher) -> bytes:
    """Return the value that a database keeps of this key."""
    return cipher.close(CHECK_TEXT, CHECK_NAME)


def is_key_of(cipher: Cipher, value: bytes) -> bool:
    """Whether the check value was made with this key."""
    try:
        return cipher.open(value, CHECK_NAME) == CHECK_TEXT
    except StoreBroken:
        return False


def key_path(database: Path) -> Path:
    """The file beside the database that holds its key."""
    return database.with_name(f"{database.name}.key")


def key_beside(database: Path) -> bytes:
    """Return the key (32 octets) from the file beside the database, created if missing.

    Safe for processes that start together: the file appears complete, and the first wins.
    Raises StoreBroken for a file that holds no key, OSError.
    """
    path = key_path(database)
    if not path.exists():
        _make_key(path)
    key = path.read_bytes()
    if len(key) != KEY_OCTETS:
        raise StoreBroken(f"{path} holds no secret key: {len(key)} octets, not {KEY_OCTETS}")
    return key


def replace_key_beside(database: Path, key: bytes) -> None:
    """Put the key into the file beside the database, in place of another; it is on disk then."""
    path = key_path(database)
    _key_draft(path, key).replace(path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _make_key(path: Path) -> None:
    draft = _key_draft(path, secrets.token_bytes(KEY_OCTETS))
    try:
        os.link(draft, path)
    except FileExistsError:
        pass  # another process was first
    finally:
        draft.unlink()


def _key_draft(path: Path, key: bytes) -> Path:
    """A file beside the key file that holds a key, on disk and for its owner alone."""
    draft = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    file = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        os.write(file, key)
        os.fsync(file)
    finally:
        os.close(file)
    return draft
