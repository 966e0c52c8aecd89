"""The columns of results that a list has from an earlier cleaning: another one refreshes them. Pure."""

import re
from collections.abc import Iterable, Sequence

from msgspec import Struct

from mailprobe.engine.verdict import FIELDS

from ..cells.unwrapping import read_cell
from .dialect import Dialect
from .formulas import MARKS, needs_guard
from .results import (
    LIGHT,
    OTHERS,
    RESULT_FIELDS,
    SUGGESTED,
    free_names,
    named_fields,
)

# Columns that results may have after the others; longest first.
FURTHER_FIELDS = ((SUGGESTED, OTHERS), (SUGGESTED,), (OTHERS,), ())
# The columns of results, today's and those of versions before the reasons; longest first.
KNOWN: tuple[tuple[str, ...], ...] = (
    *((*RESULT_FIELDS, *more) for more in FURTHER_FIELDS),
    (*FIELDS, LIGHT),
)
NONE = range(0)
EMAIL = "email"  # the field of the address that was asked


class EarlierResults(Struct, frozen=True):
    """Where a table has results of an earlier cleaning, and which; no fields: nowhere."""

    place: range = NONE
    fields: tuple[str, ...] = ()  # of each column that was verified


def earlier_results(
    names: Sequence[str], sources: Sequence[str] = (), chosen: Sequence[str] | None = None
) -> EarlierResults:
    """The results of a table, of columns with these names where the results have them.

    Results of `chosen` fields count if the light is among them: other names may be a list's own.
    """
    known = KNOWN
    if chosen is not None and LIGHT in chosen:
        known = (*((*chosen, *more) for more in FURTHER_FIELDS), *KNOWN)
    for each in known:
        fields = named_fields(each, sources)
        for start in range(len(names) - len(fields) + 1):
            stop = start + len(fields)
            if not (names[start].endswith(fields[0]) and names[stop - 1].endswith(fields[-1])):
                continue
            others = [*names[:start], *names[stop:]]
            found = list(names[start:stop])
            if found in (free_names(fields, names[:start]), free_names(fields, others)):
                return EarlierResults(range(start, stop), each)
    return EarlierResults()


def are_others(rows: Iterable[tuple[str, str]]) -> bool:
    """Whether most rows' results are about other addresses than those of their cell.

    A row is the address that was asked, and the cell. Rows that lack either do not count.
    """
    same = others = 0
    for asked, cell in rows:
        if asked and (addresses := read_cell(cell).addresses):
            same += asked in addresses
            others += asked not in addresses
    return others > same


def named_results(values: Sequence[str], fields: Sequence[str]) -> dict[str, str]:
    """The values of an earlier cleaning by field; empty without one, or if some are missing."""
    if len(values) < len(fields):
        return {}
    return dict(zip(fields, values, strict=False))


def without(cells: list[str], earlier: range) -> list[str]:
    """The cells that are the list's own."""
    return cells[: earlier.start] + cells[earlier.stop :] if earlier else cells


def around(raw: str, dialect: Dialect, earlier: range) -> tuple[str, str]:
    """A record's own text before and after its results, without the delimiters between them."""
    starts = _starts(raw, dialect)
    before = raw if earlier.start >= len(starts) else raw[: max(starts[earlier.start] - 1, 0)]
    after = raw[starts[earlier.stop] :] if earlier.stop < len(starts) else ""
    return before, after


def guarded_text(raw: str, dialect: Dialect) -> str:
    """A record's own text, in which no cell is a formula for a spreadsheet."""
    starts = _starts(raw, dialect)
    for start, stop in reversed([*zip(starts, [*starts[1:], len(raw) + 1], strict=True)]):
        at = start
        if dialect.spaced:
            at += len(raw[at:]) - len(raw[at:].lstrip(" "))
        end = stop - 1
        if dialect.quoted and raw[at : at + 1] == '"':
            at, end = at + 1, end - 1
        if raw[at : at + 1] in MARKS and needs_guard(raw[at:end].rstrip("\r\n")):
            raw = raw[:at] + "'" + raw[at:]
    return raw


def _starts(raw: str, dialect: Dialect) -> list[int]:
    """Where the record's cells begin."""
    mark = re.escape(dialect.delimiter)
    escape, backslash = (r"|\\.", r"\\") if dialect.escaped else ("", "")
    plain = f"(?:[^{mark}{backslash}]{escape})*"
    quoted = f'{" *" if dialect.spaced else ""}"(?:[^"{backslash}]|""{escape})*"(?={mark}|\\Z)|'
    cell = re.compile(f"{quoted if dialect.quoted else ''}{plain}", re.DOTALL)
    starts, position = [0], 0
    while True:
        found = cell.match(raw, position)
        assert found is not None  # an empty cell matches
        position = found.end() + 1
        if position > len(raw):
            return starts
        starts.append(position)
