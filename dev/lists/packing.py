"""Makes the data package: one archive of the lists, with a signed manifest.

The same lists and key give the same octets. engine/lists/package.py reads it.
"""

import gzip
import hashlib
import io
import os
import tarfile
from base64 import b64decode, b64encode
from pathlib import Path

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from mailprobe.engine.lists.lists import FILES, VERSION_FILE
from mailprobe.engine.lists.package import (
    FORMAT,
    MANIFEST,
    SIGNATURE,
    ListedFile,
    Manifest,
    rows_of,
)

KEY_VARIABLE = "LISTS_SIGNING_KEY"


def pack(folder: Path, key: Ed25519PrivateKey) -> bytes:
    """Return the package of a folder's lists. Raises OSError if one is missing."""
    files = {name: (folder / name).read_bytes() for name in FILES}
    version = files[VERSION_FILE].decode("ascii").strip()
    return archive(files, manifest_of(files, version), key)


def manifest_of(files: dict[str, bytes], version: str) -> Manifest:
    """What is signed: the version, and the length, rows and checksum of each file."""
    listed = {
        name: ListedFile(len(content), len(rows_of(content)), hashlib.sha256(content).hexdigest())
        for name, content in files.items()
    }
    return Manifest(FORMAT, version, listed)


def archive(
    files: dict[str, bytes], manifest: Manifest, key: Ed25519PrivateKey, *, level: int = 9
) -> bytes:
    """The archive: the manifest, its signature, then the files, compressed at this level."""
    text = msgspec.json.format(msgspec.json.encode(manifest), indent=1)
    packed = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=packed, mode="wb", compresslevel=level, mtime=0) as stream,
        tarfile.open(fileobj=stream, mode="w", format=tarfile.USTAR_FORMAT) as tar,
    ):
        for name, content in {MANIFEST: text, SIGNATURE: key.sign(text), **files}.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return packed.getvalue()


def new_key(file: Path) -> str:
    """Write a new private key into a file that nobody else may read. Returns the public key."""
    key = Ed25519PrivateKey.generate()
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(b64encode(key.private_bytes_raw()) + b"\n")
    return public_key(key)


def read_key(text: str) -> Ed25519PrivateKey:
    """Read a private key. Raises ValueError."""
    return Ed25519PrivateKey.from_private_bytes(b64decode(text.strip(), validate=True))


def public_key(key: Ed25519PrivateKey) -> str:
    """The public key in base64, as engine/data/lists.pub and MAILPROBE_LISTS_KEY have it."""
    return b64encode(key.public_key().public_bytes_raw()).decode()
