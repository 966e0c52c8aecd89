"""What a bench suite gives: figures, each with its promise where there is one.

A figure that misses its promise makes the run end with exit code 1. Results
are also written as JSON, one file a suite, so that two runs can be compared.
"""

import json
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured number. `at_most` and `at_least` are what we promise, in the same unit."""

    what: str
    value: float
    unit: str
    at_most: float | None = None
    at_least: float | None = None

    @property
    def kept(self) -> bool:
        """The promise is kept, or there is none."""
        return (self.at_most is None or self.value <= self.at_most) and (
            self.at_least is None or self.value >= self.at_least
        )

    @property
    def promise(self) -> str:
        if self.at_most is not None:
            return f"≤ {self.at_most:g}"
        return f"≥ {self.at_least:g}" if self.at_least is not None else ""


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
