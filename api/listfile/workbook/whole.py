"""Checks that a workbook is whole: spreadsheets then open it without repair.

Each workbook is checked after it is written and before it appears, and one that is written
back also before anything is verified.
"""

import posixpath
import re
import zipfile
from typing import IO, BinaryIO
from xml.parsers import expat

from ...terminal import plain
from .markup import (
    DEPTH_MAX,
    TOKEN_OCTETS_MAX,
    fed_pieces,
    local_name,
    open_parser,
)
from .package import NotAWorkbook, target_part

RELATIONS = ".rels"
XML_ENDINGS = (".xml", RELATIONS)
# A row with its number. Drawings have an element of that name too, without attributes.
# The name comes first, which is found five times as fast as any tag; PREFIX is before it.
ROW = re.compile(rb"""row(?<=[<:]row)\s(?:[^>]*?\s)?r\s*=\s*["']([0-9]{1,9})["']""")
PREFIX_OCTETS_MAX = 1_000
PREFIX = re.compile(rb"<\w+:\Z")


def check_whole(file: BinaryIO) -> None:
    """Raise NotAWorkbook if a written workbook is not whole."""
    file.seek(0)
    try:
        with zipfile.ZipFile(file) as package:
            check_parts(package, is_ours=True)
    except zipfile.BadZipFile:
        raise NotAWorkbook("would not be a ZIP archive") from None


def check_parts(
    package: zipfile.ZipFile, *, without: str | None = None, is_ours: bool = False
) -> None:
    """Raise NotAWorkbook if a part is ill-formed, a relationship leads nowhere, or rows do not rise.

    The part `without`, which is read as a sheet, is not checked. What we wrote is held to more.
    """
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
        self._row = 0
        self._parser = open_parser(encoding=None)  # parts that are copied may have any
        # How deep a part nests was checked when it was read; handlers cost most of the time.
        if self._is_relations or not is_ours:
            self._parser.StartElementHandler = self._start
            self._parser.EndElementHandler = self._end

    def check(self, stream: IO[bytes]) -> None:
        tag = b""  # that the end of the piece has cut off
        for piece in fed_pieces(self._parser, stream):
            text = tag + piece
            tag = text[max(text.rfind(b"<"), len(text) - TOKEN_OCTETS_MAX, 0) :]
            for found in ROW.finditer(text, 0, len(text) - len(tag)):
                if _begins_tag(text, found.start()):
                    self._add_row(int(found[1]))

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise ValueError("nests too deep")
        if self._is_relations and local_name(name) == "Relationship":
            self._check_target(attributes)

    def _end(self, name: str) -> None:
        self._depth -= 1

    def _add_row(self, number: int) -> None:
        if number <= self._row:
            raise ValueError("has rows out of order")
        self._row = number

    def _check_target(self, attributes: dict[str, str]) -> None:
        target = attributes.get("Target", "").partition("#")[0]  # a place in the workbook
        if not target or attributes.get("TargetMode") == "External":
            return
        part = target_part(self._folder, target).lower()
        if part in self._names:
            return
        from urllib.parse import unquote  # hardly ever needed

        if unquote(part) not in self._names:
            raise ValueError("names a part that is not there")


def _begins_tag(text: bytes, place: int) -> bool:
    """Whether the name there is an element's, with a prefix or without."""
    if text[place - 1 : place] == b"<":
        return True
    return PREFIX.search(text, max(place - PREFIX_OCTETS_MAX, 0), place) is not None
