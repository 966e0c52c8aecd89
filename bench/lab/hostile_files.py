"""Files that a customer may send to harm the service or other customers.

`files()` yields each with its name, its octets on demand, and whether it is a list. What
is expected holds for the service and for `mailprobe clean`: "accepted" files are harmless
however they look, "refused" ones get one line. Files that are "too large to store" are cleaned,
but the service refuses them.
"""

import gzip
import io
import json
import struct
import zipfile
from collections.abc import Callable, Iterator
from typing import Literal

from msgspec import Struct

from .workbooks import MAIN, number, packed, parts_of, row, sheet, text, workbook

Expected = Literal["accepted", "refused", "too large to store"]
Make = Callable[[], bytes]

OLE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
ANN = "ann@shop.test"
HEAD = row(1, text("A1", "email"), text("B1", "n"))
SHEET = sheet(HEAD, row(2, text("A2", ANN)))
TEN = "&e{0};" * 10
ENTITIES = (f"<!ENTITY e{n} '{TEN.format(n - 1)}'>" for n in range(1, 10))
LAUGHS = "<!DOCTYPE x [<!ENTITY e0 'ha'>" + "".join(ENTITIES) + "]><x>&e9;</x>"
BACKSLASH = "\\"
ATTRIBUTES = " ".join(f'b{n}=""' for n in range(100_000))


class HostileFile(Struct, frozen=True):
    """A file: `file` is its name for people, `make` returns its octets."""

    name: str
    file: str
    expected: Expected
    make: Make


def files() -> Iterator[HostileFile]:
    """All files, each made when it is asked for."""
    for ending, expected, table in TABLES:
        for name, make in table.items():
            yield HostileFile(name, f"list{ending}", expected, make)


def csv_of(*lines: str) -> Make:
    return lambda: "\n".join(["email,n", f"{ANN},1", *lines, ""]).encode()


def objects_of(*lines: str) -> Make:
    return lambda: "\n".join([json.dumps({"email": ANN}), *lines, ""]).encode()


def book_of(*rows: str, **more: str) -> Make:
    """A workbook with further rows under a row that is good."""
    return lambda: workbook({"list": sheet(HEAD, row(2, text("A2", ANN)), *rows)}, **more)  # type: ignore[arg-type]  # texts


def with_parts(**parts: str | bytes) -> Make:
    """A workbook with other parts: book, relations, types, styles, strings, sheet."""
    return lambda: workbook(
        {"list": SHEET},
        strings="<si><t>x</t></si>",
        parts={PARTS[name]: xml for name, xml in parts.items()},
    )


PARTS = {
    "book": "xl/workbook.xml",
    "relations": "xl/_rels/workbook.xml.rels",
    "types": "[Content_Types].xml",
    "styles": "xl/styles.xml",
    "strings": "xl/sharedStrings.xml",
    "sheet": "xl/worksheets/s1.xml",
}


def changed(make: Make, change: Callable[[bytearray], None]) -> Make:
    def made() -> bytes:
        octets = bytearray(make())
        change(octets)
        return bytes(octets)

    return made


def padded(part: str) -> Make:
    """A workbook with a part of more than a mebibyte, which is well-formed."""

    def made() -> bytes:
        parts = parts_of(workbook({"list": SHEET}))
        parts[part] += b"<!-- -->" * (1 << 18)
        return packed(parts)

    return made


def encrypt(octets: bytearray) -> None:
    for mark, offset in ((b"PK\1\2", 8), (b"PK\3\4", 6)):
        octets[octets.index(mark) + offset] |= 1


def damage(octets: bytearray) -> None:
    octets[octets.index(b"s1.xml") + 60] ^= 0xFF


def claim_octets(octets: bytearray) -> None:
    """The directory says that its first part unpacks to nearly 4 GiB."""
    struct.pack_into("<L", octets, octets.index(b"PK\1\2") + 24, (1 << 32) - 2)


def claim_directory(octets: bytearray) -> None:
    struct.pack_into("<L", octets, octets.rindex(b"PK\5\6") + 12, 200 << 20)


