"""Figures as a table for the terminal, with whether each promise is kept. Pure, except for rich."""

from collections.abc import Callable, Sequence
from itertools import compress
from math import isnan

from msgspec import Struct
from rich import box
from rich.table import Table
from rich.text import Text

from .figures import Figure

KEPT, NEARLY, MISSED, UNMEASURED = "kept", "nearly", "MISSED", "not measured"
STYLES = {KEPT: "green", NEARLY: "yellow", MISSED: "bold red", UNMEASURED: "bold red"}


class Column(Struct, frozen=True):
    """One column of figure_table; left out if no figure has a value for it."""

    title: str
    cell: Callable[[Figure], str]
    left: bool = False


COLUMNS = (
    Column("value", lambda figure: number(figure.value)),
    Column("", lambda figure: figure.unit, left=True),
    Column("spread", lambda figure: share(figure.spread)),
    Column("CPU µs each", lambda figure: number(figure.cpu_us)),
    Column("load's CPU µs", lambda figure: number(figure.load_cpu_us)),
    Column("MiB", lambda figure: number(figure.memory_mib)),
    Column("promise", lambda figure: figure.promise),
)


def verdict_on(figure: Figure) -> str:
    """KEPT, NEARLY or MISSED; "" without a promise. UNMEASURED in any case: it keeps no promise."""
    if not figure.is_measured:
        return UNMEASURED
    if not figure.promise:
        return ""
    return KEPT if figure.kept else MISSED if figure.missed else NEARLY


def new_table(*titles: str) -> Table:
    """A table in the style of the other commands; the first column is text, the rest numbers."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, collapse_padding=True)
    first, *others = titles
    table.add_column(first, overflow="fold", min_width=20)
    for title in others:
        table.add_column(title, justify="right", no_wrap=True)
    return table


def figure_table(figures: Sequence[Figure]) -> Table:
    """One row per figure, without the columns that are empty for all of them."""
    rows = [[column.cell(figure) for column in COLUMNS] for figure in figures]
    filled = [any(cells) for cells in zip(*rows, strict=True)] or [False] * len(COLUMNS)
    table = new_table("figure", *compress((column.title for column in COLUMNS), filled), "")
    for shown, column in zip(table.columns[1:], compress(COLUMNS, filled), strict=False):
        shown.justify = "left" if column.left else "right"
    table.columns[-1].justify = "left"
    for figure, row in zip(figures, rows, strict=True):
        verdict = verdict_on(figure)
        marked = Text(verdict, style=STYLES.get(verdict, ""))
        table.add_row(Text(figure.what), *map(Text, compress(row, filled)), marked)
    return table


def number(value: float | None) -> str:
    """About three digits: `4,000`, `230`, `3.41`, `0.0123`; "" for None, `-` for what was not measured."""
    if value is None:
        return ""
    if isnan(value):
        return "-"
    if value == int(value) and abs(value) < 1e12:
        return f"{int(value):,}"
    size = abs(value)
    if size >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if size >= 10 else f"{value:.2f}" if size >= 1 else f"{value:.3g}"


def share(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.0f} %"
