"""Writes a workbook back: adds cells to each row of one sheet and copies everything else."""

import io
import re
import shutil
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import IO, Any, BinaryIO

from msgspec import Struct

from ...results.counts import ResultCounts
from ..text import changed
from .markup import elements_of, escaped
from .package import MACRO_TYPE, PLAIN_TYPE, TYPES_PART
from .sheets import (
    BROKEN,
    RawRow,
    Sheet,
    column_letters,
    column_of,
    without_columns,
)
from .styles import with_colours, with_filter, with_frozen_header
from .summary import SummaryParts
from .whole import check_whole

COMPRESSION = 4  # zlib's level: a third of the default's time for 5 % more octets
ZIP64_OCTETS = 1 << 30  # a part that may exceed 2 GiB needs ZIP64 fields; half of that for safety
FROZEN_MAX = 20  # rows above the list that are frozen with its header
WRITE_OCTETS = 1 << 16
CONTENTS_KEPT = 1_000  # cells made once: most results differ in nothing but the address
CELL_OCTETS = 90  # per added cell, an upper bound of the average

# Characters that XML cannot hold, and text that looks like the escape of one.
UNWRITABLE = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]|_(?=x[0-9A-Fa-f]{4}_)"
)
TAG_NAME = re.compile(rb"<([^\s/>]+)")
ROW_NUMBER = re.compile(rb"\sr\s*=")
SPANS = re.compile(rb'\sspans\s*=\s*(?:"[^"]*"|\'[^\']*\')')
DIMENSION = re.compile(
    rb'(<(?:\w+:)?dimension\s[^>]*?ref\s*=\s*["\'](?:[A-Z]+[0-9]+:)?)([A-Z]+)([0-9]+)'
)
REFERENCE = re.compile(rb'(<(?:\w+:)?(?:row|c)\s(?:[^>]*?\s)?r\s*=\s*["\'][A-Z]*)([0-9]+)')

Value = str | float | bool | None
AddToRow = Callable[[RawRow, Sequence[Value]], None]


class Place(Struct, frozen=True):
    """Where results stand in a sheet: from the column `start`, in place of those of an earlier cleaning."""

    start: int
    earlier: range


@contextmanager
def open_sheet_writer(
    file: BinaryIO,
    sheet: Sheet,
    above: Sequence[RawRow],
    header: RawRow | None,
    names: Sequence[str],
    place: Place,
    counts: ResultCounts,
) -> Iterator[AddToRow]:
    """Yield a function that writes a row with further values.

    `names` are those of the further columns, or of all columns if `header` is None. `counts`
    are those of the summary, complete at the end of the block. The file is a complete
    workbook, read once more, when the block has ended without an error. Raises Changed if
    the source was changed, and NotAWorkbook if the result is not whole.
    """
    package = sheet.package
    around = sheet.around
    stop = place.start + len(names) if header is not None else len(names)
    letters = [column_letters(position) for position in range(max(stop, around.columns))]
    moved = 0 if header is not None else 1
    infos = package.zip.infolist()
    position = next(n for n, info in enumerate(infos) if info.filename == sheet.entry.part)
    with _changed_if_broken(sheet):
        summary = SummaryParts(package)
        styles, colours = with_colours(package.styles_octets())
    cells = _Cells(around.prefix, letters, colours)

    def copy(info: zipfile.ZipInfo, out: zipfile.ZipFile) -> None:
        if colours and info.filename == package.styles_part:
            out.writestr(_fresh(info), styles, compresslevel=COMPRESSION)
        else:
            _copy(package.zip, info, out, summary)

    def add(raw: RawRow, values: Sequence[Value], *, are_names: bool = False) -> None:
        if raw.octets:
            row = without_columns(raw, place.earlier, place.start) if place.earlier else raw
            added = cells.of(raw.number + moved, values, place.start, are_names=are_names)
            stream.write(_row_with(row, added, moved))

    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=COMPRESSION) as out:
        first_row = header.number if header is not None else (above[-1].number + 1 if above else 1)
        with _changed_if_broken(sheet):
            for info in infos[:position]:
                copy(info, out)
        with _opened(out, infos[position], around.rows * len(names)) as stream:
            head = _with_width(around.head, stop, moved)
            stream.write(with_frozen_header(head, first_row) if first_row <= FROZEN_MAX else head)
            for raw in above:
                stream.write(raw.octets)
            if header is not None:
                add(header, names, are_names=True)
            else:
                stream.write(cells.row_of_names(first_row, names))
            yield add
            area = f"A{first_row}:{letters[-1]}{around.last_row + moved}"
            stream.write(with_filter(around.tail, area, letters[-1]))
        with _changed_if_broken(sheet):
            for info in infos[position + 1 :]:
                copy(info, out)
            sheet.check()
        summary.write(out, counts)
    check_whole(file)


class _Cells:
    """The XML of added cells, with the prefix of the sheet's elements."""

    def __init__(self, prefix: str, letters: Sequence[str], colours: Mapping[str, int]) -> None:
        self._prefix = prefix
        self._heads = [f'<{prefix}c r="{letter}' for letter in letters]

        @lru_cache(maxsize=CONTENTS_KEPT, typed=True)
        def content(value: Value, is_name: bool) -> str:
            return _content(prefix, value, {} if is_name else colours)

        self._content = content

    def of(
        self, number: int, values: Sequence[Value], first: int, *, are_names: bool = False
    ) -> bytes:
        """The cells of the row `number`, from the column `first` on."""
        return "".join(
            f"{head}{number}{self._content(value, are_names)}"
            for head, value in zip(self._heads[first:], values, strict=False)
            if value is not None and value != ""
        ).encode()

    def row_of_names(self, number: int, names: Sequence[str]) -> bytes:
        """A header of its own, for a list without one."""
        cells = self.of(number, names, 0, are_names=True)
        return b'<%brow r="%d">%b</%brow>' % (
            self._prefix.encode(),
            number,
            cells,
            self._prefix.encode(),
        )


