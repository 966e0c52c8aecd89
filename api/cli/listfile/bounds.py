"""Bounds of a list's rows, of whatever kind the file is.

A list comes from anybody: a few octets of a packed file may stand for a row that fills the
memory. Real lists stay far below these bounds.
"""

from collections.abc import Sequence

import msgspec

COLUMNS_MAX = 1_000  # a table of customers has dozens; each column costs in every row
CELL_CHARACTERS_MAX = 32_767  # a spreadsheet's own limit; a longer cell is an unclosed quote
ROW_CHARACTERS_MAX = 1 << 22  # 4 Mi read for one row, which are held in memory
ROW_OCTETS_MAX = 1 << 16  # 64 KiB of one row as it is stored, in JSON
JSON_OCTETS_MAX = 6  # of one character of a string, as in \u0000
CELL_MARKS = 3  # quotes and a comma

_encode = msgspec.json.Encoder().encode


def excess_of(cells: Sequence[str]) -> str | None:
    """What a row has too much of, as the end of a sentence about it, or None."""
    if len(cells) > COLUMNS_MAX:
        return f"has more than {COLUMNS_MAX:,} columns"
    characters = sum(map(len, cells))
    if JSON_OCTETS_MAX * characters + CELL_MARKS * len(cells) < ROW_OCTETS_MAX:
        return None
    if any(len(cell) > CELL_CHARACTERS_MAX for cell in cells):
        return f"has a cell of more than {CELL_CHARACTERS_MAX:,} characters"
    if characters > ROW_OCTETS_MAX or len(_encode(list(cells))) > ROW_OCTETS_MAX:
        return f"is longer than {ROW_OCTETS_MAX >> 10} KiB"
    return None
