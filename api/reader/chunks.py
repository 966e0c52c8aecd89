"""Reads a list into the chunks that are stored, in the reader process."""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from errno import ENOSPC
from hashlib import blake2b

from ..listfile.bounds import ROW_OCTETS_MAX
from ..listfile.opening import List, ListFile, ListRow, read_list
from ..listfile.survey import BadList, NoRoom, TooManyLines
from ..results.list_reading import ListReading
from ..results.stored_row import FurtherAddress, StoredRow, blank_rows_in, encode_row
from .frames import Channel, Chunk, Loaded, ReadUpload, TooManyRows

SHEETS_SHOWN = 50  # of a workbook, to choose from
TITLE_CHARACTERS_MAX = 255  # spreadsheets take 31; what is stored is read with the list's progress
CHUNK_UNITS = 100  # addresses of a chunk: as many as are claimed together
CHUNK_ROWS_MAX = 2_000  # of them and rows without a new address
CHUNK_OCTETS_MAX = 1 << 20  # a frame's, and read at once
# A row's cells, its addresses again with their places: those of a cell are as many as have room.
LINE_OCTETS_MAX = 6 * ROW_OCTETS_MAX + 100
SEEN_CACHE_KIB = 16 * 1024
# What a list takes in the store, of the octets that were received: a short compressed file must
# not fill the disk. No plain text takes more; the worst is a short address.
STORED_TIMES_MAX = 20
STORED_OCTETS_MIN = 1 << 20  # a short list may take so much all the same


def send_chunks(channel: Channel, descriptor: int, order: ReadUpload) -> None:
    """Send the chunks of a list, then what it has in all.

    Raises BadList, TooManyRows; OSError, also if there is no room for temporary files.
    """
    try:
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            opened = ListFile(file, order.name, order.ending)
            with read_list(opened, order.reading) as source, _seen_addresses() as seen:
                loaded = _send_chunks(channel, source, seen, order, os.fstat(descriptor).st_size)
    except TooManyLines as error:
        raise TooManyRows(
            f"The list has more than {error.lines_max:,} lines, which {order.rows_max:,} rows, the "
            "limit of your tier, do not have"
        ) from None
    except NoRoom as error:
        raise OSError(error.errno, os.strerror(error.errno)) from None
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_FULL:
            raise
        raise OSError(ENOSPC, os.strerror(ENOSPC)) from None
    channel.send(loaded)  # the last: another file may follow


def _send_chunks(
    channel: Channel, source: List, seen: "SeenAddresses", order: ReadUpload, received: int
) -> Loaded:
    octets_left = max(STORED_TIMES_MAX * received, STORED_OCTETS_MIN)
    rows = addresses = blank_rows = 0
    for chunk in _chunks(source, seen, order.rows_max):
        octets_left -= len(chunk.rows.encode())
        if octets_left < 0:
            raise BadList(
                f"{order.name} takes more than {STORED_TIMES_MAX} times its own size to "
                "store; send it as CSV that is not compressed"
            )
        rows += chunk.rows.count("\n")
        addresses += chunk.units
        blank_rows += blank_rows_in(chunk.rows)
        channel.send(chunk)
    names = source.named_members or ["email"]
    return Loaded(names, rows, addresses, blank_rows, _reading_of(source))


def _reading_of(source: List) -> ListReading:
    notes, content = source.content.notes, source.content
    found, sheet, dialect = source.survey, source.sheet, source.dialect
    is_text = source.manner.kind == "csv" and not found.is_converted
    shown = [] if sheet is None else [each.title for each in sheet.package.sheets if each.visible]
    return ListReading(
        source.verified_columns,
        [*content.positions],
        [*content.sources],
        source.proposed,
        notes.unwrapped.rows,
        notes.doubtful.rows,
        notes.several.rows,
        encoding=found.encoding if is_text else "",
        delimiter=dialect.delimiter if dialect and is_text else "",
        sheet="" if sheet is None else sheet.entry.title[:TITLE_CHARACTERS_MAX],
        sheets=[each for each in shown if len(each) <= TITLE_CHARACTERS_MAX][:SHEETS_SHOWN],
    )


def _chunks(source: List, seen: "SeenAddresses", rows_max: int) -> Iterator[Chunk]:
    place = units = octets = 0
    lines: list[str] = []
    for number, row in enumerate(source.rows(), 1):
        if number > rows_max:
            raise TooManyRows(f"The list has more than {rows_max:,} rows, the limit of your tier")
        found: list[FurtherAddress] = []
        for column, reading in enumerate(row.readings):
            for address in reading.addresses:
                at = seen.place_of(address, (place, units))
                is_new = at == (place, units)
                found.append(FurtherAddress(column, *at, address if is_new else None))
                units += is_new
        line = encode_row(_stored(row, found))
        lines.append(line)
        octets += len(line) if line.isascii() else len(line.encode())
        is_full = units >= CHUNK_UNITS or len(lines) == CHUNK_ROWS_MAX
        if is_full or octets > CHUNK_OCTETS_MAX - LINE_OCTETS_MAX:  # another row may not fit
            yield Chunk(place, units, "".join(lines))
            place, units, octets = place + 1, 0, 0
            lines.clear()
    if lines:
        yield Chunk(place, units, "".join(lines))


def _stored(row: ListRow, found: list[FurtherAddress]) -> StoredRow:
    cells = row.cells() or [row.address]
    filled = len(cells)
    while filled and not cells[filled - 1]:
        filled -= 1
    if filled < len(cells):
        cells = cells[:filled]
    if found and found[0].column == 0:
        first, *further = found
        return StoredRow(first.place, first.number, first.address, cells, further)
    return StoredRow(None, None, None, cells, found)


class SeenAddresses:
    """Where each address of a list was first, on disk: a list has more than fit in memory."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        db.execute(f"PRAGMA cache_size = -{SEEN_CACHE_KIB}")
        db.execute("CREATE TABLE seen (hash BLOB PRIMARY KEY, place INT, number INT) WITHOUT ROWID")

    def place_of(self, address: str, here: tuple[int, int]) -> tuple[int, int]:
        """Where the address was first: here, if it is new."""
        digest = blake2b(address.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        new = self._db.execute("INSERT OR IGNORE INTO seen VALUES (?, ?, ?)", (digest, *here))
        if new.rowcount:
            return here
        (place, number) = self._db.execute(
            "SELECT place, number FROM seen WHERE hash = ?", (digest,)
        ).fetchone()
        return place, number


@contextmanager
def _seen_addresses() -> Iterator[SeenAddresses]:
    with closing(sqlite3.connect("", isolation_level=None)) as db:
        db.execute("BEGIN")
        yield SeenAddresses(db)
