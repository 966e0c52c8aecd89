"""A reader of the metrics page, and a service with all its metrics."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from mailprobe.api.observability.exposition import page
from mailprobe.api.observability.metrics import Metrics
from mailprobe.api.observability.shared_counters import (
    Family,
    SharedCounters,
)
from tests.api.service_fixture import RunningService, open_shop

COUNTS = Family("counter", "counts", "", ("what",), (("one",), ("two",)))
STATES = Family("gauge", "states", "")
TIMES = Family("histogram", "times", "", bounds=(0.1, 1.0))
SMALL = (COUNTS, STATES, TIMES)


@dataclass
class Read:
    """A parsed metrics page."""

    text: str

    def __post_init__(self) -> None:
        self.samples = {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(self.text)
            for sample in family.samples
        }

    def __call__(self, name: str, **labels: str) -> float:
        """Return the sum of all series of this name that have these labels."""
        wanted = labels.items()
        found = [
            value
            for (each, said), value in self.samples.items()
            if each == name and wanted <= dict(said).items()
        ]
        return sum(found)

    def shown(self, name: str) -> list[dict[str, str]]:
        """Return the series of this name that are not zero."""
        return [
            dict(said) for (each, said), value in self.samples.items() if each == name and value
        ]


def read(board: SharedCounters) -> Read:
    return Read(page(board, "1.2.3", "0123abc").decode())


@dataclass
class Counted:
    """A shop of which everything is counted."""

    shop: RunningService
    board: SharedCounters
    metrics: Metrics

    def read(self) -> Read:
        self.metrics.sample(self.shop.service.load())
        return read(self.board)


@asynccontextmanager
async def counted(
    board: SharedCounters, tier: Any = "scale", **more: Any
) -> AsyncIterator[Counted]:
    metrics = Metrics(board.attach())
    async with open_shop(tier, metrics=metrics, **more) as shop:
        yield Counted(shop, board, metrics)
