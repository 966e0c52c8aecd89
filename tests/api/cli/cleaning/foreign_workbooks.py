"""Workbooks written the way six programs write them, with what real lists contain.

The programs differ in the prefix of elements, where that of relationships is declared,
where text is held, whether cells have references, and how a blank row is written.
"""

import itertools
from collections.abc import Sequence
from xml.sax.saxutils import escape

from msgspec import Struct

from mailprobe.bench.lab.workbooks import BOOK_TYPE, MAIN, PACKAGE, REL, SHEET_TYPE, packed

Cell = str | int | bool | None
DECLARATION = '<?xml version="1.0" encoding="UTF-8" standalone="yes"?>\n'
DATE_STYLE = 1


class Program(Struct, frozen=True):
    """How a program writes a workbook; `blank` are its blank rows without brackets, in turn."""

    name: str
    blank: Sequence[str]
    prefix: str = ""  # of elements, with its colon
    declares_each: bool = False  # the prefix of relationships, on each <sheet>
    shared: bool = True  # text is in shared strings
    references: bool = True  # cells have references
    mark: bool = False  # parts begin with a byte order mark
    between: str = ""  # white space between rows


PROGRAMS = (
    Program("Excel", ['row r="{n}"/', 'row r="{n}" spans="1:3" ht="15" x="a&gt;b"/', ""]),
    Program(
        "LibreOffice",
        ['row r="{n}" customFormat="false" ht="12.8" hidden="false"></row', 'row r="{n}" hidden="0"/'],
    ),
    Program("openpyxl", ['row r="{n}"></row', 'row r="{n}" />']),
    Program(
        "Open XML SDK",
        ['row r="{n}" />', 'row r="{n}" ></row >', 'row r="{n}" note="a>b" />'],
        prefix="x:",
        declares_each=True,
        shared=False,
        mark=True,
    ),
    Program("Google Sheets", ['row r="{n}"><c r="A{n}" s="1"/><c r="Z{n}" s="1"/></row', ""]),
    Program("Numbers", ["row r='{n}' ht='20'><c r='B{n}' s='1'/></row", "row r='{n}'\n/"], between="\n  "),
    Program("a small writer", ["row/", "row />", "row></row"], shared=False, references=False),
)  # fmt: skip


class Contents(Struct, frozen=True):
    """`rows` under the header email, note, number, sum: None is a blank row."""

    rows: Sequence[tuple[str, Cell, int] | None]
    merged: bool = False
    table: bool = False
    filtered: bool = False
    commented: bool = False


def workbook_of(program: Program, contents: Contents) -> bytes:
    """The workbook's octets."""
    sheet = _Sheet(program)
    sheet.add_row(["email", "note", "number", "sum"])
    for row in contents.rows:
        if row is None:
            sheet.add_blank()
        else:
            sheet.add_row([row[0], row[1], row[2]], formula=True)
    return packed(_parts(program, contents, sheet))


class _Sheet:
    def __init__(self, program: Program) -> None:
        self._program = program
        self._forms = itertools.cycle(program.blank)
        self._last = 0
        self.strings: list[str] = []
        self.rows: list[str] = []

    def add_blank(self) -> None:
        self._last += 1
        if form := next(self._forms):
            self._add(f"<{form.format(n=self._last)}>")

    def add_row(self, cells: Sequence[Cell], formula: bool = False) -> None:
        self._last = number = self._last + 1
        made = [
            self._cell(f"{chr(65 + place)}{number}", cell)
            for place, cell in enumerate(cells)
            if cell is not None or not self._program.references
        ]
        if formula:
            reference = f' r="D{number}"' if self._program.references else ""
            made.append(
                f'<c{reference} s="{DATE_STYLE}"><f>C{number}+1</f><v>{45000 + number}</v></c>'
            )
        own = f' r="{number}"' if self._program.references else ""
        self._add(f"<row{own}>{''.join(made)}</row>")

    def _cell(self, reference: str, cell: Cell) -> str:
        own = f' r="{reference}"' if self._program.references else ""
        match cell:
            case None:
                return f"<c{own}/>"
            case bool():
                return f'<c{own} t="b"><v>{cell:d}</v></c>'
            case int():
                return f"<c{own}><v>{cell}</v></c>"
        if self._program.shared:
            self.strings.append(f"<si><t>{escape(cell)}</t></si>")
            return f'<c{own} t="s"><v>{len(self.strings) - 1}</v></c>'
        return f'<c{own} t="inlineStr"><is><t>{escape(cell)}</t></is></c>'

    def _add(self, row: str) -> None:
        prefix = self._program.prefix
        row = row.replace("</", "\0").replace("<", f"<{prefix}").replace("\0", f"</{prefix}")
        self.rows.append(row + self._program.between)

    @property
    def last(self) -> int:
        return self._last


