"""The engine before the lab: real sockets, TLS, HTTP/2, every outcome, every address."""

import pytest
import trio

from api.settings import Settings
from bench.lab import start_lab
from engine import Verdict, in_order, open_answers, open_engine
from engine.verdict import LADDER, Outcome

SCENARIOS = ("default", "restless", "strict", "particular", "slow")


@pytest.mark.parametrize("scenario", SCENARIOS)
async def test_every_address_of_the_lab_is_told_right(scenario):
    with start_lab(scenario) as lab:
        settings = Settings.read(lab.env).engine
        async with open_engine(settings) as engine:
            for outcome, texts in lab.addresses.items():
                async with open_answers(engine, texts, asker="me", patient=True) as answers:
                    for verdict in await in_order(answers, len(texts)):
                        assert_told(verdict, Outcome(outcome))
        await trio.to_thread.run_sync(assert_polite, lab.records(), settings.host_connections)


def assert_told(verdict: Verdict, outcome: Outcome) -> None:
    told = (verdict.status, verdict.valid, verdict.confidence, verdict.failed_check)
    assert told == LADDER[outcome], f"{verdict.email}: {told}, not {outcome}"


def assert_polite(records: dict, host_connections: int) -> None:
    """What every host has seen of us, whatever it did."""
    for host in records["hosts"].values():
        assert host["mistakes"] == []
        assert host["refusals_most"] <= 8
        assert host["connections_peak"] <= host_connections