def archive(names: int, method: int = zipfile.ZIP_DEFLATED) -> Make:
    """A workbook with as many further parts."""

    def made() -> bytes:
        file = io.BytesIO(workbook({"list": SHEET}))
        with zipfile.ZipFile(file, "a", method) as package:
            for place in range(names):
                package.writestr(f"x/{place}", b"x")
        return file.getvalue()

    return made


def overlapping() -> bytes:
    """Many entries with the same octets (Fifield, A better zip bomb, 2019)."""
    file = io.BytesIO(workbook({"list": SHEET}))
    with zipfile.ZipFile(file, "a", zipfile.ZIP_DEFLATED) as package:
        package.writestr("x", bytes(1 << 23))
        first = package.getinfo("x")
        for place in range(1_000):
            info = zipfile.ZipInfo(f"x{place}")
            for name in ("header_offset", "compress_size", "file_size", "CRC", "compress_type"):
                setattr(info, name, getattr(first, name))
            package.filelist.append(info)
            package.NameToInfo[info.filename] = info
    return file.getvalue()


def twice(octets: bytes, times: int = 2) -> bytes:
    for _ in range(times):
        octets = gzip.compress(octets)
    return octets


def strings_of(xml: Callable[[], str], index: str = "0") -> Make:
    rows = row(3, f'<c r="A3" t="s"><v>{index}</v></c>')
    return lambda: workbook({"list": sheet(HEAD, row(2, text("A2", ANN)), rows)}, strings=xml())


def value_of(value: str, style: int = 0) -> Make:
    return book_of(row(3, text("A3", ANN), number("B3", value, style)))


