"""Messages between a reader process and the process that started it.

Each message is a frame: the length of its body, then the body as MessagePack. Whatever a
file makes of its reader, the starter reads no more than a frame's limit of it.
"""

import os
import struct
from typing import Any, TypeVar

import msgspec

from ..errors import Misuse
from ..listfile.formulas import Formulas
from ..listfile.opening import ReadOptions
from ..results.list_reading import ListReading

# To a forked reader: CPU seconds, whether it is the last.
ORDER = struct.Struct(">I?")
END = struct.Struct(">id")  # from a fork server: a reader's exit code, and its CPU seconds
PAUSE, GO_ON = b"p", b"g"  # to a fork server, for a reader
HEAD = struct.Struct(">I")  # the octets of the body
FRAME_OCTETS_MAX = (1 << 20) + 4096  # of a reader's frame: a chunk of 1 MiB, and what is around it
COMMAND_OCTETS_MAX = 1 << 26  # of a starter's frame: the rows of a chunk with their results
RECEIVE_OCTETS = 1 << 16
TRACEBACK_CHARACTERS_MAX = 8_000
MESSAGE_CHARACTERS_MAX = 2_000
HINT_CHARACTERS_MAX = 1_000


class BadFrame(Exception):
    """What was received is not a frame, or a longer one than the limit."""


class TooManyRows(Misuse):
    """A list with more rows than its owner may have."""

    fix = "Split the list, or ask for a higher tier."


# From the starter


class ReadUpload(msgspec.Struct, frozen=True, tag=True):
    """Read a list into chunks: `Chunk`, then `Loaded`."""

    name: str
    ending: str
    reading: ReadOptions
    rows_max: int


class ReadAddresses(msgspec.Struct, frozen=True, tag=True):
    """Read a list's addresses: `RowAddresses`, then `ListRead`."""

    name: str
    ending: str
    reading: ReadOptions
    output: str | None  # its path: the ending sets the format
    each: bool = False  # see Looks


class ReadRows(msgspec.Struct, frozen=True, tag=True):
    """Read the rows of a list: `ListedRows`, then `RowsRead`."""

    name: str
    ending: str
    reading: ReadOptions


class Looks(msgspec.Struct, frozen=True):
    """Which columns the results have, and how the rows are written."""

    suggest: bool = False  # a column with the corrected address
    fields: list[str] | None = None  # None: all
    come_first: bool = False  # before the list's own columns, where rows are text
    each: bool = False  # a row for each address of a cell
    formulas: Formulas = "guard"


class WriteRows(msgspec.Struct, frozen=True, tag=True):
    """Write the rows that were read with their results: `OutputWritten`.

    After `Ready` three open files follow: the output, the journal, and for each address of the rows
    the offset of its answer in the journal.
    """

    journal: str  # its name
    rows: int
    lights: list[str] | None
    has_blank: bool
    dedupe: bool
    looks: "Looks"


class MakeWorkbook(msgspec.Struct, frozen=True, tag=True):
    """Make a workbook in an open file, of the rows that follow: `OutputWritten`."""

    names: list[str]
    own: int  # columns of the list


class BookRows(msgspec.Struct, frozen=True, tag=True):
    """Rows of the workbook: the list's cells, and the values of the result."""

    rows: list[tuple[list[str], list[Any]]]


class BookEnd(msgspec.Struct, frozen=True, tag=True):
    """All rows of the workbook were sent; the counts are for its summary."""

    lights: dict[str, int]
    statuses: dict[str, int]
    reasons: dict[str, int]


Command = ReadUpload | ReadAddresses | ReadRows | WriteRows | MakeWorkbook | BookRows | BookEnd


# From the reader


class Chunk(msgspec.Struct, frozen=True, tag=True):
    """See ListChunk."""

    place: int
    units: int
    rows: str


class Loaded(msgspec.Struct, frozen=True, tag=True):
    """All chunks were sent."""

    columns: list[str]
    rows: int
    addresses: int
    blank_rows: int  # without an address
    reading: ListReading = ListReading()


