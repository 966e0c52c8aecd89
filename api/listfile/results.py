"""The result in a row of a cleaned list: its columns, and their cells."""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from mailprobe.api.results.row_result import RowResult, suggested
from mailprobe.engine.lights import light_of
from mailprobe.engine.verdict import FIELDS

LIGHT = "light"
CAUSE_FIELDS = ("reason", "blame", "attempts")
RESULT_FIELDS = (*FIELDS, *CAUSE_FIELDS, LIGHT)
# Text from outside: the address, the name of a mail host, and the corrected address after them.
FOREIGN = (RESULT_FIELDS.index("email"), RESULT_FIELDS.index("mx_host"), len(RESULT_FIELDS))
PREFIX = "mailprobe_"
SUGGESTED = "suggested"
FORMULA_MARKS = ("=", "+", "-", "@", "\t", "\r")


class ResultColumns:
    """The columns that a cleaned list gets, and their values for a result."""

    def __init__(self, suggest: bool = False) -> None:
        self.fields = (*RESULT_FIELDS, SUGGESTED) if suggest else RESULT_FIELDS
        self._suggest = suggest
        self._nothing = [""] * len(self.fields)

    def __len__(self) -> int:
        return len(self.fields)

    def names(self, taken: Sequence[str]) -> list[str]:
        """Their names, with a prefix where the list has one of that name."""
        return free_names(self.fields, taken)

    def values(self, result: RowResult | None) -> list[Any]:
        """The values in the columns' order; all None for a row without an address."""
        if result is None:
            return [None] * len(self.fields)
        values = [*msgspec.structs.astuple(result)[: len(RESULT_FIELDS) - 1], light_of(result)]
        return [*values, suggested(result)] if self._suggest else values

    def cells(self, result: RowResult | None) -> list[str]:
        """The same as cells: `true` and `false`, nothing for null."""
        if result is None:
            return self._nothing
        return [
            value if type(value) is str else CELLS.get(type(value), str)(value)
            for value in self.values(result)
        ]

    def defused(self, cells: list[str]) -> list[str]:
        """The cells, none of which a spreadsheet would take for a formula."""
        for number in FOREIGN:
            if number < len(cells) and is_formula(cells[number].lstrip("'")):
                cells = [*cells[:number], "'" + cells[number], *cells[number + 1 :]]
        return cells


def is_formula(cell: str) -> bool:
    """Whether a spreadsheet would take a cell for a formula."""
    return cell.startswith(FORMULA_MARKS)


def undefused(cell: str) -> str:
    """A cell as it was before ResultColumns.defused."""
    return cell[1:] if cell[:1] == "'" and is_formula(cell.lstrip("'")) else cell


def free_names(fields: Sequence[str], taken: Sequence[str]) -> list[str]:
    """The fields' names, with a prefix where one is taken."""
    names = []
    for name in fields:
        while name in taken:
            name = PREFIX + name
        names.append(name)
    return names


CELLS: dict[type, Callable[[Any], str]] = {
    bool: {True: "true", False: "false"}.__getitem__,
    type(None): lambda _: "",
}
