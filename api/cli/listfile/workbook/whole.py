"""Whether a workbook is whole: what spreadsheets need so that they open it without repair.

Each workbook is checked after it is written and before it appears, and one that is written
back also before anything is verified.
"""

import posixpath
import zipfile
from typing import IO, BinaryIO
from urllib.parse import unquote
from xml.parsers import expat

from mailprobe.api.cli.listfile.workbook.markup import (
    DEPTH_MAX,
    fed_pieces,
    local_name,
    open_parser,
)
from mailprobe.api.cli.listfile.workbook.package import NotAWorkbook, target_part
from mailprobe.api.cli.output.terminal import plain

RELATIONS = ".rels"
XML_ENDINGS = (".xml", RELATIONS)


def check_whole(file: BinaryIO) -> None:
    """Raise NotAWorkbook if a written workbook is not whole."""
    file.seek(0)
    try:
        with zipfile.ZipFile(file) as package:
            _check_parts(package, is_ours=True)
    except zipfile.BadZipFile:
        raise NotAWorkbook("would be no ZIP archive") from None


def check_parts(package: zipfile.ZipFile, *, without: str) -> None:
    """Raise NotAWorkbook if a part is ill-formed, a relationship leads nowhere, or rows do not rise.

    The part `without`, which is read as a sheet, is not checked.
    """
    _check_parts(package, without=without)


def _check_parts(
    package: zipfile.ZipFile, *, without: str | None = None, is_ours: bool = False
) -> None:
    names = {name.lower() for name in package.namelist()}
    for info in package.infolist():
        if info.filename == without or not info.filename.lower().endswith(XML_ENDINGS):
            continue
        part = _Part(info.filename, names, is_ours)
        try:
            with package.open(info) as stream:
                part.check(stream)
        except (expat.ExpatError, zipfile.BadZipFile, EOFError, ValueError) as error:
            why = str(error) if type(error) is ValueError else "is damaged"
            raise NotAWorkbook(
                f"cannot come back whole, because its part {plain(info.filename)} {why}; "
                "save it anew, or name an output that ends in .csv"
            ) from None


class _Part:
    """One part, read as a stream. Its methods raise ValueError with what it is or does wrong."""

    def __init__(self, name: str, names: set[str], is_ours: bool) -> None:
        self._names = names
        self._folder = posixpath.dirname(posixpath.dirname(name))
        self._is_relations = name.lower().endswith(RELATIONS)
        self._depth = 0
        self._is_in_rows = False
        self._row = 0
        self._parser = open_parser(encoding=None)  # parts that are copied may have any
        self._parser.StartElementHandler = self._start if is_ours else self._start_foreign
        if not is_ours:  # how deep it nests was checked when it was read, and costs a third more
            self._parser.EndElementHandler = self._end

    def check(self, stream: IO[bytes]) -> None:
        for _ in fed_pieces(self._parser, stream):
            pass

    def _start_foreign(self, name: str, attributes: dict[str, str]) -> None:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise ValueError("nests too deep")
        self._start(name, attributes)

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        if self._is_in_rows:
            if name.endswith("row") and local_name(name) == "row":
                self._add_row(attributes)
        elif self._is_relations:
            if local_name(name) == "Relationship":
                self._check_target(attributes)
        elif name.endswith("sheetData"):
            self._is_in_rows = True

    def _end(self, name: str) -> None:
        self._depth -= 1

    def _add_row(self, attributes: dict[str, str]) -> None:
        number = int(attributes.get("r", self._row + 1))
        if number <= self._row:
            raise ValueError("has rows out of order")
        self._row = number

    def _check_target(self, attributes: dict[str, str]) -> None:
        target = attributes.get("Target", "").partition("#")[0]  # a place in the workbook
        if not target or attributes.get("TargetMode") == "External":
            return
        part = target_part(self._folder, target).lower()
        if part not in self._names and unquote(part) not in self._names:
            raise ValueError("names a part that is not there")
