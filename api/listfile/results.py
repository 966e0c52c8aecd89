"""The results in a row of a cleaned list: their columns, and their cells."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from mailprobe.engine.verdict import FIELDS, LIGHTS_BEST_FIRST, light_of

from ..results.row_result import RowResult, suggested
from .formulas import guarded

LIGHT = "light"
CAUSE_FIELDS = ("reason", "blame", "attempts")
RESULT_FIELDS = (*FIELDS, *CAUSE_FIELDS, LIGHT)
SUGGESTED = "suggested"
OTHERS = "others"  # the addresses of a cell that has several, each with its light
SHORT_FIELDS = (LIGHT, "reason", "suggestion")  # what people use
CHOICES = (*RESULT_FIELDS, SUGGESTED)  # of --columns
# Text from outside: the address, the name of a mail host, and what is made of the address.
FOREIGN = frozenset({"email", "mx_host", "suggestion", SUGGESTED, OTHERS})
PREFIX = "mailprobe_"
OTHERS_CHARACTERS_MAX = 30_000  # a workbook's cell takes 32,767


class CellAnswer(msgspec.Struct, frozen=True):
    """What was found for the addresses of a cell: `result` is that of the best one."""

    result: RowResult | None = None
    others: str | None = None


NO_ANSWER = CellAnswer()
Values = list[Any]  # text, numbers, truths and None
# Of a row: of its only cell, or of each of its cells with addresses.
RowAnswer = RowResult | None | Sequence[CellAnswer]


def best_of(results: Iterable[RowResult]) -> RowResult | None:
    """The first of those with the best light; None if there are none."""
    return min(results, key=lambda each: LIGHTS_BEST_FIRST.index(light_of(each)), default=None)


def answer_of(results: Sequence[RowResult]) -> CellAnswer:
    """The answer for a cell with these addresses."""
    if len(results) < 2:
        return CellAnswer(results[0] if results else None)
    shown = "; ".join(f"{each.email} {light_of(each)}" for each in results)
    if len(shown) > OTHERS_CHARACTERS_MAX:
        shown = shown[:OTHERS_CHARACTERS_MAX].rpartition(";")[0] + "; …"
    return CellAnswer(best_of(results), shown)


def results_in(answer: RowAnswer) -> list[RowResult]:
    """The results that a row shows."""
    if answer is None:
        return []
    if isinstance(answer, RowResult):
        return [answer]
    return [each.result for each in answer if each.result is not None]


class ResultColumns:
    """The columns that a cleaned list gets, and their values for a row.

    `chosen` are the fields, all of them without it. `sources` are the names of the columns that
    were verified, where each has its own group of columns.
    """

    def __init__(
        self,
        suggest: bool = False,
        *,
        chosen: Sequence[str] | None = None,
        has_others: bool = False,
        sources: Sequence[str] = (),
        come_first: bool = False,
    ) -> None:
        fields = [*(RESULT_FIELDS if chosen is None else chosen)]
        if suggest and SUGGESTED not in fields:
            fields.append(SUGGESTED)
        if has_others:
            fields.append(OTHERS)
        self.come_first = come_first  # before the list's own, where rows are written as text
        self.fields = named_fields(fields, sources)
        self._groups = max(1, len(sources))
        self._picked = [ALL_FIELDS.index(name) for name in fields]
        self._takes_all = tuple(fields) == RESULT_FIELDS
        self._foreign = [at for at, name in enumerate(fields * self._groups) if name in FOREIGN]
        self._nothing: Values = [None] * len(self.fields)
        self._empty = [""] * len(self.fields)

    def __len__(self) -> int:
        return len(self.fields)

    def names(self, taken: Sequence[str]) -> list[str]:
        """Their names, with a prefix where the list has one of that name."""
        return free_names(self.fields, taken)

    def values(self, answer: RowAnswer) -> Values:
        """The values in the columns' order; all None for a row without an address."""
        if answer is None:
            return self._nothing
        if isinstance(answer, RowResult):
            return self._of_cell(answer, None)
        return [value for each in answer for value in self._of_cell(each.result, each.others)]

    def _of_cell(self, result: RowResult | None, others: str | None) -> Values:
        if result is None:
            return [None] * len(self._picked)
        values = [*msgspec.structs.astuple(result)[: len(RESULT_FIELDS) - 1], light_of(result)]
        if self._takes_all:
            return values
        values += (suggested(result), others)
        return [values[at] for at in self._picked]

    def cells(self, answer: RowAnswer) -> list[str]:
        """The same as cells: `true` and `false`, nothing for null."""
        if answer is None:
            return self._empty
        return [
            value if type(value) is str else CELLS.get(type(value), str)(value)
            for value in self.values(answer)
        ]

    def defused(self, cells: list[str]) -> list[str]:
        """The cells, none of which a spreadsheet would take for a formula."""
        for at in self._foreign:
            if (cell := cells[at]) and (safe := guarded(cell)) is not cell:
                cells = [*cells[:at], safe, *cells[at + 1 :]]
        return cells


ALL_FIELDS = (*RESULT_FIELDS, SUGGESTED, OTHERS)


def named_fields(fields: Sequence[str], sources: Sequence[str]) -> tuple[str, ...]:
    """The fields for each of the columns that were verified, with its name before them."""
    if not sources:
        return tuple(fields)
    return tuple(f"{source}_{name}" for source in sources for name in fields)


def free_names(fields: Sequence[str], taken: Sequence[str]) -> list[str]:
    """The fields' names, with a prefix where one is taken."""
    names: list[str] = []
    for name in fields:
        while name in taken or name in names:
            name = PREFIX + name
        names.append(name)
    return names


CELLS: dict[type, Callable[[Any], str]] = {
    bool: {True: "true", False: "false"}.__getitem__,
    type(None): lambda _: "",
}
