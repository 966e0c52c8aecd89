"""Inspects a file's bytes before any row is read: kind, encoding, fingerprint.

One pass over the file, in pieces: a list may be larger than memory.
"""

import codecs
import hashlib
import re
from typing import BinaryIO

from msgspec import Struct

from ..errors import Misuse
from ..terminal import plain
from .encodings import SINGLE, Octets, guess

PIECE_OCTETS = 1 << 20
HEAD_OCTETS = 1 << 16  # inspected for the kind of file and its delimiter
CONTROLS_SHARE_MAX = 0.05  # share of a text's characters; compressed data has 10 % or more

END_MARK = "\x1a"  # of a file of DOS and CP/M
ZIP = b"PK\x03\x04"
OLE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
OLE_ENCRYPTED = "EncryptedPackage".encode("utf-16-le")

# a file's first bytes -> the error message
NOT_OURS = {
    b"\x1f\x8b": "is compressed twice; unpack it first (gunzip)",
    b"BZh": "is compressed; unpack it first (bunzip2)",
    b"\xfd7zXZ": "is compressed; unpack it first (unxz)",
    b"\x28\xb5\x2f\xfd": "is compressed; unpack it first (unzstd)",
    b"%PDF": "is a PDF; save the list as CSV or XLSX",
    b"PAR1": "is a Parquet file; save the list as CSV or NDJSON",
    b"SQLite format 3": "is a database; export the list as CSV",
    b"{\\rtf": "is a text document; save the list as CSV or XLSX",
}

