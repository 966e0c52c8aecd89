"""The parts of an XLSX package (ECMA-376 part 2): its sheets, shared strings and formats."""

import posixpath
import re
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Any, BinaryIO
from xml.etree import ElementTree
from xml.parsers import expat

from mailprobe.api.cli.output.terminal import plain

PART_OCTETS_MAX = 1 << 26  # of the workbook, its relationships and styles, which are held in memory
OCTETS_MAX = 1 << 33  # of all parts unpacked; a larger file may be a ZIP bomb
STRINGS_CHARACTERS_MAX = 1 << 28
READ_OCTETS = 1 << 16
LISTED_MAX = 12  # sheets named in a message

WORKSHEET = "/worksheet"
ESCAPED = re.compile("_x([0-9A-Fa-f]{4})_")
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
    """The file is no readable workbook; the message says what it is and what to do."""


@dataclass(frozen=True, slots=True)
class SheetEntry:
    """A sheet: its title, and the name of its part."""

    title: str
    part: str
    visible: bool


class Package:
    """An opened workbook. Damaged files raise the errors of zipfile, expat and others (sheets.BROKEN)."""

    def __init__(self, file: BinaryIO) -> None:
        file.seek(0)
        try:
            self.zip = zipfile.ZipFile(file)
        except zipfile.BadZipFile:
            raise NotAWorkbook("is no XLSX workbook that can be read; save it anew") from None
        infos = self.zip.infolist()
        self._infos = {info.filename: info for info in infos}
        if any(info.flag_bits & 1 for info in infos):
            raise NotAWorkbook("is protected by a password; save it without one")
        if "mimetype" in self._infos and "content.xml" in self._infos:
            raise NotAWorkbook("is in OpenDocument's format; save it as XLSX or CSV")
        if "[Content_Types].xml" not in self._infos:
            raise NotAWorkbook("is a ZIP archive and no workbook; unpack it first (unzip)")
        if "xl/workbook.bin" in self._infos:
            raise NotAWorkbook("is in Excel's binary format; save it as XLSX or CSV")
        if len(self._infos) != len(infos) or sum(i.file_size for i in infos) > OCTETS_MAX:
            raise NotAWorkbook("is no XLSX workbook that can be read; save it anew")
        self.workbook_part = self._related("", "/officeDocument")
        root = self._xml(self.workbook_part)
        properties = next(iter(_all(root, "workbookPr")), None)
        self._epoch = "1904" if _is_true(properties, "date1904") else ""
        self._names = any(True for _ in _all(root, "definedName"))
        self.sheets = list(self._sheets(root))
        self.has_macros = MACRO_TYPE in self.zip.read("[Content_Types].xml")

    @property
    def relations_part(self) -> str:
        """The part with the workbook's relationships."""
        return _relations_part(self.workbook_part)

    @property
    def styles_part(self) -> str | None:
        try:
            return self._related(self.workbook_part, "/styles")
        except KeyError:
            return None

    def styles_octets(self) -> bytes:
        return self.zip.read(self.styles_part) if self.styles_part is not None else b""

    def names(self) -> list[str]:
        """The names of all parts."""
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
        raise NotAWorkbook(f"has no sheet {plain(wanted)} (sheets: {listed})")

    def open(self, entry: SheetEntry) -> IO[bytes]:
        return self.zip.open(self._infos[entry.part])

    def strings(self, characters_max: int = STRINGS_CHARACTERS_MAX) -> list[str]:
        """Return the shared strings, indexed by number. Raises NotAWorkbook if they are too large."""
        try:
            part = self._related(self.workbook_part, "/sharedStrings")
        except KeyError:
            return []
        found: list[str] = []
        characters = 0
        with self.zip.open(self._infos[part]) as stream:
            for text in _read_strings(stream):
                characters += len(text)
                if characters > characters_max:
                    raise NotAWorkbook("holds more text than fits in memory; save it as CSV")
                found.append(text)
        return found

    def styles(self) -> list[str]:
        """Return each cell format's kind: "", date, time or duration; with 1904 appended for that epoch."""
        if self.styles_part is None:
            return []
        root = self._xml(self.styles_part)
        codes = {
            int(each.get("numFmtId", "0")): _kind_of(each.get("formatCode", ""))
            for each in _all(root, "numFmt")
        }
        kinds: list[str] = []
        for formats in _all(root, "cellXfs"):
            for each in formats:
                number = int(each.get("numFmtId", "0"))
                kind = codes.get(number, BUILT_IN.get(number, ""))
                kinds.append(kind + self._epoch if kind in ("date", "time") else kind)
        return kinds

    # -- parts and relationships

    def _sheets(self, root: ElementTree.Element) -> Iterator[SheetEntry]:
        related = dict(self._relations(self.workbook_part))
        for sheet in _all(root, "sheet"):
            key = next((value for name, value in sheet.items() if name.endswith("}id")), "")
            kind, part = related[key]
            if kind.endswith(WORKSHEET):
                state = sheet.get("state", "visible")
                yield SheetEntry(sheet.get("name", ""), part, state == "visible")

    def _related(self, part: str, kind: str) -> str:
        for _, (type_, target) in self._relations(part):
            if type_.endswith(kind):
                return target
        raise KeyError(kind)

    def _relations(self, part: str) -> Iterator[tuple[str, tuple[str, str]]]:
        folder = posixpath.dirname(part)
        root = self._xml(_relations_part(part))
        for each in _all(root, "Relationship"):
            target = each.get("Target", "")
            path = posixpath.normpath(posixpath.join("/", folder, target)).lstrip("/")
            yield each.get("Id", ""), (each.get("Type", ""), path)

    def _xml(self, part: str) -> ElementTree.Element:
        info = self._infos[part]
        if info.file_size > PART_OCTETS_MAX:
            raise ValueError(f"{part} is too large")
        octets = self.zip.read(info)
        if b"<!DOCTYPE" in octets:
            raise ValueError("a workbook declares no entities")
        return ElementTree.fromstring(octets)


