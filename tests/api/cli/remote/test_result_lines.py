"""Lines of results of a service: which of them a list asks about again."""

import msgspec
import pytest

from mailprobe.api.cli.remote.result_lines import HOST_BUDGET_S, ResultLine
from mailprobe.engine.verdict import Outcome, judge


@pytest.mark.parametrize(
    ("reason", "retry_s"),
    [
        ("host_budget", HOST_BUDGET_S),
        ("unconfirmed", None),  # it was asked, and is paid
        ("blocked_us", None),
        ("greylisted", None),
    ],
)
def test_an_unasked_address_has_a_time_for_its_next_try(reason: str, retry_s: float | None) -> None:
    verdict = msgspec.to_builtins(judge("ann@shop.test", Outcome.HOST_BUDGET))
    line = {**verdict, "evidence": {"reason": reason, "blame": "host"}}
    answer = msgspec.json.decode(msgspec.json.encode(line), type=ResultLine).answer(3)
    assert (answer.position, answer.retry_s, answer.cause.reason) == (3, retry_s, reason)


def test_a_line_without_evidence_has_no_second_chance() -> None:
    line = msgspec.json.encode(judge("ann@shop.test", Outcome.HOST_BUDGET))
    assert msgspec.json.decode(line, type=ResultLine).answer(0).retry_s is None