def _content(prefix: str, value: Value, colours: Mapping[str, int]) -> str:
    """A cell's XML after the reference. Text is always text, whatever it looks like."""
    if isinstance(value, bool):
        return f'" t="b"><{prefix}v>{value:d}</{prefix}v></{prefix}c>'
    if isinstance(value, int | float):
        return f'"><{prefix}v>{value!r}</{prefix}v></{prefix}c>'
    text = value or ""
    style = f' s="{colours[text]}"' if text in colours else ""
    space = ' xml:space="preserve"' if text != text.strip() else ""
    return (
        f'"{style} t="inlineStr"><{prefix}is><{prefix}t{space}>{_escaped(text)}</{prefix}t></{prefix}is>'
        f"</{prefix}c>"
    )


@contextmanager
def _changed_if_broken(sheet: Sheet) -> Iterator[None]:
    """Raise Changed if a part of the source is broken: it was intact when surveyed. OSErrors pass."""
    try:
        yield
    except OSError:
        raise
    except BROKEN:
        raise changed(sheet.name) from None


@contextmanager
def _opened(out: zipfile.ZipFile, info: zipfile.ZipInfo, cells: int) -> Iterator[IO[bytes]]:
    large = info.file_size + cells * CELL_OCTETS > ZIP64_OCTETS
    with out.open(_fresh(info), "w", force_zip64=large) as entry:
        raw: Any = entry
        with io.BufferedWriter(raw, WRITE_OCTETS) as stream:  # compressing each row costs more
            yield stream


def _fresh(info: zipfile.ZipInfo) -> zipfile.ZipInfo:
    """Return a new entry with another's name, time, compression and attributes."""
    fresh = zipfile.ZipInfo(info.filename, info.date_time)
    fresh.compress_type = (
        info.compress_type if info.compress_type == zipfile.ZIP_STORED else zipfile.ZIP_DEFLATED
    )
    fresh.external_attr = info.external_attr
    fresh.file_size = info.file_size
    return fresh


def _copy(
    source: zipfile.ZipFile, info: zipfile.ZipInfo, out: zipfile.ZipFile, summary: SummaryParts
) -> None:
    """Copy a part; macros are dropped, because an .xlsx file must not contain them."""
    if "vbaProject" in info.filename or summary.replaces(info.filename):
        return
    if info.filename == TYPES_PART or summary.concerns(info.filename):
        octets = source.read(info)
        if b"vbaProject" in octets or MACRO_TYPE in octets:
            octets = _without_macros(octets)
        octets = summary.changed(info.filename, octets)
        out.writestr(_fresh(info), octets, compresslevel=COMPRESSION)
        return
    with source.open(info) as stream, _opened(out, info, 0) as target:
        shutil.copyfileobj(stream, target, 1 << 16)


def _without_macros(octets: bytes) -> bytes:
    """The types or relationships of a workbook without those of its macros."""
    kept, place = [], 0
    for entry in elements_of(octets, "Override", "Relationship"):
        if any("vbaProject" in value for value in entry.attributes.values()):
            kept.append(octets[place : entry.begin])
            place = entry.end
    return b"".join([*kept, octets[place:]]).replace(MACRO_TYPE, PLAIN_TYPE)


def _row_with(raw: RawRow, cells: bytes, moved: int) -> bytes:
    """Return a row's octets with cells appended, and its row numbers increased by `moved`."""
    octets = raw.octets
    tag = octets[raw.begin : raw.content]
    if b"spans" in tag:
        tag = SPANS.sub(b"", tag)
    if ROW_NUMBER.search(tag) is None:  # implied, which is wrong once a row before it is left out
        tag = TAG_NAME.sub(rb'\g<0> r="%d"' % raw.number, tag, count=1)
    body, closing = octets[raw.content : raw.insert], octets[raw.insert :]
    if raw.is_closed and cells:
        name = TAG_NAME.match(tag)
        assert name is not None
        tag, closing = tag[:-2].rstrip() + b">", b"</" + name[1] + b">" + closing
    if moved:
        tag, body = (REFERENCE.sub(_down(moved), each) for each in (tag, body))
    return octets[: raw.begin] + tag + body + cells + closing


def _down(rows: int) -> "Callable[[re.Match[bytes]], bytes]":
    return lambda found: found[1] + b"%d" % (int(found[2]) + rows)


def _with_width(head: bytes, width: int, moved: int) -> bytes:
    """Return the XML before the rows, with the sheet's dimension extended."""

    def wider(found: "re.Match[bytes]") -> bytes:
        position = max(column_of(found[2].decode()), width - 1)
        return found[1] + b"%s%d" % (column_letters(position).encode(), int(found[3]) + moved)

    return DIMENSION.sub(wider, head, count=1)


def _escaped(text: str) -> str:
    if UNWRITABLE.search(text):
        text = UNWRITABLE.sub(lambda found: f"_x{ord(found[0]):04X}_", text)
    return escaped(text)
