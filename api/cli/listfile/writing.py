"""A list written back: its own rows, each with what was found out about its address.

What the list held is written as it was, in every format. What came from outside
can not become a formula: in a workbook every cell is text, and in CSV the name of
a mail host that begins like a formula gets an apostrophe before it.
"""

import csv
import io
import itertools
import os
import secrets
import stat
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from api.cli.lights import light_of
from api.cli.listfile.opening import TABLE_ENDINGS, Kind, List, Manner, Row
from api.cli.listfile.survey import BadList
from api.cli.terminal import plain
from api.cli.trouble import Misuse, Trouble
from engine.verdict import FIELDS, Verdict

LIGHT = "light"
RESULT_FIELDS = (*FIELDS, LIGHT)
PREFIX = "mailprobe_"
FORMULA_MARKS = ("=", "+", "-", "@", "\t", "\r")

SHEET_ROWS_MAX = 1_048_576  # the format's own limits
SHEET_COLUMNS_MAX = 16_384
SHEET_CELL_CHARACTERS_MAX = 32_767

KINDS: dict[str, Kind] = {
    ".csv": "csv",
    ".tsv": "csv",
    ".tab": "csv",
    ".xlsx": "xlsx",
    ".ndjson": "ndjson",
    ".jsonl": "ndjson",
}
# Endings that promise a format which is not written.
NOT_WRITTEN = frozenset({".json", ".xls", ".xlsm", ".xlsb", ".ods", ".pdf", ".parquet"})


class CannotWrite(Trouble):
    """The disk is full, or otherwise takes no more; what was written before is kept."""


def output_manner(path: Path | None, manner: Manner) -> Manner:
    """How the output is written: by its ending, else as the input is."""
    ending = path.suffix.lower() if path else ""
    if ending in NOT_WRITTEN:
        raise Misuse(f"{plain(str(path))}: -o takes the endings {' '.join(KINDS)}")
    kind = KINDS.get(ending, manner.kind if ending != ".txt" else "csv")
    if kind != "csv":
        return Manner(kind)
    delimiter = TABLE_ENDINGS.get(ending) or manner.delimiter
    if ending == ".csv" and delimiter == "\t":
        delimiter = ","
    return Manner(kind, delimiter, manner.line_end, manner.bom)


def result_names(taken: Sequence[str]) -> list[str]:
    """The result's columns, with a prefix where the list has one of that name."""
    names = []
    for name in RESULT_FIELDS:
        while name in taken:
            name = PREFIX + name
        names.append(name)
    return names


def result_values(verdict: Verdict | None) -> list[Any]:
    """The fourteen fields and the light; nothing at all for a row without an address."""
    if verdict is None:
        return [None] * len(RESULT_FIELDS)
    return [*(getattr(verdict, name) for name in FIELDS), light_of(verdict)]


def result_cells(verdict: Verdict | None) -> list[str]:
    """The same as cells: `true` and `false`, nothing for null."""
    return [_cell(value) for value in result_values(verdict)]


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)


Write = Callable[[Row, Verdict | None], None]


@contextmanager
def open_writer(file: BinaryIO, manner: Manner, source: List) -> Iterator[Write]:
    """What writes a row with its result; the file is complete when the block ends well.

    All rows of `source` must have been read once: only then its columns are known.
    """
    if manner.kind == "ndjson":
        yield _write_objects(file, result_names(source.named_members))
    elif manner.kind == "xlsx":
        with _sheet(file) as add_row:
            yield _write_cells(add_row, source.columns)
    else:
        with _csv(file, manner) as add_row:
            yield _write_cells(add_row, source.columns)


AddRow = Callable[[list[str]], object]


def _write_cells(add_row: AddRow, columns: Sequence[str]) -> Write:
    """Write the header; give what writes a row of cells under it."""
    width = len(columns)
    add_row([*columns, *result_names(columns)])

    def write(row: Row, verdict: Verdict | None) -> None:
        own = row.cells()
        add_row([*own, *[""] * (width - len(own)), *result_cells(verdict)])

    return write


