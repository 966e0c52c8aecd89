"""What a file's bytes tell before any row is read: kind, encoding, fingerprint.

One pass over the file, in pieces: a list may be larger than memory.
"""

import codecs
import hashlib
import re
from dataclasses import dataclass
from typing import BinaryIO

from api.cli.trouble import Misuse

PIECE_OCTETS = 1 << 20
HEAD_OCTETS = 1 << 16  # what is looked at for the kind of file and its delimiter
CONTROLS_SHARE_MAX = 0.05  # of a text's characters; compressed data has a tenth and more

ZIP = b"PK\x03\x04"
OLE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
OLE_ENCRYPTED = "EncryptedPackage".encode("utf-16-le")

# how a file begins -> what to tell whoever gave it to us
NOT_OURS = {
    b"\x1f\x8b": "is compressed; unpack it first (gunzip)",
    b"BZh": "is compressed; unpack it first (bunzip2)",
    b"\xfd7zXZ": "is compressed; unpack it first (unxz)",
    b"\x28\xb5\x2f\xfd": "is compressed; unpack it first (unzstd)",
    b"%PDF": "is a PDF; save the list as CSV or XLSX",
    b"PAR1": "is a Parquet file; save the list as CSV or NDJSON",
}

BOMS = (  # UTF-32 before UTF-16, whose mark it begins with
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
UNDEFINED_IN_1252 = frozenset(b"\x81\x8d\x8f\x90\x9d")
CONTROLS = re.compile(rb"[\x00-\x08\x0e-\x19\x1b-\x1f\x7f]")  # less tab, line ends, FF and ^Z


class BadList(Misuse):
    """A file that is no list of addresses, and what to do about it."""


@dataclass(frozen=True, slots=True)
class Survey:
    """What the bytes say. `encoding` means nothing where `zipped`."""

    octets: int
    sha256: str
    head: bytes
    encoding: str
    bom: bool

    @property
    def zipped(self) -> bool:
        return self.head.startswith(ZIP)

    @property
    def sample(self) -> str:
        """The beginning as text; its last line may be cut off."""
        decoder = codecs.getincrementaldecoder(self.encoding)("replace")
        return decoder.decode(self.head)

    @property
    def sample_is_all(self) -> bool:
        return len(self.head) == self.octets


def survey(file: BinaryIO, name: str) -> Survey:
    """Read the whole file once; raise BadList for what no list can be."""
    digest = hashlib.sha256()
    utf8 = codecs.getincrementaldecoder("utf-8")()
    octets, head, is_utf8, is_1252 = 0, b"", True, True
    file.seek(0)
    while piece := file.read(PIECE_OCTETS):
        head = head or piece[:HEAD_OCTETS]
        octets += len(piece)
        digest.update(piece)
        is_1252 = is_1252 and not UNDEFINED_IN_1252.intersection(piece)
        is_utf8 = is_utf8 and _decodes(utf8, piece)
    is_utf8 = is_utf8 and _decodes(utf8, b"", final=True)
    _refuse(head, name)
    bom = next((encoding for mark, encoding in BOMS if head.startswith(mark)), None)
    encoding = bom or _wide(head) or _narrow(is_utf8, is_1252)
    if not head.startswith(ZIP):
        _refuse_binary(head, encoding, name)
    return Survey(octets, digest.hexdigest(), head, encoding, bom is not None)


def _decodes(decoder: codecs.IncrementalDecoder, piece: bytes, *, final: bool = False) -> bool:
    try:
        decoder.decode(piece, final)
    except UnicodeDecodeError:
        return False
    return True


def _refuse(head: bytes, name: str) -> None:
    if not head.strip():
        raise BadList(f"{name} is empty; it takes a list with one address a row")
    if head.startswith(OLE):
        if OLE_ENCRYPTED in head:
            raise BadList(f"{name} is protected by a password; save it without one")
        raise BadList(f"{name} is in an old Office format; save it as XLSX or CSV")
    for mark, advice in NOT_OURS.items():
        if head.startswith(mark):
            raise BadList(f"{name} {advice}")


def _wide(head: bytes) -> str | None:
    """UTF-16 without a mark: in Western text every other octet is zero."""
    half = len(head) // 2
    if head[1::2].count(0) > half * 0.7 and head[0::2].count(0) < half * 0.1:
        return "utf-16-le"
    if head[0::2].count(0) > half * 0.7 and head[1::2].count(0) < half * 0.1:
        return "utf-16-be"
    return None


def _narrow(is_utf8: bool, is_1252: bool) -> str:
    """UTF-8 where it is; else what Windows writes; else what takes any octet."""
    if is_utf8:
        return "utf-8"
    return "cp1252" if is_1252 else "latin-1"


def _refuse_binary(head: bytes, encoding: str, name: str) -> None:
    if encoding.startswith(("utf-16", "utf-32")):
        return
    controls = len(CONTROLS.findall(head))
    if b"\0" in head or controls > len(head) * CONTROLS_SHARE_MAX:
        raise BadList(f"{name} is no text but binary; it takes CSV, TSV, XLSX, NDJSON or lines")
