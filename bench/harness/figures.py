"""What a bench suite gives: figures, each with its promise where there is one, and series.

Promises stand in budgets.toml, by suite and by the figure's words.
A figure that misses its own by more than MISS_BY makes the run end with exit code 1.
Results are also written as JSON, one file a suite, so that two runs can be compared.
"""

import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

BUDGETS = Path(__file__).parents[1] / "budgets.toml"
MISS_BY = 0.25  # what the same code differs by between two runs on a busy machine


def results_folder() -> Path:
    """Where results go unless somebody says: within a checkout bench/results, which git ignores."""
    here = Path.cwd()
    checkout = (here / "bench/harness/figures.py").is_file()
    return here / "bench/results" if checkout else here / "bench-results"


RESULTS = results_folder()


class MissingRequirement(Exception):
    """This machine has not what a suite needs; the message is one line that names it."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured number: the median of its rounds where there were several.

    `at_most` and `at_least` are what we promise, in the same unit: filled in by
    promised(), or by the suite itself where only it knows what all of them are.
    """

    what: str
    value: float
    unit: str
    at_most: float | None = None
    at_least: float | None = None
    exact: bool = True  # a promise that chance can't miss: it has no leeway
    spread: float | None = None  # of the rounds: (slowest - fastest) / median
    cpu_us: float | None = None  # processor time of what is measured, for each item
    load_cpu_us: float | None = None  # of the load side: the other end must not be the limit
    memory_mib: float | None = None  # resident memory that it took, at its most

    @property
    def kept(self) -> bool:
        """The promise is kept, or there is none."""
        return self._within(0.0)

    @property
    def missed(self) -> bool:
        """The promise is missed by more than chance explains."""
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


@dataclass(frozen=True, slots=True)
class Series:
    """One line of a plot: how something changes with something else.

    Series of one suite with the same labels and unit are drawn into one plot.
    """

    what: str
    x_label: str  # with its unit: "latency of the exchanges, ms"
    y_label: str  # without its unit: "addresses"
    unit: str  # of y: "a second"
    points: list[Point]
    ideal: list[Point] | None = None  # what could be had if nothing of ours cost anything


@dataclass(frozen=True, slots=True)
class Result:
    """All that a suite gives."""

    figures: list[Figure]
    series: list[Series] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Run:
    """A suite's result, and where and when it came about (mailprobe.bench.harness.machine)."""

    suite: str
    at: str
    machine: Mapping[str, Any]
    result: Result


def promised(suite: str, figures: Sequence[Figure], budgets: Path | None = None) -> list[Figure]:
    """The figures with what `budgets`, else budgets.toml, promises of them.

    Raises ValueError for a promise of a figure that the suite does not give: a
    figure that changed its words would leave its promise to nobody.
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
    """Keep a suite's result as JSON; gives the file."""
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
    """A result as it stands in a file, and in the line that a suite's process ends with."""
    return {
        "figures": [asdict(figure) for figure in result.figures],
        "series": [asdict(series) for series in result.series],
    }


def read_results(text: str) -> Result:
    """The result in such a line, or in a file of results.

    Raises ValueError (or KeyError, TypeError) for a text that is neither.
    """
    row = json.loads(text)
    return Result(
        [Figure(**figure) for figure in row["figures"]],
        [_series(series) for series in row.get("series", ())],
    )


def _series(row: Mapping[str, Any]) -> Series:
    """With its points as tuples again, which JSON has not."""
    points = [(x, y) for x, y in row["points"]]
    ideal = None if row.get("ideal") is None else [(x, y) for x, y in row["ideal"]]
    return Series(**{**row, "points": points, "ideal": ideal})


def read_run(path: Path) -> Run:
    """A file of results. Raises OSError where there is none, ValueError where it is none."""
    text = path.read_text("utf-8")
    try:
        row = json.loads(text)
        machine = row["machine"]
        if isinstance(machine, str):  # written before the machine was described
            machine = {"architecture": machine, "python": row["python"]}
        return Run(row["suite"], row["at"], machine, read_results(text))
    except (KeyError, TypeError, ValueError, AttributeError) as wrong:
        raise ValueError(f"{path} holds no results of mailprobe bench") from wrong
