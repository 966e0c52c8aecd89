"""The parts of an XLSX package (ECMA-376 part 2): its sheets, shared strings and formats."""

import io
import posixpath
import re
import zipfile
from collections.abc import Iterator
from typing import IO, BinaryIO

from msgspec import Struct

from ...terminal import plain
from .markup import Element, elements_of, local_name
from .strings import STRINGS_OCTETS_MAX, SharedStrings

PART_OCTETS_MAX = 1 << 20  # of the workbook, relations, types and styles, which are held in memory
OCTETS_MAX = 1 << 30  # of all parts unpacked; a larger file may be a ZIP bomb
ENTRIES_MAX = 2_000  # a large workbook with pictures has hundreds
ENTRY_OCTETS = 512  # of the directory for each, with its name; each costs a kilobyte of memory
LISTED_MAX = 12  # sheets named in a message
FORMAT_CHARACTERS_MAX = 255  # of a number format, Excel's own limit

WORKSHEET = "/worksheet"
TYPES_PART = "[Content_Types].xml"
METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
UNREADABLE = "is not an XLSX workbook that can be read; save it anew"
MACRO_TYPE = b"application/vnd.ms-excel.sheet.macroEnabled.main+xml"
PLAIN_TYPE = b"application/vnd.openxmlformats-officedocument.spreadsheetml.sheet.main+xml"

# Numbers of the built-in date and time formats, which have no format code in the file.
BUILT_IN = {
    **dict.fromkeys((14, 15, 16, 17, 22, *range(27, 37), *range(50, 59)), "date"),
    **dict.fromkeys((18, 19, 20, 21, 45, 47), "time"),
    46: "duration",
}
NO_CODE = re.compile(r'"[^"]*"|\\.|_.|\*.|\[(?!h+\]|m+\]|s+\])[^\]]*\]', re.IGNORECASE)


class NotAWorkbook(Exception):
    """The file is not a readable workbook; the message says what it is and what to do."""


class NoSuchSheet(NotAWorkbook):
    """The workbook lacks the sheet that was asked for."""


class SheetEntry(Struct, frozen=True):
    """A sheet: its title, and the name of its part."""

    title: str
    part: str
    visible: bool


