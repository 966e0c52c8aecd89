"""The summary of a cleaned workbook: a sheet with the counts and a chart.

xlsxwriter draws it. Into an existing workbook its parts are copied under names of their
own, and the workbook's list of sheets gets one entry more.
"""

import io
import zipfile
from typing import TYPE_CHECKING

from ...results.advice import ANSWERS
from ...results.counts import ResultCounts
from ...results.lights import LIGHT_COLOURS, WORDS
from .markup import elements_of, escaped, with_children
from .package import TYPES_PART
from .styles import FILLS

if TYPE_CHECKING:
    import xlsxwriter

    from .package import Package, SheetEntry

TITLE = "mailprobe summary"
STEM = "mailprobe_summary"
CHART_CELL = "E2"

RELATIONSHIPS = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
SHEET_PART = "xl/worksheets/{}.xml"
# The parts that xlsxwriter makes, the names they get, and their types.
PARTS = {
    "xl/worksheets/sheet1.xml": SHEET_PART,
    "xl/worksheets/_rels/sheet1.xml.rels": "xl/worksheets/_rels/{}.xml.rels",
    "xl/drawings/drawing1.xml": "xl/drawings/{}.xml",
    "xl/drawings/_rels/drawing1.xml.rels": "xl/drawings/_rels/{}.xml.rels",
    "xl/charts/chart1.xml": "xl/charts/{}.xml",
}
TYPES = {
    SHEET_PART: "application/vnd.openxmlformats-officedocument.spreadsheetml.worksheet+xml",
    "xl/drawings/{}.xml": "application/vnd.openxmlformats-officedocument.drawing+xml",
    "xl/charts/{}.xml": "application/vnd.openxmlformats-officedocument.drawingml.chart+xml",
}


def is_summary(entry: "SheetEntry") -> bool:
    """Whether an earlier cleaning has written this sheet."""
    return entry.part == SHEET_PART.format(STEM) and entry.title.startswith(TITLE)


def add_summary(book: "xlsxwriter.Workbook", counts: ResultCounts, title: str = TITLE) -> None:
    """Add the sheet to a workbook of xlsxwriter."""
    sheet = book.add_worksheet(title)
    sheet.set_column(0, 0, 32)
    rows: list[tuple[str | int, ...]] = [("verdict", "rows", "light")]
    rows += [(ANSWERS[light].word, counts.lights[light], light) for light in LIGHT_COLOURS]
    rows += [(), ("status", "rows"), *counts.statuses.most_common()]
    rows += [(), ("reason", "rows")]
    rows += [(WORDS.get(reason, reason), count) for reason, count in counts.reasons.most_common()]
    for number, cells in enumerate(rows):
        for place, cell in enumerate(cells):
            write = sheet.write_string if isinstance(cell, str) else sheet.write_number
            write(number, place, cell)
    last = len(LIGHT_COLOURS)
    chart = book.add_chart({"type": "bar"})
    chart.add_series(
        {
            "name": "rows",
            "categories": [title, 1, 0, last, 0],
            "values": [title, 1, 1, last, 1],
            "points": [
                {"fill": {"color": f"#{FILLS[colour]}"}} for colour in LIGHT_COLOURS.values()
            ],
            "data_labels": {"value": True},
            "gap": 40,
        }
    )
    chart.set_title({"name": "Rows by verdict"})
    chart.set_legend({"none": True})
    chart.set_y_axis({"reverse": True})
    chart.set_x_axis({"major_gridlines": {"visible": False}, "num_format": "#,##0"})
    sheet.insert_chart(CHART_CELL, chart)


class SummaryParts:
    """The summary as parts of an existing workbook, in place of those of an earlier cleaning."""

    def __init__(self, package: "Package") -> None:
        self._workbook = package.workbook_part
        self._relations = package.relations_part
        self._relation = f"rIdMailprobe{len(package.sheets)}"
        names = {name.lower() for name in package.names()}
        earlier = next((each for each in package.sheets if is_summary(each)), None)
        self._is_new = earlier is None
        if earlier is not None:
            self._title, self._stem = earlier.title, STEM
        else:
            self._title = _free(TITLE, {each.title.casefold() for each in package.sheets}, " {}")
            self._stem = _free(STEM, names, "_{}", SHEET_PART)
        # The format's strict variant has another namespace.
        self._is_possible = RELATIONSHIPS.encode() in package.octets(self._workbook)

    def concerns(self, part: str) -> bool:
        """Whether the part gets an entry for the new sheet."""
        return part in (self._workbook, self._relations)

    def replaces(self, part: str) -> bool:
        return not self._is_new and part in {name.format(STEM) for name in PARTS.values()}

    def changed(self, part: str, octets: bytes) -> bytes:
        """A part of the workbook, with what the new sheet needs in it."""
        if not (self._is_possible and self._is_new):
            return octets
        if part == self._workbook:
            return self._with_sheet(octets)
        if part == self._relations:
            target = SHEET_PART.format(self._stem).removeprefix("xl/")
            if not self._workbook.startswith("xl/"):
                target = "/" + SHEET_PART.format(self._stem)
            return _appended(
                octets,
                "Relationships",
                f'Relationship Id="{self._relation}" Type="{RELATIONSHIPS}/worksheet" Target="{target}"',
            )
        if part == TYPES_PART:
            entries = (
                f'Override PartName="/{name.format(self._stem)}" ContentType="{kind}"'
                for name, kind in TYPES.items()
            )
            return _appended(octets, "Types", *entries)
        return octets

    def _with_sheet(self, octets: bytes) -> bytes:
        sheets = elements_of(octets, "sheet")
        numbers = [int(sheet.attributes.get("sheetId", "0")) for sheet in sheets]
        # The prefix is declared here: each other sheet may declare its own.
        title = escaped(self._title).replace('"', "&quot;")
        return _appended(
            octets,
            "sheets",
            f'sheet name="{title}" sheetId="{max(numbers, default=0) + 1}" '
            f'xmlns:r="{RELATIONSHIPS}" r:id="{self._relation}"',
        )

    def write(self, out: zipfile.ZipFile, counts: ResultCounts) -> None:
        """Write the new sheet's parts."""
        import xlsxwriter

        if not self._is_possible:
            return
        drawn = io.BytesIO()
        with xlsxwriter.Workbook(drawn, {"constant_memory": True}) as book:
            add_summary(book, counts, self._title)
        with zipfile.ZipFile(drawn) as made:
            for part, name in PARTS.items():
                octets = made.read(part).replace(b' tabSelected="1"', b"")
                octets = octets.replace(b"/drawing1.xml", f"/{self._stem}.xml".encode())
                octets = octets.replace(b"/chart1.xml", f"/{self._stem}.xml".encode())
                # No time of day: the same list and answers make the same file.
                info = zipfile.ZipInfo(name.format(self._stem))
                out.writestr(info, octets, zipfile.ZIP_DEFLATED)


def _appended(octets: bytes, name: str, *entries: str) -> bytes:
    """A part with entries at the end of its first element of that name, under its prefix."""
    parent = elements_of(octets, name)[0]
    made = "".join(f"<{parent.prefix}{entry}/>" for entry in entries)
    return with_children(octets, parent, made)


def _free(name: str, taken: set[str], numbered: str, pattern: str = "{}") -> str:
    """The name, or the first numbered one that is not taken."""
    free, number = name, 1
    while pattern.format(free).lower() in taken:
        number += 1
        free = name + numbered.format(number)
    return free
