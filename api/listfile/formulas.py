"""Guards cells of CSV that a spreadsheet would take for formulas, with an apostrophe before them.

The one rule for all CSV that is written: outputs of `clean`, downloads of lists and of the audit log
(OWASP, "CSV Injection"). Values of ours are guarded so that they can be read back. A list's own
cells stay as they are where nothing is to be feared: a number, what a telephone number may have, and
a cell that has its apostrophe already.
"""

import re
from collections.abc import Sequence
from typing import Literal

Formulas = Literal["guard", "keep"]  # what becomes of a list's own cells

MARKS = ("=", "+", "-", "@", "\t", "\r")
# A dash, a number such as -1.50, a telephone number such as +49 (30) 123-4.
HARMLESS = re.compile(r"-{1,3}|[+-]?[0-9][0-9.,]*%?|\+[0-9 ().,/-]{5,}")


def is_formula(cell: str) -> bool:
    """Whether a spreadsheet would take a cell for a formula."""
    return cell.startswith(MARKS)


def guarded(value: str) -> str:
    """A value of ours as text: `unguarded` gives it back."""
    return "'" + value if is_formula(value.lstrip("'")) else value


def unguarded(cell: str) -> str:
    """A value as it was before it was guarded."""
    return cell[1:] if cell[:1] == "'" and is_formula(cell.lstrip("'")) else cell


def needs_guard(cell: str) -> bool:
    """Whether a list's own cell gets an apostrophe."""
    return cell.startswith(MARKS) and HARMLESS.fullmatch(cell) is None


def guarded_cells(cells: Sequence[str]) -> list[str]:
    """The own cells of a row as text."""
    return ["'" + cell if needs_guard(cell) else cell for cell in cells]
