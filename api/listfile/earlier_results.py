"""The columns of results that a list has from an earlier cleaning: another one refreshes them. Pure."""

import re
from collections.abc import Sequence

from mailprobe.api.listfile.dialect import Dialect
from mailprobe.api.listfile.results import LIGHT, RESULT_FIELDS, SUGGESTED, free_names
from mailprobe.engine.verdict import FIELDS

# The columns of results, today's and those of versions before the reasons; longest first.
KNOWN: tuple[tuple[str, ...], ...] = (
    (*RESULT_FIELDS, SUGGESTED),
    RESULT_FIELDS,
    (*FIELDS, LIGHT),
)
NONE = range(0)


def find_earlier_results(names: Sequence[str]) -> range:
    """The positions of the results among a table's columns; empty if it has none."""
    for fields in KNOWN:
        for start in range(len(names) - len(fields) + 1):
            stop = start + len(fields)
            if not (names[start].endswith(fields[0]) and names[stop - 1].endswith(fields[-1])):
                continue
            others = [*names[:start], *names[stop:]]
            found = list(names[start:stop])
            if found in (free_names(fields, names[:start]), free_names(fields, others)):
                return range(start, stop)
    return NONE


def named_results(values: Sequence[str]) -> dict[str, str]:
    """The values of an earlier cleaning by field; empty without one, or if some are missing."""
    fields = next((fields for fields in KNOWN if len(fields) == len(values)), ())
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
