"""The engine before the lab: real sockets, TLS, HTTP/2, every outcome, every address."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import trio

from mailprobe.api.settings import Settings
from mailprobe.engine import Verdict, in_order, open_answers, open_engine
from mailprobe.engine.verdict import LADDER, Outcome
from tests.beside import run_beside
from tests.warm_lab import start_lab

SCENARIOS = ("default", "restless", "strict", "particular", "slow")


async def verify_every_address(scenario: str) -> None:
    with start_lab(scenario) as lab:
        settings = Settings.read(lab.env).engine
        async with open_engine(settings) as engine:
            for outcome, texts in lab.addresses.items():
                async with open_answers(
                    engine, texts, account="me", deferred_start=True
                ) as answers:
                    for verdict in await in_order(answers, len(texts)):
                        assert_outcome(verdict, Outcome(outcome))
        await trio.to_thread.run_sync(assert_polite, lab.records(), settings.host_connections)


@pytest.fixture(scope="module")
def outcome(request: pytest.FixtureRequest) -> Iterator[Callable[[str], None]]:
    """Silent hosts are waited for in each scenario, so all of them run beside one another."""
    acts = {name: partial(trio.run, verify_every_address, name) for name in SCENARIOS}
    with run_beside(request, acts, at_once=len(acts)) as outcome:
        yield outcome


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_every_address_of_the_lab_gets_the_right_verdict(
    outcome: Callable[[str], None], scenario: str
) -> None:
    outcome(scenario)


def assert_outcome(verdict: Verdict, outcome: Outcome) -> None:
    reported = (verdict.status, verdict.valid, verdict.confidence, verdict.failed_check)
    assert reported == LADDER[outcome], f"{verdict.email}: {reported}, not {outcome}"


def assert_polite(records: dict[str, Any], host_connections: int) -> None:
    """What every host has seen of us, whatever it did."""
    for host in records["hosts"].values():
        assert host["mistakes"] == []
        assert host["refusals_most"] <= 8
        assert host["connections_peak"] <= host_connections
