"""Packages of lists as the tests need them: good ones, and ones that nobody should install."""

import gzip
import io
import tarfile
from base64 import b64encode
from collections.abc import Mapping
from functools import cache
from types import MappingProxyType

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from dev.lists.packing import archive, manifest_of
from mailprobe.engine.lists.lists import DATA, FILES

KEY = Ed25519PrivateKey.from_private_bytes(b"k" * 32)
OTHER_KEY = Ed25519PrivateKey.from_private_bytes(b"o" * 32)
PUBLIC_KEY = b64encode(KEY.public_key().public_bytes_raw()).decode()
SHIPPED = {name: (DATA / name).read_bytes() for name in FILES}
NEXT = "2090-01-01"
FRESH = b"fresh-throwaway.example"


def files_of(version: str = NEXT, *throwaways: bytes) -> dict[str, bytes]:
    """The shipped lists as of another day, with further throwaways at the end."""
    more = b"".join(name + b"\n" for name in throwaways)
    return {
        **SHIPPED,
        "disposable.txt": SHIPPED["disposable.txt"] + more,
        "VERSION": f"{version}\n".encode(),
    }


def package(files: Mapping[str, bytes], key: Ed25519PrivateKey = KEY) -> bytes:
    files = dict(files)
    return archive(files, manifest_of(files, files["VERSION"].decode().strip()), key, level=1)


def good(
    changes: Mapping[str, bytes] = MappingProxyType({}), key: Ed25519PrivateKey = KEY
) -> bytes:
    """A package of the next day, with some files changed."""
    return package({**files_of(), **changes}, key) if changes or key != KEY else _unchanged()


@cache
def _unchanged() -> bytes:
    return package(files_of())


def members_of(octets: bytes) -> list[tuple[tarfile.TarInfo, bytes]]:
    with tarfile.open(fileobj=io.BytesIO(octets), mode="r:gz") as tar:
        files = [(member, tar.extractfile(member)) for member in tar]
        return [(member, file.read()) for member, file in files if file is not None]


def packed(members: list[tuple[tarfile.TarInfo, bytes]]) -> bytes:
    """An archive of these members, whatever their manifest says."""
    out = io.BytesIO()
    with tarfile.open(
        fileobj=out, mode="w:gz", compresslevel=1, format=tarfile.USTAR_FORMAT
    ) as tar:
        for member, content in members:
            tar.addfile(member, io.BytesIO(content))
    return out.getvalue()


def packed_head(size: int) -> bytes:
    """An archive that promises a manifest of this size."""
    head = tarfile.TarInfo("manifest.json")
    head.size = size
    return gzip.compress(head.tobuf(tarfile.GNU_FORMAT))


def with_member(name: str, content: bytes = b"x", kind: bytes = tarfile.REGTYPE) -> bytes:
    """A good package with one more member at its end."""
    entry = tarfile.TarInfo(name)
    entry.size = len(content) if kind == tarfile.REGTYPE else 0
    entry.type, entry.linkname = kind, "/etc/passwd" if kind != tarfile.REGTYPE else ""
    return packed([*members_of(good()), (entry, content)])


def without(file: str) -> bytes:
    return packed([each for each in members_of(good()) if each[0].name != file])


def damaged(file: str) -> bytes:
    """A package with one bit of a file changed."""
    return packed(
        [
            (member, bytes([content[0] ^ 1]) + content[1:] if member.name == file else content)
            for member, content in members_of(good())
        ]
    )


def of_format(number: int) -> bytes:
    files = files_of()
    manifest = manifest_of(files, NEXT)
    return archive(files, type(manifest)(number, NEXT, manifest.files), KEY, level=1)


def bomb() -> bytes:
    """Few octets that unpack to many."""
    return gzip.compress(bytes(65 * 1024 * 1024), compresslevel=9)
