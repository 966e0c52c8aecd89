"""The suite of the service in small: a real service, every figure, and nothing left running."""

import os
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import trio

from mailprobe.api.rest import operations
from mailprobe.bench.lab import Lab
from mailprobe.bench.load.empty_route import PATH as EMPTY
from mailprobe.bench.load.service_process import PLANS, ServiceFailed, start_service
from mailprobe.bench.suites.serving.service import measure, measure_requests
from tests.warm_lab import start_lab

ADDRESSES = 60
OTHERS = 100  # two requests whose first line is timed


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with start_lab("many") as lab:
        yield lab


def test_the_service_suite_has_every_figure_and_only_right_verdicts(
    tmp_path: Path, lab: Lab
) -> None:
    addresses = lab.addresses["deliverable"][: ADDRESSES + OTHERS]
    with start_service(lab.env, tmp_path, plans=PLANS) as service:
        figures = trio.run(measure, service, addresses, ADDRESSES)
    reported = {figure.what: figure.value for figure in figures}
    assert len(reported) == len(figures)
    assert reported.pop("right verdicts") == 2 * ADDRESSES
    assert all(value > 0 for what, value in reported.items() if "processor" not in what)
    with pytest.raises(ProcessLookupError):
        os.kill(service.pid, 0)


def test_every_way_to_ask_has_its_cost(tmp_path: Path, lab: Lab) -> None:
    domains = [text.partition("@")[2] for text in lab.addresses["deliverable"]]
    with start_service(lab.env, tmp_path, plans=PLANS) as service:
        figures = measure_requests(service, domains, rounds=1, size=4)
    assert len({figure.what for figure in figures}) == len(figures)
    assert all(figure.value > 0 for figure in figures)
    assert all(figure.cpu_us for figure in figures if "one core" in figure.unit)


def test_the_empty_route_wants_a_key_and_is_in_no_product(tmp_path: Path, lab: Lab) -> None:
    with start_service(lab.env, tmp_path, plans=PLANS) as service:
        key = {"Authorization": f"Bearer {service.key}"}
        assert httpx.get(service.url + EMPTY, headers=key, trust_env=False).text == "{}"
        assert httpx.get(service.url + EMPTY, trust_env=False).status_code == 401
    assert EMPTY not in {operation.path for operation in operations.OPERATIONS}


def test_a_service_that_cannot_start_says_why(tmp_path: Path, lab: Lab) -> None:
    with (
        pytest.raises(ServiceFailed, match=r"\[gold\]|'gold'"),
        start_service(lab.env, tmp_path, plans="[gold]\n"),
    ):
        pass