def _relations_part(part: str) -> str:
    folder, name = posixpath.split(part)
    return posixpath.join(folder, "_rels", f"{name}.rels")


def _all(root: ElementTree.Element, local: str) -> Iterator[ElementTree.Element]:
    """Return the elements of that name in any of the format's namespaces."""
    return (each for each in root.iter() if each.tag.rpartition("}")[2] == local)


def _is_true(element: ElementTree.Element | None, attribute: str) -> bool:
    return element is not None and element.get(attribute, "0") in ("1", "true", "on")


def _kind_of(code: str) -> str:
    """Return a format code's kind: "", date, time or duration."""
    code = NO_CODE.sub("", code.partition(";")[0]).lower()
    if "[" in code:
        return "duration"
    if "general" in code:
        return ""
    if re.search("[dy]", code) or ("m" in code and not re.search("[hs]", code)):
        return "date"
    return "time" if re.search("[hs]", code) else ""


def unescaped(text: str) -> str:
    """Decode a string's escapes: `_x000D_` stands for a character that XML cannot hold."""
    return ESCAPED.sub(lambda found: chr(int(found[1], 16)), text) if "_x" in text else text


def _read_strings(stream: IO[bytes]) -> Iterator[str]:
    """Yield the texts of sharedStrings.xml, read as a stream."""
    parser = expat.ParserCreate()
    parser.buffer_text = True
    done: list[str] = []
    text: list[str] = []
    hidden = 0  # depth within phonetic text, which is not part of a string

    def start(name: str, _: Any) -> None:
        nonlocal hidden
        local = name.rpartition(":")[2]
        if local == "rPh":
            hidden += 1
        elif local == "t" and not hidden:
            parser.CharacterDataHandler = text.append

    def end(name: str) -> None:
        nonlocal hidden
        local = name.rpartition(":")[2]
        if local == "t":
            parser.CharacterDataHandler = None
        elif local == "rPh":
            hidden -= 1
        elif local == "si":
            done.append(unescaped("".join(text)))
            text.clear()

    parser.StartElementHandler = start
    parser.EndElementHandler = end
    while piece := stream.read(READ_OCTETS):
        parser.Parse(piece, False)
        yield from done
        done.clear()
    parser.Parse(b"", True)
    yield from done
