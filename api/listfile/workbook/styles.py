"""Looks of an existing workbook: colours for lights and statuses, a frozen header, a filter.

They are added to the file's own XML (ECMA-376 18.3 and 18.8). What is not written as
expected stays as it is.
"""

import re
from collections.abc import Mapping

from ...results.lights import LIGHT_COLOURS, STATUS_COLOURS, StatusColour
from .markup import Element, elements_of, with_children

# The fills that spreadsheets use for good, neutral and bad, and their light grey.
FILLS: Mapping[StatusColour, str] = {
    "green": "C6EFCE",
    "yellow": "FFEB9C",
    "red": "FFC7CE",
    "grey": "E7E6E6",
}
# The values of results that have a colour.
COLOURS: Mapping[str, StatusColour] = dict((*LIGHT_COLOURS.items(), *STATUS_COLOURS.items()))

VIEW = re.compile(rb"<((?:\w+:)?)sheetView(?=[\s/>])([^>]*?)(/?)>")
AFTER_ROWS = re.compile(rb"</((?:\w+:)?)sheetData>")
# Elements that come before a filter, and parts that have filters of their own.
NO_FILTER = re.compile(
    rb"<(?:\w+:)?(?:sheetCalcPr|sheetProtection|protectedRanges|scenarios|autoFilter|tableParts)\b"
)
FILTER = re.compile(rb'(<(?:\w+:)?autoFilter\s[^>]*?ref="\$?[A-Z]+\$?[0-9]+:\$?)([A-Z]+)')


def with_colours(octets: bytes) -> tuple[bytes, dict[str, int]]:
    """The workbook's styles with a format for each colour, and the formats' numbers by value."""
    fills = _first(octets, "fills")
    formats = _first(octets, "cellXfs")
    if fills is None or formats is None:
        return octets, {}
    first_fill, first_format, prefix = fills.children, formats.children, fills.prefix
    pattern = '<{0}fill><{0}patternFill patternType="solid"><{0}fgColor rgb="FF{1}"/></{0}patternFill></{0}fill>'
    made = "".join(pattern.format(prefix, colour) for colour in FILLS.values())
    octets = with_children(octets, fills, made, first_fill + len(FILLS))
    made = "".join(
        f'<{prefix}xf numFmtId="0" fontId="0" fillId="{first_fill + number}" borderId="0" xfId="0" '
        'applyFill="1"/>'
        for number in range(len(FILLS))
    )
    formats = _first(octets, "cellXfs")
    assert formats is not None
    octets = with_children(octets, formats, made, first_format + len(FILLS))
    numbers = {colour: first_format + number for number, colour in enumerate(FILLS)}
    return octets, {value: numbers[colour] for value, colour in COLOURS.items()}


def _first(octets: bytes, name: str) -> Element | None:
    """The first element of that name; None also without styles."""
    return next(iter(elements_of(octets, name)), None) if octets else None


def with_frozen_header(head: bytes, rows: int) -> bytes:
    """The XML before the rows, with the first rows frozen, if nothing is frozen or split yet."""
    view = VIEW.search(head)
    if view is None or b"<" + view[1] + b"pane" in head:
        return head
    prefix = view[1].decode()
    pane = f'<{prefix}pane ySplit="{rows}" topLeftCell="A{rows + 1}" activePane="bottomLeft" state="frozen"/>'
    opening = b"<" + view[1] + b"sheetView" + view[2].rstrip() + b">" + pane.encode()
    closing = b"</" + view[1] + b"sheetView>" if view[3] else b""
    return head[: view.start()] + opening + closing + head[view.end() :]


def with_filter(tail: bytes, area: str, last_column: str) -> bytes:
    """The XML after the rows, with a filter over the area, such as A1:F20.

    An existing filter is widened to the last column.
    """
    if (found := FILTER.search(tail)) is not None:
        return tail[: found.start()] + found[1] + last_column.encode() + tail[found.end() :]
    end = AFTER_ROWS.search(tail)
    if end is None or NO_FILTER.search(tail) is not None:
        return tail
    made = f'<{end[1].decode()}autoFilter ref="{area}"/>'.encode()
    return tail[: end.end()] + made + tail[end.end() :]
