"""The suite of the service in small: a real service, every figure, and nothing left running."""

import os
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import trio

from mailprobe.api.operations import table
from mailprobe.bench.harness.figures import promised, read_results, write_results
from mailprobe.bench.harness.tables import verdict_on
from mailprobe.bench.lab import Lab
from mailprobe.bench.load.empty_route import PATH as EMPTY
from mailprobe.bench.load.load_generator import Flooded
from mailprobe.bench.load.service_process import PLANS, ServiceFailed, ServiceProcess, start_service
from mailprobe.bench.suites.serving.service import (
    OverloadTurn,
    measure,
    measure_requests,
    overload_figures,
)
from tests.warm_lab import start_lab

ADDRESSES = 60
OTHERS = 100  # two requests whose first line is timed


IDLE = OverloadTurn(0.0, Flooded())  # a machine so busy that no request was served
LOADED = OverloadTurn(200.0, Flooded(took_s=2.0, served=380, shed_ms=[10.0, 20.0, 60.0, 30.0]))


def test_an_overload_without_a_peak_is_left_out_and_said() -> None:
    figures, remarks = overload_figures([[IDLE, LOADED], [LOADED, LOADED], [IDLE, IDLE]])
    assert [figure.value for figure in figures] == [95.0, 95.0, 75.0, 25.0, 60.0]
    assert remarks == ["at three times its load: no peak was served in 3 of 6 turns, left out"]


def test_an_overload_that_could_not_be_measured_keeps_no_promise(tmp_path: Path) -> None:
    figures, remarks = overload_figures([[IDLE]])
    assert not any(figure.is_measured for figure in figures)
    assert len(remarks) == 2
    budgets = tmp_path / "budgets.toml"
    budgets.write_text(
        '[service]\n"at three times its load: a refusal, median" = { at_most = 50 }\n'
    )
    figures = promised("service", figures, budgets)
    assert [figure.missed for figure in figures] == [False, False, False, True, False]
    path = write_results("service", figures, tmp_path)
    assert "NaN" not in path.read_text()
    assert not any(figure.is_measured for figure in read_results(path.read_text()).figures)
    assert {verdict_on(figure) for figure in figures} == {"not measured"}


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


@pytest.fixture(scope="module")
def service(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    with start_service(lab.env, tmp_path_factory.mktemp("service"), plans=PLANS) as service:
        yield service


def test_every_way_to_ask_has_its_cost(service: ServiceProcess, lab: Lab) -> None:
    domains = [text.partition("@")[2] for text in lab.addresses["deliverable"]]
    figures = measure_requests(service, domains, rounds=1, size=4)
    assert len({figure.what for figure in figures}) == len(figures)
    assert all(figure.value > 0 for figure in figures)
    assert all(figure.cpu_us for figure in figures if "one core" in figure.unit)


def test_the_empty_route_wants_a_key_and_is_in_no_product(service: ServiceProcess) -> None:
    key = {"Authorization": f"Bearer {service.key}"}
    assert httpx.get(service.url + EMPTY, headers=key, trust_env=False).text == "{}"
    assert httpx.get(service.url + EMPTY, trust_env=False).status_code == 401
    assert EMPTY not in {operation.path for operation in table.OPERATIONS}


def test_a_service_that_cannot_start_says_why(tmp_path: Path, lab: Lab) -> None:
    with (
        pytest.raises(ServiceFailed, match=r"\[gold\]|'gold'"),
        start_service(lab.env, tmp_path, plans="[gold]\n"),
    ):
        pass
