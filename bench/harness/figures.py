"""The results of a bench suite: figures, their promises, and series; read and written as JSON.

budgets.toml holds the promises, by suite and by the figure's `what`. If a figure
misses its promise by more than MISS_BY, the run ends with exit code 1. Each suite
has one JSON file, so that two runs can be compared.
"""

import json
import math
import tomllib
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from msgspec import Struct, field
from msgspec.structs import asdict, replace

BUDGETS = Path(__file__).parents[1] / "budgets.toml"
NOT_MEASURED = math.nan  # a figure's value: the machine did not let it be measured
MISS_BY = 0.25  # the difference between two runs of the same code on a busy machine


def results_folder() -> Path:
    """The default folder of results: bench/results in a checkout (git ignores it)."""
    here = Path.cwd()
    checkout = (here / "bench/harness/figures.py").is_file()
    return here / "bench/results" if checkout else here / "bench-results"


RESULTS = results_folder()


class MissingRequirement(Exception):
    """This machine lacks something that a suite needs; the message names it in one line."""


class Figure(Struct, frozen=True):
    """One measured number: the median if there were several rounds.

    `at_most` and `at_least` are the promise, in the same unit. promised() fills them
    in, or the suite does if the limit is known only at run time.
    """

    what: str
    value: float
    unit: str
    at_most: float | None = None
    at_least: float | None = None
    exact: bool = True  # the promise does not depend on chance, so it has no leeway
    spread: float | None = None  # of the rounds: (slowest - fastest) / median
    cpu_us: float | None = None  # processor time of what is measured, for each item
    load_cpu_us: float | None = None  # of the load side, to show that it is not the limit
    memory_mib: float | None = None  # peak resident memory

    @property
    def is_measured(self) -> bool:
        return not math.isnan(self.value)

    @property
    def kept(self) -> bool:
        """True if the promise is kept, or there is none."""
        return self._within(0.0)

    @property
    def missed(self) -> bool:
        """True if the promise is missed by more than chance explains."""
        return not self._within(0.0 if self.exact else MISS_BY)

    def _within(self, leeway: float) -> bool:
        return (self.at_most is None or self.value <= self.at_most * (1 + leeway)) and (
            self.at_least is None or self.value >= self.at_least / (1 + leeway)
        )

    @property
    def promise(self) -> str:
        if self.at_most is not None:
            return f"≤ {self.at_most:g}"
        return f"≥ {self.at_least:g}" if self.at_least is not None else ""


Point = tuple[float, float]


class Series(Struct, frozen=True):
    """One line of a plot: y as a function of x.

    Series of one suite with the same labels and unit share one plot.
    """

    what: str
    x_label: str  # with its unit: "latency of the exchanges, ms"
    y_label: str  # without its unit: "addresses"
    unit: str  # of y: "a second"
    points: list[Point]
    ideal: list[Point] | None = None  # the best possible: if our own work cost nothing


class Result(Struct, frozen=True):
    """Everything that a suite measured."""

    figures: list[Figure]
    series: list[Series] = field(default_factory=list)


class Run(Struct, frozen=True):
    """A suite's result, its time, and its machine (as mailprobe.bench.harness.machine has it)."""

    suite: str
    at: str
    machine: Mapping[str, Any]
    result: Result


def promised(suite: str, figures: Sequence[Figure], budgets: Path | None = None) -> list[Figure]:
    """The figures with their promises from `budgets`, by default budgets.toml.

    Raises ValueError for a promise without a figure: otherwise a renamed figure
    would lose its promise unnoticed.
    """
    budgets = budgets or BUDGETS
    promises = tomllib.loads(budgets.read_text("utf-8")).get(suite, {})
    unknown = promises.keys() - {figure.what for figure in figures}
    if unknown:
        raise ValueError(f"{budgets.name} promises what {suite} does not measure: {unknown}")
    return [
        replace(figure, **{"exact": False, **promises[figure.what]})
        if figure.what in promises
        else figure
        for figure in figures
    ]


# -- as JSON ---------------------------------------------------------------------------------


def write_results(
    suite: str,
    result: Result | Sequence[Figure],
    folder: Path = RESULTS,
    machine: Mapping[str, Any] | None = None,
) -> Path:
    """Write a suite's result as JSON and return the file's path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{suite}.json"
    row = {
        "suite": suite,
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": dict(machine or {}),
        **to_json(result if isinstance(result, Result) else Result(list(result))),
    }
    part = path.with_suffix(".part")  # an interrupted write leaves the old results whole
    part.write_text(json.dumps(row, indent=1, ensure_ascii=False) + "\n", "utf-8")
    part.replace(path)
    return path


def to_json(result: Result) -> dict[str, Any]:
    """A result as in a file of results, and in the last line of a suite's process."""
    return {
        "figures": [_figure_to_json(figure) for figure in result.figures],
        "series": [asdict(series) for series in result.series],
    }


def _figure_to_json(figure: Figure) -> dict[str, Any]:
    """JSON has no NaN: what was not measured is null there."""
    row = asdict(figure)
    return row if figure.is_measured else {**row, "value": None}


def _figure(row: Mapping[str, Any]) -> Figure:
    return Figure(**{**row, "value": NOT_MEASURED if row["value"] is None else row["value"]})


def read_results(text: str) -> Result:
    """The result in a text that to_json() or write_results() made.

    Raises ValueError, KeyError or TypeError for any other text.
    """
    row = json.loads(text)
    return Result(
        [_figure(figure) for figure in row["figures"]],
        [_series(series) for series in row.get("series", ())],
    )


def _series(row: Mapping[str, Any]) -> Series:
    """A series from JSON, which has lists where points were tuples."""
    points = [(x, y) for x, y in row["points"]]
    ideal = None if row.get("ideal") is None else [(x, y) for x, y in row["ideal"]]
    return Series(**{**row, "points": points, "ideal": ideal})


def read_run(path: Path) -> Run:
    """Read a file of results. Raises OSError if it can't be read, ValueError if it holds none."""
    text = path.read_text("utf-8")
    try:
        row = json.loads(text)
        machine = row["machine"]
        if isinstance(machine, str):  # written before the machine was described
            machine = {"architecture": machine, "python": row["python"]}
        return Run(row["suite"], row["at"], machine, read_results(text))
    except (KeyError, TypeError, ValueError, AttributeError) as wrong:
        raise ValueError(f"{path} holds no results of mailprobe bench") from wrong