BOMS = (  # UTF-32 first: its mark begins with that of UTF-16
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
CONTROLS = re.compile(rb"[\x00-\x08\x0e-\x19\x1b-\x1f\x7f]")  # without tab, line ends, FF and ^Z


class BadList(Misuse):
    """A file that cannot be read as a list; the message says what to do.

    `hint` is the end of the message that names options of the command line: `what` is the
    message for those who have none. `parameter` is the API's query parameter that is missing or wrong.
    """

    def __init__(self, what: str, hint: str = "", parameter: str = "") -> None:
        super().__init__(what + hint)
        self.what, self.hint, self.parameter = what, hint, parameter


class TooManyLines(BadList):
    """A file with more lines than are read."""

    def __init__(self, name: str, lines_max: int) -> None:
        super().__init__(f"{name} has more than {lines_max:,} lines")
        self.lines_max = lines_max


class NoRoom(BadList):
    """The file cannot be read, because the disk for temporary files is full or fails."""

    def __init__(self, what: str, errno: int) -> None:
        super().__init__(what)
        self.errno = errno


class Changed(Misuse):
    """The file was changed between two readings."""


def unquoted_line(line: str) -> str:
    """A line without the quotes around the whole of it; its line end stays."""
    text = line.rstrip("\r\n")
    if len(text) < 2 or not (text[0] == text[-1] == '"'):
        return line
    return text[1:-1].replace('""', '"') + line[len(text) :]


class Survey(Struct, frozen=True):
    """The results of the inspection. `encoding` is meaningless if `zipped`."""

    octets: int
    sha256: str
    head: bytes
    encoding: str
    bom: bool
    errors: str = "strict"
    lines_max: int | None = None  # a file with more is refused where they end
    quoted_lines: bool = False  # each line stands between quotes as a whole
    is_converted: bool = False  # of a text that was made of another one, such as a web page

    @property
    def zipped(self) -> bool:
        return self.head.startswith(ZIP)

    @property
    def sample(self) -> str:
        """The beginning as text; its last line may be cut off."""
        text = codecs.getincrementaldecoder(self.encoding)("replace").decode(self.head)
        if self.sample_is_all:
            text = text.rstrip(END_MARK)
        if not self.quoted_lines:
            return text
        return "".join(map(unquoted_line, text.splitlines(keepends=True)))

    @property
    def sample_is_all(self) -> bool:
        return len(self.head) == self.octets


def survey(
    file: BinaryIO,
    name: str,
    *,
    encoding: str | None = None,
    errors: str = "strict",
    lines_max: int | None = None,
    guesses: bool = False,
) -> Survey:
    """Read the whole file once. Raises BadList for a file that cannot be a list.

    `encoding` and `errors` are command-line options; None detects the encoding. With `guesses`
    the most likely one is taken where none fits, and what it cannot decode is replaced.
    """
    digest = hashlib.sha256()
    seen = Octets()
    octets, head, nul_line, lines = 0, b"", 0, 1
    is_zipped = False
    file.seek(0)
    while piece := file.read(PIECE_OCTETS):
        if not head:
            head = piece[:HEAD_OCTETS]
            is_zipped = head.startswith(ZIP)
        octets += len(piece)
        digest.update(piece)
        if is_zipped:
            continue
        seen.feed(piece)
        if not nul_line and (nul := piece.find(b"\0")) >= 0:
            nul_line = lines + piece.count(b"\n", 0, nul)
        lines += piece.count(b"\n")
        # Text with octets of zero may be UTF-16, where other characters hold a line end's octet.
        if lines_max is not None and lines > lines_max + 1 and not nul_line:
            _refuse(head, name)
            raise TooManyLines(name, lines_max)
    seen.feed(b"", final=True)
    _refuse(head, name)
    if is_zipped:
        return Survey(octets, digest.hexdigest(), head, "utf-8", bom=False)
    bom = next((encoding for mark, encoding in BOMS if head.startswith(mark)), None)
    wide = _wide(head) if encoding is None else None
    if not (bom or wide or encoding or "").startswith(("utf-16", "utf-32")):
        _refuse_binary(head, nul_line, name)
    if guesses and not seen.is_utf8:
        errors = "replace"
    found = _named(encoding, bom) or bom or wide
    if found is None:
        found = _likely(seen) if guesses else _narrow(seen, errors, name)
    if found == "utf-8-sig" and errors == "strict" and not seen.is_utf8:
        raise _not_all_utf8(seen, name)
    whole = Survey(octets, digest.hexdigest(), head, found, bom is not None, errors, lines_max)
    try:
        _ = whole.sample
    except UnicodeError:  # UTF-16 was named, but its byte order mark is missing
        raise BadList(
            f"{name}, line 1, cannot be decoded as {found}",
            "; name another --encoding",
            "encoding",
        ) from None
    return whole


def _named(encoding: str | None, bom: str | None) -> str | None:
    """The encoding of --encoding; a byte order mark is not part of the text."""
    if encoding is None:
        return None
    if bom is not None and bom.startswith(encoding.rpartition("-sig")[0] or encoding):
        return bom
    return encoding


def known_encoding(name: str) -> str:
    """Return the codec that `--encoding` names. Raises Misuse."""
    try:
        codec = codecs.lookup(name)
        " ".encode(codec.name).decode(codec.name)
    except (LookupError, UnicodeError, ValueError, TypeError):
        raise Misuse(
            f"--encoding takes the name of an encoding, such as utf-8, cp1252 or shift_jis, "
            f"not {plain(name)}"
        ) from None
    return codec.name


def _refuse(head: bytes, name: str) -> None:
    if not head.strip():
        raise BadList(f"{name} is empty; a list has one address a row")
    if head.startswith(OLE):
        if OLE_ENCRYPTED in head:
            raise BadList(f"{name} is protected by a password; save it without one")
        raise BadList(f"{name} is in an old Office format; save it as XLSX or CSV")
    for mark, advice in NOT_OURS.items():
        if head.startswith(mark):
            raise BadList(f"{name} {advice}")


def _wide(head: bytes) -> str | None:
    """Detect UTF-16 without a byte order mark: in Western text every other octet is zero."""
    half = len(head) // 2
    if head[1::2].count(0) > half * 0.7 and head[0::2].count(0) < half * 0.1:
        return "utf-16-le"
    if head[0::2].count(0) > half * 0.7 and head[1::2].count(0) < half * 0.1:
        return "utf-16-be"
    return None


def _likely(seen: Octets) -> str:
    """The encoding that fits best, if only most of the file."""
    if seen.is_utf8 or seen.is_nearly_utf8:
        return "utf-8"
    return guess(seen) or "cp1252"


def _narrow(seen: Octets, errors: str, name: str) -> str:
    """UTF-8 if valid, else the detected encoding. Raises BadList if that is uncertain."""
    if seen.is_utf8:
        return "utf-8"
    if seen.is_nearly_utf8:
        if errors == "replace":
            return "utf-8"
        raise _not_all_utf8(seen, name)
    found = guess(seen)
    if found is None:
        raise BadList(
            f"{name}, line {seen.first_invalid_line}: is not UTF-8, and its encoding cannot "
            "be determined; save the list as UTF-8",
            ", or name its encoding with --encoding",
            "encoding",
        )
    if found in SINGLE and seen.valid:
        raise BadList(
            f"{name}, line {seen.first_valid_line}: is UTF-8, and other lines are not (such as "
            f"line {seen.first_invalid_line}); put that right",
            ", or name one with --encoding",
            "encoding",
        )
    return found


def _not_all_utf8(seen: Octets, name: str) -> BadList:
    return BadList(
        f"{name}, line {seen.first_invalid_line}: is not UTF-8, as the rest of the file is; put the "
        "line right",
        ", name another --encoding, or take its faults as \N{REPLACEMENT CHARACTER} "
        "with --errors replace",
        "encoding",
    )


def _refuse_binary(head: bytes, nul_line: int, name: str) -> None:
    controls = len(CONTROLS.findall(head))
    if b"\0" in head or controls > len(head) * CONTROLS_SHARE_MAX:
        raise BadList(
            f"{name} is not text but binary; it takes CSV, TSV, XLSX, JSON, NDJSON or lines"
        )
    if nul_line:
        raise BadList(
            f"{name}, line {nul_line}: holds zero bytes, as a damaged file does; put that right"
        )