def _parts(program: Program, contents: Contents, sheet: _Sheet) -> dict[str, str | bytes]:
    p = program.prefix
    name = f"xmlns:{p[:-1]}" if p else "xmlns"
    relation = f' xmlns:r="{REL}"'
    last = sheet.last
    after, relations, types = "", [], []
    parts: dict[str, str | bytes] = {}
    if contents.filtered and not contents.table:
        after += f'<{p}autoFilter ref="A1:D{last}"/>'
    if contents.merged:
        after += f'<{p}mergeCells count="1"><{p}mergeCell ref="A{last + 2}:B{last + 2}"/></{p}mergeCells>'
    if contents.commented:
        after += f'<{p}legacyDrawing r:id="rIdV"/>'
        relations += [
            f'<Relationship Id="rIdV" Type="{REL}/vmlDrawing" Target="../drawings/v.vml"/>',
            f'<Relationship Id="rIdC" Type="{REL}/comments" Target="../comments1.xml"/>',
        ]
        types.append(("/xl/comments1.xml", COMMENTS_TYPE))
        parts["xl/drawings/v.vml"] = '<xml xmlns:v="urn:schemas-microsoft-com:vml"><br></xml>'
        parts["xl/comments1.xml"] = (
            f'<comments xmlns="{MAIN}"><authors><author>a</author></authors><commentList>'
            '<comment ref="A2" authorId="0"><text><t>call</t></text></comment></commentList></comments>'
        )
    if contents.table:
        after += f'<{p}tableParts count="1"><{p}tablePart r:id="rIdT"/></{p}tableParts>'
        relations.append(
            f'<Relationship Id="rIdT" Type="{REL}/table" Target="/xl/tables/table1.xml"/>'
        )
        types.append(("/xl/tables/table1.xml", TABLE_TYPE))
        parts["xl/tables/table1.xml"] = _table(last)
    parts["xl/worksheets/sheet1.xml"] = (
        f"<{p}worksheet {name}=\"{MAIN}\"{relation}><{p}dimension ref='A1:D{last}'/>"
        f'<{p}sheetViews><{p}sheetView workbookViewId="0"/></{p}sheetViews>'
        f"<{p}sheetData>{''.join(sheet.rows)}</{p}sheetData>{after}</{p}worksheet>"
    )
    if relations:
        parts["xl/worksheets/_rels/sheet1.xml.rels"] = _relationships(*relations)
    book = [f'<Relationship Id="rId1" Type="{REL}/worksheet" Target="worksheets/sheet1.xml"/>']
    types += [("/xl/workbook.xml", BOOK_TYPE), ("/xl/worksheets/sheet1.xml", SHEET_TYPE)]
    book.append(f'<Relationship Id="rId2" Type="{REL}/styles" Target="styles.xml"/>')
    types.append(("/xl/styles.xml", STYLES_TYPE))
    parts["xl/styles.xml"] = STYLES
    if sheet.strings:
        book.append(
            f'<Relationship Id="rId3" Type="{REL}/sharedStrings" Target="sharedStrings.xml"/>'
        )
        types.append(("/xl/sharedStrings.xml", STRINGS_TYPE))
        parts["xl/sharedStrings.xml"] = f'<sst xmlns="{MAIN}">{"".join(sheet.strings)}</sst>'
    outer, inner = ("", relation) if program.declares_each else (relation, "")
    parts["xl/workbook.xml"] = (
        f'<{p}workbook {name}="{MAIN}"{outer}><{p}sheets>'
        f'<{p}sheet name="list" sheetId="1" r:id="rId1"{inner}/></{p}sheets></{p}workbook>'
    )
    parts["xl/_rels/workbook.xml.rels"] = _relationships(*book)
    parts["_rels/.rels"] = _relationships(
        f'<Relationship Id="rId1" Type="{REL}/officeDocument" Target="/xl/workbook.xml"/>'
    )
    parts["[Content_Types].xml"] = (
        f'<Types xmlns="{PACKAGE}/content-types"><Default Extension="xml" ContentType="application/xml"/>'
        '<Default Extension="rels" ContentType="application/vnd.openxmlformats-package.relationships+xml"/>'
        '<Default Extension="vml" ContentType="application/vnd.openxmlformats-officedocument.vmlDrawing"/>'
        + "".join(f'<Override PartName="{part}" ContentType="{kind}"/>' for part, kind in types)
        + "</Types>"
    )
    mark = "\ufeff" if program.mark else ""
    return {
        part: mark + DECLARATION + xml if part.endswith((".xml", ".rels")) else xml
        for part, xml in parts.items()
        if isinstance(xml, str)
    }


def _relationships(*entries: str) -> str:
    return f'<Relationships xmlns="{PACKAGE}/relationships">{"".join(entries)}</Relationships>'


def _table(last: int) -> str:
    columns = "".join(
        f'<tableColumn id="{number}" name="{name}"/>'
        for number, name in enumerate(("email", "note", "number", "sum"), 1)
    )
    return (
        f'<table xmlns="{MAIN}" id="1" name="t" displayName="t" ref="A1:D{last}">'
        f'<autoFilter ref="A1:D{last}"/><tableColumns count="4">{columns}</tableColumns></table>'
    )


SPREADSHEET = "application/vnd.openxmlformats-officedocument.spreadsheetml"
STYLES_TYPE = f"{SPREADSHEET}.styles+xml"
STRINGS_TYPE = f"{SPREADSHEET}.sharedStrings+xml"
TABLE_TYPE = f"{SPREADSHEET}.table+xml"
COMMENTS_TYPE = f"{SPREADSHEET}.comments+xml"
STYLES = (
    f'<styleSheet xmlns="{MAIN}"><fonts count="1"><font><sz val="11"/></font></fonts>'
    '<fills count="2"><fill><patternFill patternType="none"/></fill>'
    '<fill><patternFill patternType="gray125"/></fill></fills>'
    "<borders count=\"1\"><border/></borders><cellStyleXfs count='1'><xf/></cellStyleXfs>"
    '<cellXfs count="2"><xf numFmtId="0" fontId="0" fillId="0" borderId="0" xfId="0"/>'
    '<xf numFmtId="14" fontId="0" fillId="0" borderId="0" xfId="0"/></cellXfs>'
    '<cellStyles count="1"><cellStyle name="Normal" xfId="0" builtinId="0"/></cellStyles></styleSheet>'
)