WORKBOOKS_REFUSED: dict[str, Make] = {
    "the beginning of an archive": lambda: b"PK\3\4" + b"x" * 1000,
    "an archive cut off": lambda: workbook({"list": SHEET})[:-200],
    "a damaged sheet": changed(lambda: workbook({"list": SHEET}), damage),
    "an encrypted archive": changed(lambda: workbook({"list": SHEET}), encrypt),
    "an encrypted workbook": lambda: OLE + bytes(500) + "EncryptedPackage".encode("utf-16-le"),
    "an xls as xlsx": lambda: OLE + bytes(4000),
    "an ods as xlsx": lambda: packed({"mimetype": "application/x", "content.xml": "<x/>"}),
    "an xlsb as xlsx": lambda: packed({"[Content_Types].xml": "<x/>", "xl/workbook.bin": "x"}),
    "an archive of an archive": lambda: packed({"list.xlsx": workbook({"list": SHEET})}),
    "text as xlsx": lambda: f"email\n{ANN}\n".encode(),
    "a workbook without sheets": lambda: workbook({}),
    "a workbook with hidden sheets alone": lambda: workbook(
        {"list": SHEET}, states={"list": "veryHidden"}
    ),
    "2,001 parts": archive(2_001),
    "30,000 parts": archive(30_000, zipfile.ZIP_STORED),
    "a directory of 200 MiB by its end record": changed(archive(0), claim_directory),
    "a part of 4 GiB by its entry": changed(archive(0), claim_octets),
    "a thousand parts that overlap": overlapping,
    "a part with a dictionary of LZMA": archive(1, zipfile.ZIP_LZMA),
    "a part in bzip2": archive(1, zipfile.ZIP_BZIP2),
    **{f"more than a mebibyte of {name}": padded(PARTS[name]) for name in ("book", "relations", "types", "styles")},
    **{f"an ill-formed part: {name}": with_parts(**{name: "<a><b></a>"}) for name in PARTS if name != "types"},
    **{f"an empty part: {name}": with_parts(**{name: b""}) for name in ("book", "relations", "sheet", "strings")},
    **{f"entities in {name}": with_parts(**{name: LAUGHS}) for name in PARTS if name != "types"},
    **{
        f"elements that nest deep in {name}": with_parts(**{name: "<a>" * 100_000 + "</a>" * 100_000})
        for name in PARTS
        if name != "types"
    },
    "an entity from a file": with_parts(
        sheet='<!DOCTYPE x [<!ENTITY a SYSTEM "file:///etc/passwd">]><x>&a;</x>'
    ),
    "a document type in UTF-16": with_parts(book="<!DOCTYPE x [<!ENTITY a 'b'>]><x>&a;</x>".encode("utf-16")),
    "a sheet in UTF-16": with_parts(sheet=SHEET.replace("UTF-8", "UTF-16").encode("utf-16")),
    "a sheet in Latin 1": with_parts(sheet=SHEET.replace("UTF-8", "ISO-8859-1")),
    "a tag of 8 MiB": with_parts(sheet=SHEET.replace("<sheetData", "<a b='" + "x" * (1 << 23) + "'/><sheetData")),
    "a comment of 8 MiB": with_parts(sheet=SHEET.replace("<sheetData", f"<!--{'x' * (1 << 23)}--><sheetData")),
    "a hundred thousand attributes": with_parts(
        sheet=SHEET.replace("<sheetData", f"<a {ATTRIBUTES}/><sheetData")
    ),
    "white space of 32 MiB between rows": lambda: workbook(
        {"list": SHEET.replace("</sheetData>", " " * (1 << 25) + "</sheetData>")}
    ),
    "a cell of 8 MiB": lambda: book_of(row(3, text("A3", "x" * (1 << 23))))(),
    "a shared string of 8 MiB": strings_of(lambda: f"<si><t>{'x' * (1 << 23)}</t></si>"),
    "72 MiB of shared strings": strings_of(lambda: f"<si><t>{'x' * 32_000}</t></si>" * 2_300),
    **{f"the shared string {index}": strings_of(lambda: "<si><t>x</t></si>", index) for index in ("1", "-1", "x", "9" * 5000)},
    "a long shared string in each cell of a row": lambda: workbook(
        {"list": sheet(HEAD, row(2, "".join('<c t="s"><v>0</v></c>' for _ in range(900))))},
        strings=f"<si><t>{'x' * 32_000}</t></si>",
    ),
    "1,001 columns in a sheet": book_of(row(3, text("ALM3", "x"))),
    "a cell beyond the last column": book_of(row(3, text("XFE3", ""))),
    **{f"a cell at {place}": book_of(row(3, text(place, "x"))) for place in ("ZZZZ3", "3A", "a3", "")},
    **{f"a row {number}": book_of(f'<row r="{number}">{text("A3", "x")}</row>') for number in (0, -1, 2, "x", 1_048_577, 10**20, "1e3")},
    "a row below a million blank ones": book_of(row(1_048_576, text("A1048576", ANN))),
    "an address that is a formula without a value": book_of(row(3, '<c r="A3"><f>A2</f></c>')),
    "a negative style": lambda: workbook({"list": SHEET}, parts={PARTS["styles"]: "<a><numFmt numFmtId='x'/></a>"}),
    "a sheet at another place": with_parts(
        relations='<Relationships><Relationship Id="rId1" Type="/worksheet" Target="../../../etc/passwd"/></Relationships>'
    ),
}  # fmt: skip