@contextmanager
def _csv(file: BinaryIO, manner: Manner) -> Iterator[AddRow]:
    text = io.TextIOWrapper(file, "utf-8-sig" if manner.bom else "utf-8", newline="")
    host = len(RESULT_FIELDS) - RESULT_FIELDS.index("mx_host")  # from the end
    # By itself csv leaves a carriage return bare where lines end without one.
    sparing, careful = (
        csv.writer(text, delimiter=manner.delimiter, lineterminator=manner.line_end, quoting=how)
        for how in (csv.QUOTE_MINIMAL, csv.QUOTE_ALL)
    )

    def add_row(cells: list[str]) -> None:
        if cells[-host].startswith(FORMULA_MARKS):
            cells[-host] = "'" + cells[-host]
        (careful if any("\r" in cell for cell in cells) else sparing).writerow(cells)

    try:
        yield add_row
        text.flush()
    finally:
        with suppress(OSError):  # of what could not be written: that was raised before
            text.detach()


@contextmanager
def _sheet(file: BinaryIO) -> Iterator[AddRow]:
    """Every cell is written as text: no formula, no link, no number that loses digits."""
    import xlsxwriter
    from xlsxwriter.exceptions import FileCreateError

    with tempfile.TemporaryDirectory(prefix="mailprobe-") as rows_so_far:
        options = {"constant_memory": True, "tmpdir": rows_so_far}
        book = xlsxwriter.Workbook(file, options)
        sheet = book.add_worksheet()
        numbers = itertools.count()

        def add_row(cells: list[str]) -> None:
            number = next(numbers)
            for place, cell in enumerate(cells):
                if cell:
                    sheet.write_string(number, place, cell)

        yield add_row
        try:
            book.close()
        except FileCreateError as error:
            raise error.args[0] from error  # the OSError within


def _write_objects(file: BinaryIO, names: Sequence[str]) -> Write:
    def write(row: Row, verdict: Verdict | None) -> None:
        own = row.members().removesuffix(b"}").rstrip()
        result = msgspec.json.encode(dict(zip(names, result_values(verdict), strict=True)))
        comma = b"" if own == b"{" else b","
        file.write(own + comma + result[1:] + b"\n")

    return write


def check_fits_sheet(row: Row, number: int, name: str) -> None:
    """Say before anything is asked that a workbook could not hold the output."""
    cells = row.cells()
    if (
        number >= SHEET_ROWS_MAX
        or len(cells) + len(RESULT_FIELDS) > SHEET_COLUMNS_MAX
        or any(len(cell) > SHEET_CELL_CHARACTERS_MAX for cell in cells)
    ):
        raise BadList(
            f"{name}, row {number}: more than a workbook holds; name an output that ends in .csv"
        )


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file that appears under its name when all of it is on disk, or not at all.

    It is written under a fresh name in the same folder, so that no file that exists is
    opened. A file that it replaces hands its mode on.
    """
    with writing_to(plain(str(path))):
        mode = _mode_for(path)
        part, file = _fresh_file(path.parent)
        try:
            with file:
                yield file
                file.flush()
                os.fchmod(file.fileno(), mode)
                os.fsync(file.fileno())
            part.replace(path)
        except BaseException:
            part.unlink(missing_ok=True)
            raise
        sync_folder(path.parent)


def _fresh_file(folder: Path) -> tuple[Path, BinaryIO]:
    """A new file in the folder, under a name that no other has; nobody else may read it yet."""
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    while True:
        part = folder / f".mailprobe-{secrets.token_hex(8)}.part"
        with suppress(FileExistsError):
            return part, os.fdopen(os.open(part, flags, 0o600), "wb")


def _mode_for(path: Path) -> int:
    """The permissions of the file that is replaced, else those that the umask leaves."""
    try:
        return stat.S_IMODE(path.stat().st_mode) & 0o777
    except FileNotFoundError:
        umask = os.umask(0o077)
        os.umask(umask)
        return 0o666 & ~umask


def sync_folder(folder: Path) -> None:
    """Have the disk take the names in the folder, where it can; a power cut may be next."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@contextmanager
def writing_to(name: str) -> Iterator[None]:
    """Tell an error of the system as CannotWrite; a reader that went away stays what it is."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        reason = os.strerror(error.errno or 0)
        raise CannotWrite(f"{name} cannot be written: {reason}") from error