class RowAddresses(msgspec.Struct, frozen=True, tag=True):
    """The next rows: the address of each of their cells with addresses, or "" without one.

    `more` has the further addresses of such a cell, by its place in `texts`.
    """

    texts: list[str]
    more: dict[int, list[str]] = {}


class ListRead(msgspec.Struct, frozen=True, tag=True):
    """All rows were read."""

    octets: int
    sha256: str
    remarks: list[str]
    columns: list[str] = []  # that were verified, for people
    unwrapped: int = 0  # rows
    doubtful: int = 0


class ListedRow(msgspec.Struct, frozen=True, array_like=True):
    """A row of a list: its address or "", its cells, and its results of an earlier cleaning.

    `is_of_several`: it has more addresses, of which this is the first.
    """

    address: str
    cells: list[str]
    results: dict[str, str]
    is_of_several: bool


class ListedRows(msgspec.Struct, frozen=True, tag=True):
    """The next rows, and the names of the columns as far as they are known."""

    columns: list[str]
    rows: list[ListedRow]


class RowsRead(msgspec.Struct, frozen=True, tag=True):
    """All rows were sent."""


class Ready(msgspec.Struct, frozen=True, tag=True):
    """The open files may come: one that comes with other octets could be lost."""


class OutputWritten(msgspec.Struct, frozen=True, tag=True):
    """The output is complete."""

    rows: int


class Refused(msgspec.Struct, frozen=True, tag=True):
    """The input is refused, in one line for its owner."""

    message: str
    is_misuse: bool = True
    fix: str | None = None
    hint: str = ""  # of a BadList, as the next
    parameter: str = ""


class Failed(msgspec.Struct, frozen=True, tag=True):
    """A file of this machine could not be read or written."""

    errno: int


class Broken(msgspec.Struct, frozen=True, tag=True):
    """A bug."""

    traceback: str


Report = (
    Chunk
    | Loaded
    | RowAddresses
    | ListRead
    | ListedRows
    | RowsRead
    | Ready
    | OutputWritten
    | Refused
    | Failed
    | Broken
)

M = TypeVar("M")

_encode = msgspec.msgpack.Encoder().encode
decode_command = msgspec.msgpack.Decoder(Command).decode
_decode_report = msgspec.msgpack.Decoder(Report).decode


def frame_of(message: Command | Report) -> bytes:
    """The message as octets."""
    body = _encode(message)
    return HEAD.pack(len(body)) + body


def decode_report(body: bytes) -> Report:
    """Raises BadFrame."""
    try:
        report: Report = _decode_report(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadFrame(str(error)) from None
    return report


class FrameBuffer:
    """Cuts what was received into the bodies of frames."""

    def __init__(self, octets_max: int) -> None:
        self._octets_max = octets_max
        self._octets = bytearray()

    @property
    def is_begun(self) -> bool:
        """Whether a part of a frame is there."""
        return bool(self._octets)

    def feed(self, octets: bytes) -> None:
        self._octets += octets

    def next_body(self) -> bytes | None:
        """The next body; None until it is complete. Raises BadFrame."""
        if len(self._octets) < HEAD.size:
            return None
        (length,) = HEAD.unpack_from(self._octets)
        if length > self._octets_max:
            raise BadFrame(f"a frame of {length:,} octets")
        end = HEAD.size + length
        if len(self._octets) < end:
            return None
        body = bytes(self._octets[HEAD.size : end])
        del self._octets[:end]
        return body


class Channel:
    """A socket with frames in both directions; its calls block."""

    def __init__(self, descriptor: int, octets_max: int) -> None:
        self.descriptor = descriptor
        self._buffer = FrameBuffer(octets_max)

    def send(self, message: Command | Report) -> None:
        """Raises OSError once the other side is gone."""
        view = memoryview(frame_of(message))
        while view:
            view = view[os.write(self.descriptor, view) :]

    def receive(self) -> bytes | None:
        """The body of the next frame; None once the other side is gone. Raises BadFrame."""
        while (body := self._buffer.next_body()) is None:
            try:
                octets = os.read(self.descriptor, RECEIVE_OCTETS)
            except ConnectionResetError:
                return None
            if not octets:
                return None
            self._buffer.feed(octets)
        return body
