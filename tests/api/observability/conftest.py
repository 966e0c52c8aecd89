"""Shared counters for tests of metrics."""

from collections.abc import Iterator

import pytest

from mailprobe.api.observability.metrics import open_metrics
from mailprobe.api.observability.shared_counters import (
    SharedCounters,
    open_shared_counters,
)
from mailprobe.api.operations.table import OPERATIONS
from tests.api.observability.counting import SMALL


@pytest.fixture
def small() -> Iterator[SharedCounters]:
    with open_shared_counters(SMALL, 2) as board:
        yield board


@pytest.fixture
def board() -> Iterator[SharedCounters]:
    with open_metrics(1, OPERATIONS) as board:
        yield board
