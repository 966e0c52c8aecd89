"""The suite of the service in small: a real service, every figure, and nothing left running."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from bench.lab import Lab, start_lab
from bench.suite_service import PLANS, ServiceFailed, measure, start_service

ADDRESSES = 60
OTHERS = 100  # two requests whose first line is timed
SINGLES = 32


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with start_lab("many") as lab:
        yield lab


def test_every_figure_comes_and_every_address_is_told_right(tmp_path: Path, lab: Lab) -> None:
    addresses = lab.addresses["deliverable"][: ADDRESSES + OTHERS]
    with start_service(lab.env, tmp_path, plans=PLANS) as service:
        figures = trio.run(measure, service, addresses, ADDRESSES, SINGLES)
    told = {figure.what: figure.value for figure in figures}
    assert len(told) == len(figures)
    assert told.pop("told right") == 2 * ADDRESSES
    assert all(value > 0 for what, value in told.items() if "processor" not in what)
    with pytest.raises(ProcessLookupError):
        os.kill(service.pid, 0)


def test_a_service_that_cannot_start_says_why(tmp_path: Path, lab: Lab) -> None:
    with (
        pytest.raises(ServiceFailed, match=r"\[gold\]|'gold'"),
        start_service(lab.env, tmp_path, plans="[gold]\n"),
    ):
        pass
