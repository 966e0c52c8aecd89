"""Bounds of a list's rows, of whatever kind the file is.

A list comes from anybody: a few octets of a packed file may stand for a row that fills the
memory. Real lists stay far below these bounds.
"""

from collections.abc import Sequence

import msgspec

COLUMNS_MAX = 1_000  # a table of customers has dozens; each column costs in every row
ADDRESS_COLUMNS_MAX = 20  # each has its own columns of results
CELL_CHARACTERS_MAX = 32_767  # a spreadsheet's own limit; a longer cell is an unclosed quote
ROW_CHARACTERS_MAX = 1 << 22  # 4 Mi read for one row, which are held in memory
ROW_OCTETS_MAX = 1 << 16  # 64 KiB of one row as it is stored, in JSON
SAMPLE_MAX = 1 << 22  # cells and characters of the first rows, which are held in memory
SHORT_CHARACTERS = 10_000  # a row of these and few columns is within the bounds, in any script

_encode = msgspec.json.Encoder().encode


def excess_of(cells: Sequence[str]) -> str | None:
    """What a row has too much of, as the end of a sentence about it, or None."""
    if len(cells) > COLUMNS_MAX:
        return f"has more than {COLUMNS_MAX:,} columns"
    characters = sum(map(len, cells))
    if characters < SHORT_CHARACTERS:  # at most six octets each, and three for each cell
        return None
    if any(len(cell) > CELL_CHARACTERS_MAX for cell in cells):
        return f"has a cell of more than {CELL_CHARACTERS_MAX:,} characters"
    if characters > ROW_OCTETS_MAX or len(_encode(list(cells))) > ROW_OCTETS_MAX:
        return f"is longer than {ROW_OCTETS_MAX >> 10} KiB"
    return None


def weight_of(cells: Sequence[str]) -> int:
    """What a row costs in memory, in cells and characters."""
    return len(cells) + sum(map(len, cells))