class _Archive(io.RawIOBase):
    """The file as zipfile reads it: its directory in one piece, before anything else.

    Raises NotAWorkbook if the end record names a directory that is too large.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def read(self, octets: int = -1) -> bytes:
        if octets > ENTRIES_MAX * ENTRY_OCTETS:
            raise NotAWorkbook(
                f"is a ZIP archive of more than {ENTRIES_MAX:,} files and no workbook"
            )
        return self._file.read(octets)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return self._file.seek(offset, whence)

    def seekable(self) -> bool:
        return True


class Package:
    """An opened workbook. Damaged files raise the errors of zipfile, expat and others (BROKEN)."""

    def __init__(self, file: BinaryIO) -> None:
        file.seek(0)
        try:
            self.zip = zipfile.ZipFile(_Archive(file))
        except zipfile.BadZipFile:
            raise NotAWorkbook(UNREADABLE) from None
        infos = self.zip.infolist()
        self._infos = {info.filename: info for info in infos}
        self._refuse(infos)
        self.workbook_part = self._related("", "/officeDocument")
        book = elements_of(self.octets(self.workbook_part), "workbookPr", "definedName", "sheet")
        named = {each.local: each for each in reversed(book)}
        workbook = named.get("workbookPr")
        is_1904 = workbook is not None and workbook.attributes.get("date1904") in (
            "1",
            "true",
            "on",
        )
        self._epoch = "1904" if is_1904 else ""
        self._names = "definedName" in named
        self.sheets = list(self._sheets(each for each in book if each.parent == "sheets"))
        self.has_macros = MACRO_TYPE in self.octets(TYPES_PART)

    def _refuse(self, infos: list[zipfile.ZipInfo]) -> None:
        """Raise NotAWorkbook if the directory is not a workbook's."""
        if len(infos) > ENTRIES_MAX:
            raise NotAWorkbook(
                f"is a ZIP archive of more than {ENTRIES_MAX:,} files and no workbook"
            )
        if any(info.flag_bits & 1 for info in infos):
            raise NotAWorkbook("is protected by a password; save it without one")
        if "mimetype" in self._infos and "content.xml" in self._infos:
            raise NotAWorkbook("is in OpenDocument's format; save it as XLSX or CSV")
        if TYPES_PART not in self._infos:
            raise NotAWorkbook("is a ZIP archive and no workbook; unpack it first (unzip)")
        if "xl/workbook.bin" in self._infos:
            raise NotAWorkbook("is in Excel's binary format; save it as XLSX or CSV")
        if sum(info.file_size for info in infos) > OCTETS_MAX:
            most = f"{OCTETS_MAX >> 30} GiB"
            raise NotAWorkbook(f"unpacks to more than {most}; save its sheet as CSV")
        # Other methods are not the format's, and their dictionaries may fill the memory.
        if len(self._infos) != len(infos) or any(
            info.compress_type not in METHODS for info in infos
        ):
            raise NotAWorkbook(UNREADABLE)

    @property
    def relations_part(self) -> str:
        """The part with the workbook's relationships."""
        return relations_part(self.workbook_part)

    @property
    def styles_part(self) -> str | None:
        try:
            return self._related(self.workbook_part, "/styles")
        except KeyError:
            return None

    def styles_octets(self) -> bytes:
        return self.octets(self.styles_part) if self.styles_part is not None else b""

    def octets(self, part: str) -> bytes:
        """A part that is held in memory. Raises NotAWorkbook if it is too large."""
        info = self._infos[part]
        if info.file_size > PART_OCTETS_MAX:
            most = f"{PART_OCTETS_MAX >> 20} MiB"
            raise NotAWorkbook(
                f"has more than {most} in {plain(part)}; copy the list into a new workbook"
            )
        return self.zip.read(info)

    def names(self) -> list[str]:
        return list(self._infos)

    @property
    def is_alone(self) -> bool:
        """Whether the workbook has a single sheet and no defined names, which may refer to its cells."""
        return len(self.sheets) == 1 and not self._names

    def sheet(self, wanted: str | None) -> SheetEntry:
        """Return the sheet with this title, or this number from 1; None: the first visible one.

        Raises NotAWorkbook if there is none.
        """
        if wanted is not None:
            return self._wanted_sheet(wanted)
        for entry in self.sheets:
            if entry.visible:
                return entry
        raise NotAWorkbook("has no sheet that is visible; unhide the one with the list")

    def _wanted_sheet(self, wanted: str) -> SheetEntry:
        for same in (str, str.casefold):
            found = [entry for entry in self.sheets if same(entry.title) == same(wanted)]
            if len(found) == 1:
                return found[0]
        if wanted.isascii() and wanted.isdigit() and 1 <= int(wanted[:9]) <= len(self.sheets):
            return self.sheets[int(wanted[:9]) - 1]
        titles = [plain(entry.title) for entry in self.sheets[:LISTED_MAX]]
        more = len(self.sheets) - len(titles)
        listed = ", ".join(titles) + (f" and {more} more" if more else "")
        raise NoSuchSheet(f"has no sheet {plain(wanted)} (sheets: {listed})")

    def open(self, entry: SheetEntry) -> IO[bytes]:
        return self.zip.open(self._infos[entry.part])

    def strings(self) -> SharedStrings:
        """Return the shared strings, indexed by number. Raises NotAWorkbook if they are too large."""
        strings = SharedStrings()
        try:
            part = self._related(self.workbook_part, "/sharedStrings")
        except KeyError:
            return strings
        with self.zip.open(self._infos[part]) as stream:
            if not strings.read(stream):
                most = f"{STRINGS_OCTETS_MAX >> 20} MiB"
                raise NotAWorkbook(f"holds more than {most} of text; save its sheet as CSV")
        return strings

    def styles(self) -> list[str]:
        """Return each cell format's kind: "", date, time or duration; with 1904 appended for that epoch."""
        found = elements_of(self.styles_octets() or b"<x/>", "numFmt", "xf")
        codes = {
            int(each.attributes.get("numFmtId", "0")): _kind_of(
                each.attributes.get("formatCode", "")
            )
            for each in found
            if each.local == "numFmt"
        }
        kinds: list[str] = []
        for each in found:
            if each.parent == "cellXfs":
                number = int(each.attributes.get("numFmtId", "0"))
                kind = codes.get(number, BUILT_IN.get(number, ""))
                kinds.append(kind + self._epoch if kind in ("date", "time") else kind)
        return kinds

    # -- parts and relationships

    def _sheets(self, elements: Iterator[Element]) -> Iterator[SheetEntry]:
        related = dict(self._relations(self.workbook_part))
        for sheet in elements:
            attributes = sheet.attributes
            key = next((attributes[name] for name in attributes if local_name(name) == "id"), "")
            kind, part = related[key]
            if kind.endswith(WORKSHEET):
                is_visible = attributes.get("state", "visible") == "visible"
                yield SheetEntry(attributes.get("name", ""), part, is_visible)

    def _related(self, part: str, kind: str) -> str:
        for _, (type_, target) in self._relations(part):
            if type_.endswith(kind):
                return target
        raise KeyError(kind)

    def _relations(self, part: str) -> Iterator[tuple[str, tuple[str, str]]]:
        folder = posixpath.dirname(part)
        for each in elements_of(self.octets(relations_part(part)), "Relationship"):
            target = each.attributes.get("Target", "")
            yield (
                each.attributes.get("Id", ""),
                (
                    each.attributes.get("Type", ""),
                    target_part(folder, target),
                ),
            )


def relations_part(part: str) -> str:
    """The name of the part with a part's relationships."""
    folder, name = posixpath.split(part)
    return posixpath.join(folder, "_rels", f"{name}.rels")


def target_part(folder: str, target: str) -> str:
    """The name of the part that a relationship of a part in this folder points to."""
    return posixpath.normpath(posixpath.join("/", folder, target)).lstrip("/")


def _kind_of(code: str) -> str:
    """Return a format code's kind: "", date, time or duration."""
    code = NO_CODE.sub("", code[:FORMAT_CHARACTERS_MAX].partition(";")[0]).lower()
    if "[" in code:
        return "duration"
    if "general" in code:
        return ""
    if re.search("[dy]", code) or ("m" in code and not re.search("[hs]", code)):
        return "date"
    return "time" if re.search("[hs]", code) else ""