WORKBOOKS_ACCEPTED: dict[str, Make] = {
    "an ordinary workbook": lambda: workbook({"list": SHEET}),
    "1,000 columns in a sheet": book_of(row(3, text("A3", ANN), text("ALL3", "x"))),
    "dimensions of all cells": lambda: workbook(
        {"list": sheet(HEAD, row(2, text("A2", ANN)), before='<dimension ref="A1:XFD1048576"/>')}
    ),
    "10,000 blank rows that are left out": book_of(row(10_002, text("A10002", ANN))),
    "1,900 sheets": lambda: workbook({f"s{n}": SHEET for n in range(1_900)}),
    "16 MiB of zeros in a picture": lambda: workbook(
        {"list": SHEET}, parts={"xl/media/image1.png": bytes(1 << 24)}
    ),
    "a number format of quotes": with_parts(
        styles=f'<styleSheet xmlns="{MAIN}"><numFmts><numFmt numFmtId="164" formatCode="'
        + "&quot;[" * 8_000
        + '"/></numFmts><cellXfs count="1"><xf numFmtId="164"/></cellXfs></styleSheet>'
    ),
    "fifty thousand lists of fills": with_parts(
        styles=f'<styleSheet xmlns="{MAIN}">{"<fills></fills >" * 50_000}<cellXfs><xf/></cellXfs></styleSheet>'
    ),
    "half of a character": book_of(row(3, text("A3", "_xD800_@shop.test"), text("B3", "_xDFFF__x0000_"))),
    **{f"the number {value[:9]}": value_of(value) for value in ("nan", "-inf", "1e308", "9" * 5_000)},
    **{f"the date {value}": value_of(value, 1) for value in ("1e15", "-5", "2958466")},
    "an attribute with a greater-than sign": book_of('<row r="3" a="/>"><c r="A3"/></row>'),
    "a row with a format in each column but the last": book_of(
        row(3, text("A3", ANN), '<c r="WZZ3" s="1"/>')
    ),
}  # fmt: skip

TEXTS_REFUSED: dict[str, Make] = {
    "nothing": lambda: b"",
    "a million blank lines": lambda: b"\n" * 1_000_000,
    "a header alone": lambda: b"email,n\n",
    "zero octets": lambda: b"\0" * 100_000,
    "a zero octet in the middle": lambda: csv_of(*["a@b.test,1"] * 20_000, "a\0@b.test")(),
    "a million columns in the header": lambda: b"email" + b",n" * 1_000_000 + b"\nann@shop.test\n",
    "a million columns in a row": csv_of(f"{ANN}{',' * 1_000_000}"),
    "a million columns in quotes": csv_of('"a",' * 1_000_000),
    "1,001 columns": csv_of(f"{ANN}{',' * 1_000}"),
    "a cell of 32,768 characters": csv_of(f"{ANN},{'x' * 32_768}"),
    "a row of 128 KiB": csv_of(f"{ANN}{',xxxxxxxxx' * 990}", ANN + f",{'x' * 200}" * 700),
    "a line of 8 Mi characters": csv_of(f"{ANN},{'x ' * (1 << 22)}"),
    "a quote that nothing closes": csv_of(f'{ANN},"x', *["a@b.test,1"] * 100_000),
    "a quote that opens in each cell": csv_of(*[f'{ANN},"x'] * 10_001),
    "backslashes": csv_of(f"{ANN},{BACKSLASH * 1_000_001}"),
    "a PDF": lambda: b"%PDF-1.7\n" + b"x" * 1000,
    "a database": lambda: b"SQLite format 3\0" + bytes(5000),
    "half UTF-8, half noise": lambda: csv_of(*["ä@b.test,1"] * 100)() + bytes(range(128, 256)) * 40,
    "UTF-16 cut off": lambda: f"email\n{ANN}\n".encode("utf-16")[:-1],
}
TEXTS_ACCEPTED: dict[str, Make] = {
    "1,000 columns": csv_of(f"{ANN}{',' * 999}"),
    "a cell of 32,767 characters": csv_of(f"{ANN},{'x' * 32_767}"),
    "an address of at signs": csv_of(f"{'a@' * 15_000},1"),
    "an address of brackets": csv_of(f"{'<' * 15_000}@{'>' * 15_000},1"),
    "formulas": csv_of("=cmd|' /C calc'!A0@shop.test,=1+1", "+a@shop.test,@SUM(A1)"),
    "lines of one letter": csv_of(*["a@b.test"] * 200, *["a"] * 20_000),
    "cells of quotes": csv_of(ANN + ',"' + '""' * 10_000 + '"'),
}  # fmt: skip

COMPRESSED_REFUSED: dict[str, Make] = {
    "2 GiB of zeros": lambda: gzip.compress(b"email\n") + gzip.compress(bytes(1 << 20)) * 2_048,
    "gzip in gzip": lambda: twice(csv_of()()),
    "ten times gzip": lambda: twice(csv_of()(), 10),
    "gzip cut off": lambda: gzip.compress(csv_of(*["x"] * 1000)())[:-20],
    "gzip with a wrong sum": lambda: gzip.compress(csv_of()())[:-8] + bytes(8),
    "gzip of nothing": lambda: gzip.compress(b""),
}

