"""Reads a data package of lists: a tar archive whose manifest is signed. Pure: octets in, files out.

The first member is the manifest: the version (a date), and for each file its octets, rows
and SHA-256. The second is the manifest's Ed25519 signature (RFC 8032). Nothing after them
is looked at before the signature is verified, and no name in the archive becomes a path:
only the names that the product knows are taken. `dev/lists` makes packages.
"""

import gzip
import hashlib
import io
import re
import tarfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from datetime import date

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from .lists import FILES, VERSION_FILE

FORMAT = 1  # another one would be read wrongly; a new file in a package is no new format
MANIFEST = "manifest.json"
SIGNATURE = "manifest.sig"

PACKAGE_OCTETS_MAX = 16 * 1024 * 1024  # today it has 0.5 million
UNPACKED_OCTETS_MAX = 64 * 1024 * 1024  # today 1.2 million
PLAIN_NAME = re.compile(r"[A-Za-z0-9_]+(\.[a-z]+)?")
BLOCK = tarfile.BLOCKSIZE  # a header; contents are padded to it
AGAIN = "download it again"
DAMAGED = f"it is cut short, damaged or no package of lists; {AGAIN}"


class BadPackage(Exception):
    """A package cannot be used. The message is one line: what is wrong, and what to do."""


class ListedFile(msgspec.Struct, frozen=True):
    """What the manifest says of a file."""

    octets: int
    rows: int
    sha256: str


class Manifest(msgspec.Struct, frozen=True):
    """The signed part of a package, as JSON. Unknown fields are ignored."""

    format: int
    version: str
    files: dict[str, ListedFile]


class ListPackage(msgspec.Struct, frozen=True):
    """A package whose signature and checksums are right."""

    version: str
    files: Mapping[str, bytes]


def read_package(octets: bytes, keys: Iterable[bytes]) -> ListPackage:
    """Verify a package by any of the public `keys`, and return its lists. Raises BadPackage."""
    members = _members(octets)
    text, signature = _next(members, MANIFEST), _next(members, SIGNATURE)
    if not any(_is_signed(text, signature, key) for key in keys):
        raise BadPackage(
            "its signature is not by a key that is trusted here; take a package from the publisher "
            "of this mailprobe, or set MAILPROBE_LISTS_KEY to the public key of who made it"
        )
    manifest = _manifest(text)
    files = {}
    for name, content in members:
        if name not in manifest.files or name in files:
            raise BadPackage(f"it holds {name!r}, which its manifest does not name; {AGAIN}")
        _check_file(name, content, manifest.files[name])
        files[name] = content
    for name in (*manifest.files, *FILES):
        if name not in files:
            raise BadPackage(f"{name} is missing in it; {AGAIN}")
    if files[VERSION_FILE] != f"{manifest.version}\n".encode():
        raise BadPackage(f"{VERSION_FILE} is not the version of its manifest; it was made wrongly")
    return ListPackage(manifest.version, {name: files[name] for name in FILES})


def rows_of(content: bytes) -> list[bytes]:
    """The lines of a list, without comments and empty ones."""
    return [line for line in content.splitlines() if line.strip() and not line.startswith(b"#")]


def _members(octets: bytes) -> Iterator[tuple[str, bytes]]:
    """The archive's files in their order, each read when it is asked for.

    Only plain headers are read (POSIX ustar). Longer ones could ask for much memory or time
    before the signature is verified.
    """
    unpacked, at = _unpacked(octets), 0
    while any(head := unpacked[at : at + BLOCK]):
        try:
            member = tarfile.TarInfo.frombuf(head, "ascii", "strict")
        except (tarfile.TarError, ValueError):
            raise BadPackage(DAMAGED) from None
        if member.type != tarfile.REGTYPE:
            raise BadPackage(f"{member.name!r} in it is not a regular file; {AGAIN}")
        content = unpacked[at + BLOCK : at + BLOCK + max(member.size, 0)]
        if len(content) != member.size:
            raise BadPackage(DAMAGED)
        yield member.name, content
        at += BLOCK + -(-member.size // BLOCK) * BLOCK


def _unpacked(octets: bytes) -> bytes:
    if len(octets) > PACKAGE_OCTETS_MAX:
        raise BadPackage(f"it has more than {PACKAGE_OCTETS_MAX >> 20} MiB")
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(octets)) as packed:
            unpacked = packed.read(UNPACKED_OCTETS_MAX + 1)
    except (OSError, EOFError, zlib.error):
        raise BadPackage(DAMAGED) from None
    if len(unpacked) > UNPACKED_OCTETS_MAX:
        raise BadPackage(f"it has more than {UNPACKED_OCTETS_MAX >> 20} MiB when unpacked")
    return unpacked


def _next(members: Iterator[tuple[str, bytes]], expected: str) -> bytes:
    name, content = next(members, ("", b""))
    if name != expected:
        raise BadPackage(f"it is not a package of lists: {expected} is not where it should be")
    return content


def _is_signed(text: bytes, signature: bytes, key: bytes) -> bool:
    try:
        Ed25519PublicKey.from_public_bytes(key).verify(signature, text)
    except InvalidSignature:
        return False
    return True


def _manifest(text: bytes) -> Manifest:
    try:
        manifest = msgspec.json.decode(text, type=Manifest)
        if date.fromisoformat(manifest.version).isoformat() != manifest.version:
            raise ValueError(f"its version is {manifest.version!r}, and not a day as YYYY-MM-DD")
    except (msgspec.MsgspecError, ValueError) as error:
        raise BadPackage(f"its manifest was made wrongly: {error}") from None
    if manifest.format != FORMAT:
        raise BadPackage(
            f"its format is {manifest.format} and this version reads {FORMAT}; upgrade mailprobe"
        )
    for name in manifest.files:
        if not PLAIN_NAME.fullmatch(name):
            raise BadPackage(f"its manifest names {name!r}, which is not a plain name of a file")
    return manifest


def _check_file(name: str, content: bytes, listed: ListedFile) -> None:
    found = ListedFile(len(content), len(rows_of(content)), hashlib.sha256(content).hexdigest())
    if found != listed:
        raise BadPackage(f"{name} in it is damaged: its checksum is another; {AGAIN}")
