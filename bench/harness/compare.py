"""Compares two runs: which figures changed by more than noise, and how the machines differ."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct
from rich.table import Table
from rich.text import Text

from . import machine
from .figures import Figure, Run, read_run
from .tables import new_table, number

CHANCE = 0.10  # a smaller change is noise, even if the rounds agree closely
RATES = ("a second", "/s", "per second")  # units of which more is better
COSTS = ("s", "ms", "µs", "ns", "ms each", "µs each", "MiB", "KiB")  # units of which less is better
BETTER, WORSE, CHANGED = "better", "worse", "changed"
STYLES = {BETTER: "green", WORSE: "bold red", CHANGED: "yellow"}


class FigureChange(Struct, frozen=True):
    """A figure in both runs; None where a run lacks it."""

    what: str
    old: Figure | None
    new: Figure | None

    @property
    def ratio(self) -> float | None:
        """New over old; None if either is missing or not measured, or the old value is 0."""
        if self.old is None or self.new is None or not self.old.value or not self._is_measured:
            return None
        return self.new.value / self.old.value

    @property
    def mark(self) -> str:
        """`better`, `worse`, or `changed` if the direction is unknown; "" for a change within noise."""
        if self.old is None or self.new is None:
            return "new" if self.old is None else "gone"
        if not self._is_measured:
            return "not measured"
        if self.old.unit != self.new.unit:
            return "other unit"
        if not self._beyond_chance():
            return ""
        direction = _direction(self.new) or _direction(self.old)
        if not direction:
            return CHANGED
        return BETTER if (self.new.value > self.old.value) == (direction > 0) else WORSE

    @property
    def _is_measured(self) -> bool:
        return all(run is None or run.is_measured for run in (self.old, self.new))

    def _beyond_chance(self) -> bool:
        assert self.old is not None
        assert self.new is not None
        if self.ratio is None or self.ratio <= 0:
            return self.old.value != self.new.value
        leeway = 1 + max(CHANCE, self.old.spread or 0.0, self.new.spread or 0.0)
        return not 1 / leeway <= self.ratio <= leeway


def _direction(figure: Figure) -> int:
    """1 if more is better, -1 if less is better, 0 if neither the promise nor the unit says."""
    if figure.at_least is not None or figure.unit in RATES:
        return 1
    return -1 if figure.at_most is not None or figure.unit in COSTS else 0


def changes(old: Sequence[Figure], new: Sequence[Figure]) -> list[FigureChange]:
    """In the order of the new run; figures that it no longer has come last."""
    before, now = {f.what: f for f in old}, {f.what: f for f in new}
    return [FigureChange(what, before.get(what), now.get(what)) for what in {**now, **before}]


def change_table(found: Sequence[FigureChange]) -> Table:
    table = new_table("figure", "before", "now", "", "ratio", "")
    table.columns[3].justify = table.columns[5].justify = "left"
    for change in found:
        some = change.new or change.old
        assert some is not None
        table.add_row(
            Text(change.what),
            number(change.old.value) if change.old else "",
            number(change.new.value) if change.new else "",
            Text(some.unit),
            "" if change.ratio is None else f"{change.ratio:.2f}",
            Text(change.mark, style=STYLES.get(change.mark, "dim")),
        )
    return table


def notes(old: Run, machine_now: Mapping[str, Any]) -> Iterator[str]:
    """Reasons why the two runs may not be comparable."""
    reported = machine.differences(old.machine, machine_now)
    if reported:
        yield "not the same machine or versions: " + "; ".join(reported)
    if machine.is_busy(old.machine):
        yield f"the machine was busy before that run: load {old.machine['load']}"


class Earlier(Struct, frozen=True):
    """Earlier results, from one file or a whole folder; read before new results overwrite them."""

    path: Path
    runs: Mapping[str, Run]  # by suite


def read_earlier(path: Path) -> Earlier:
    """Raises OSError if the path does not exist, ValueError if it holds no results."""
    if not path.is_dir():
        run = read_run(path)
        return Earlier(path, {run.suite: run})
    runs = {}
    for file in sorted(path.glob("*.json")):
        with contextlib.suppress(ValueError):  # another program's file
            run = read_run(file)
            runs[run.suite] = run
    if not runs:
        raise ValueError(f"{path} holds no results of mailprobe bench")
    return Earlier(path, runs)