OBJECTS_REFUSED: dict[str, Make] = {
    "brackets that nest deep": objects_of("[" * 100_000),
    "objects that nest deep": objects_of('{"email":' * 100_000 + "1" + "}" * 100_000),
    "1,001 fields": objects_of(json.dumps({f"n{n}": 1 for n in range(1_001)})),
    "1,001 fields in as many lines": objects_of(*(f'{{"n{n}": 1}}' for n in range(1_001))),
    "a name of 70,000 characters": objects_of(json.dumps({"n" * 70_000: 1})),
    "a value of 40,000 characters": objects_of(json.dumps({"email": ANN, "n": "x" * 40_000})),
    "a line of 8 Mi characters": objects_of(json.dumps({"n": "x" * (1 << 23)})),
    "half of a character": objects_of('{"email": "\\ud800@shop.test"}'),
    "an array that nests deep": lambda: b'[{"email":' + b"[" * 100_000,
    "an array of ten million strings": lambda: b'["' + b'","' * 10_000_000 + b'"]',
    "an array of arrays": lambda: b'[{"email": "a@b.test"}, ["a@b.test"]]',
    "a number beyond floats": objects_of('{"email": 1e999}'),
    "a number without end": objects_of('{"email": 1' + "0" * 100_000 + "}"),
}
OBJECTS_ACCEPTED: dict[str, Make] = {
    "an array": lambda: json.dumps([ANN] * 1000).encode(),
    "1,000 fields": objects_of(json.dumps({f"n{n}": 1 for n in range(999)})),
    "one name a thousand times": objects_of("{" + '"email": "a@b.test",' * 1_000 + '"n": 1}'),
    "a large number as address": objects_of('{"email": 123456789012345678901234567890}'),
    "the character zero": objects_of('{"email": "a\\u0000@shop.test"}'),
}

# Each takes more than twenty times its octets, and more than a mebibyte.
WORKBOOKS_TOO_LARGE: dict[str, Make] = {
    "a long shared string in 50 rows": lambda: workbook(
        {
            "list": sheet(
                HEAD,
                *(
                    row(n, text(f"A{n}", ANN), f'<c r="B{n}" t="s"><v>0</v></c>')
                    for n in range(2, 52)
                ),
            )
        },
        strings=f"<si><t>{'x' * 32_000}</t></si>",
    ),
    "500 rows with a cell in the last column": book_of(
        *(row(n, text(f"A{n}", ANN), text(f"ALL{n}", "x")) for n in range(3, 503))
    ),
}
COMPRESSED_TOO_LARGE: dict[str, Make] = {
    "gzip of one row again and again": lambda: twice(csv_of(*[f"{ANN},{'x' * 90}"] * 20_000)(), 1),
}
OBJECTS_TOO_LARGE: dict[str, Make] = {
    "the last of 1,000 fields in 500 lines": objects_of(
        json.dumps({f"n{n}": 1 for n in range(999)}), *['{"n998": 1}'] * 500
    ),
}

TABLES: tuple[tuple[str, Expected, dict[str, Make]], ...] = (
    (".xlsx", "refused", WORKBOOKS_REFUSED),
    (".xlsx", "accepted", WORKBOOKS_ACCEPTED),
    (".xlsx", "too large to store", WORKBOOKS_TOO_LARGE),
    (".csv", "refused", TEXTS_REFUSED),
    (".csv", "accepted", TEXTS_ACCEPTED),
    (".csv.gz", "refused", COMPRESSED_REFUSED),
    (".csv.gz", "too large to store", COMPRESSED_TOO_LARGE),
    (".ndjson", "refused", OBJECTS_REFUSED),
    (".ndjson", "accepted", OBJECTS_ACCEPTED),
    (".ndjson", "too large to store", OBJECTS_TOO_LARGE),
)
