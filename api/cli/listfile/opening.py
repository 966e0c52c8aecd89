"""A file, or standard input, opened as a list: what kind it is, and its rows."""

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal, Protocol

from api.cli.listfile.objects import Objects
from api.cli.listfile.survey import BadList, Survey, survey
from api.cli.listfile.tables import (
    Table,
    csv_records,
    find_delimiter,
    line_records,
    read_lines,
    read_table,
    sheet_records,
)
from api.cli.terminal import plain

Kind = Literal["csv", "xlsx", "ndjson"]

STANDARD_INPUT = "standard input"
TABLE_ENDINGS = {".csv": None, ".tsv": "\t", ".tab": "\t"}
OBJECT_ENDINGS = frozenset({".ndjson", ".jsonl"})


class Row(Protocol):
    """One row of a list, whatever kind of file it came from."""

    @property
    def address(self) -> str:
        """What to ask about, white space around it gone; "" where there is nothing."""

    def cells(self) -> list[str]:
        """The row as cells, in the order of the list's columns; may be fewer."""

    def members(self) -> bytes:
        """The row as one JSON object."""


class Rows(Protocol):
    """The rows of a file; `columns` is whole once all were read."""

    columns: list[str]

    def rows(self) -> "Iterator[Row]": ...


@dataclass(frozen=True, slots=True)
class Manner:
    """How a list is written, so that its output can be written alike."""

    kind: Kind
    delimiter: str = ","
    line_end: str = "\n"
    bom: bool = False


@dataclass(frozen=True, slots=True)
class List:
    """An opened list."""

    name: str
    survey: Survey
    manner: Manner
    _rows: Rows

    @property
    def columns(self) -> list[str]:
        """The names of its columns, whole once all rows were read."""
        return self._rows.columns

    @property
    def named_members(self) -> list[str]:
        """The names that a row's JSON object has."""
        return self._rows.unique_columns if isinstance(self._rows, Table) else self._rows.columns

    def rows(self) -> "Iterator[Row]":
        """Every row, in order; can be read again and again."""
        return self._rows.rows()


@contextmanager
def open_list(path: Path | None, *, column: str | None) -> Iterator[List]:
    """Open a list, or standard input (None); BadList says what is wrong with it."""
    name = STANDARD_INPUT if path is None else plain(str(path))
    with _opened(path, name) as file:
        found = survey(file, name)
        manner, rows = _read(file, found, path.suffix.lower() if path else "", column, name)
        yield List(name, found, manner, rows)


@contextmanager
def _opened(path: Path | None, name: str) -> Iterator[BinaryIO]:
    """The file; standard input is put on disk first, since lists are read twice."""
    if path is None:
        with tempfile.TemporaryFile() as spool:
            shutil.copyfileobj(sys.stdin.buffer, spool)
            yield spool
        return
    try:
        if path.is_dir():
            raise BadList(f"{name} is a directory; it takes a file")
        file = path.open("rb")
    except OSError as error:
        raise BadList(f"{name} cannot be read: {os.strerror(error.errno or 0)}") from None
    with file:
        if not file.seekable():
            raise BadList(f"{name} is no regular file; pipe it in and name it - instead")
        yield file


def _read(
    file: BinaryIO, found: Survey, ending: str, column: str | None, name: str
) -> tuple[Manner, Rows]:
    if found.zipped:
        return Manner("xlsx"), read_table(sheet_records(file, name), column, name)
    if ending in (".xlsx", ".xlsm"):
        raise BadList(f"{name} is no XLSX workbook, whatever its name says")
    line_end = "\r\n" if "\r\n" in found.sample else "\n"
    if ending in OBJECT_ENDINGS or (
        ending not in TABLE_ENDINGS and found.sample.lstrip()[:1] in ("{", "[")
    ):
        manner = Manner("ndjson", line_end="\n", bom=False)
        return manner, Objects(file, found, column, name)
    is_table = ending in TABLE_ENDINGS
    delimiter = TABLE_ENDINGS.get(ending) or find_delimiter(found, surely_a_table=is_table)
    manner = Manner("csv", delimiter or ",", line_end, found.bom)
    if delimiter or is_table:
        records = csv_records(file, found, delimiter or ",", name)
        return manner, read_table(records, column, name)
    return manner, read_lines(line_records(file, found, name), column, name)
