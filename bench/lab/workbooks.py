"""Workbooks built part by part, with content that no library would write."""

import io
import zipfile
from collections.abc import Mapping

MAIN = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
REL = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
PACKAGE = "http://schemas.openxmlformats.org/package/2006"
SHEET_TYPE = "application/vnd.openxmlformats-officedocument.spreadsheetml.worksheet+xml"
BOOK_TYPE = "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet.main+xml"

STYLES = f"""<styleSheet xmlns="{MAIN}"><numFmts count="2">
<numFmt numFmtId="164" formatCode="[h]:mm:ss"/><numFmt numFmtId="165" formatCode="yyyy\\-mm\\-dd"/>
</numFmts><cellXfs count="5"><xf numFmtId="0"/><xf numFmtId="14"/><xf numFmtId="164"/>
<xf numFmtId="165"/><xf numFmtId="22"/></cellXfs></styleSheet>"""


def row(number: int, *cells: str, more: str = "") -> str:
    return f'<row r="{number}"{more}>{"".join(cells)}</row>'


def text(place: str, value: str) -> str:
    return f'<c r="{place}" t="inlineStr"><is><t>{value}</t></is></c>'


def number(place: str, value: str, style: int = 0) -> str:
    return f'<c r="{place}" s="{style}"><v>{value}</v></c>'


def sheet(*rows: str, before: str = "", after: str = "") -> str:
    return (
        f'<?xml version="1.0" encoding="UTF-8" standalone="yes"?>\n<worksheet xmlns="{MAIN}">'
        f"{before}<sheetData>{''.join(rows)}</sheetData>{after}</worksheet>"
    )


def workbook(
    sheets: Mapping[str, str],
    *,
    states: Mapping[str, str] | None = None,
    strings: str = "",
    book: str = "",
    parts: Mapping[str, str | bytes] | None = None,
    book_type: str = BOOK_TYPE,
) -> bytes:
    """Return a workbook's octets; `sheets` maps titles to sheets, in order."""
    states = states or {}
    entries, relations, types = [], [], []
    every: dict[str, str | bytes] = {}
    for place, (title, xml) in enumerate(sheets.items(), 1):
        state = f' state="{states[title]}"' if title in states else ""
        entries.append(f'<sheet name="{title}" sheetId="{place}"{state} r:id="rId{place}"/>')
        relations.append(
            f'<Relationship Id="rId{place}" Type="{REL}/worksheet" Target="worksheets/s{place}.xml"/>'
        )
        types.append(
            f'<Override PartName="/xl/worksheets/s{place}.xml" ContentType="{SHEET_TYPE}"/>'
        )
        every[f"xl/worksheets/s{place}.xml"] = xml
    relations.append(f'<Relationship Id="st" Type="{REL}/styles" Target="styles.xml"/>')
    if strings:
        relations.append(
            f'<Relationship Id="ss" Type="{REL}/sharedStrings" Target="/xl/sharedStrings.xml"/>'
        )
        every["xl/sharedStrings.xml"] = f'<sst xmlns="{MAIN}">{strings}</sst>'
    every |= {
        "[Content_Types].xml": f'<Types xmlns="{PACKAGE}/content-types">'
        '<Default Extension="xml" ContentType="application/xml"/>'
        '<Default Extension="rels" '
        'ContentType="application/vnd.openxmlformats-package.relationships+xml"/>'
        f'<Override PartName="/xl/workbook.xml" ContentType="{book_type}"/>{"".join(types)}</Types>',
        "_rels/.rels": f'<Relationships xmlns="{PACKAGE}/relationships"><Relationship Id="rId1" '
        f'Type="{REL}/officeDocument" Target="xl/workbook.xml"/></Relationships>',
        "xl/workbook.xml": f'<workbook xmlns="{MAIN}" xmlns:r="{REL}">{book}'
        f"<sheets>{''.join(entries)}</sheets></workbook>",
        "xl/_rels/workbook.xml.rels": f'<Relationships xmlns="{PACKAGE}/relationships">'
        f"{''.join(relations)}</Relationships>",
        "xl/styles.xml": STYLES,
        **(parts or {}),
    }
    return packed(every)


def packed(parts: Mapping[str, str | bytes]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as package:
        for name, content in parts.items():
            package.writestr(name, content)
    return file.getvalue()


def parts_of(octets: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(octets)) as package:
        assert package.testzip() is None
        return {name: package.read(name) for name in package.namelist()}
