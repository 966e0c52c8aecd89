"""What a bench suite gives: figures, each with its promise where there is one.

Promises stand in budgets.toml, by suite and by the figure's words.
A figure that misses its own by more than MISS_BY makes the run end with exit code 1.
Results are also written as JSON, one file a suite, so that two runs can be compared.
"""

import json
import platform
import tomllib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

RESULTS = Path(__file__).parent / "results"
BUDGETS = Path(__file__).parent / "budgets.toml"
MISS_BY = 0.25  # what the same code differs by between two runs on a busy machine


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


def promised(suite: str, figures: Sequence[Figure], budgets: Path = BUDGETS) -> list[Figure]:
    """The figures with what budgets.toml promises of them.

    Raises ValueError for a promise of a figure that the suite does not give: a
    figure that changed its words would leave its promise to nobody.
    """
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


def write_results(suite: str, figures: Sequence[Figure], folder: Path = RESULTS) -> Path:
    """Keep a suite's figures as JSON; gives the file."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{suite}.json"
    result = {
        "suite": suite,
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "machine": platform.machine(),
        "figures": [asdict(figure) for figure in figures],
    }
    path.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", "utf-8")
    return path


def read_results(text: str) -> list[Figure]:
    return [Figure(**row) for row in json.loads(text)["figures"]]
