"""A flood of refusals has a line a second; a client's trace is on all lines of its request."""

import logging
from typing import Any

import pytest
import trio

from mailprobe.api.observability.request_context import LOGGED_EVERY_S
from mailprobe.api.observability.spans import trace_headers, trace_of
from tests.api.service_fixture import RunningService

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
SPAN = "00f067aa0ba902b7"
PARENT = f"00-{TRACE}-{SPAN}-01"


def lines(caplog: pytest.LogCaptureFixture) -> list[Any]:
    return [record for record in caplog.records if record.name == "mailprobe.access"]


async def test_a_flood_of_refusals_has_a_line_a_second_that_gives_their_number(
    autojump_clock: object, shop: RunningService, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    await trio.sleep(LOGGED_EVERY_S)
    for _ in range(50):
        await shop.verify(key="nonsense")
    assert [getattr(each, "times", 1) for each in lines(caplog)] == [1]
    await trio.sleep(LOGGED_EVERY_S)
    await shop.verify(key="nonsense")
    assert [getattr(each, "times", 1) for each in lines(caplog)] == [1, 50]
    assert (await shop.verify()).status == 200
    await shop.verify(5)  # a mistake of a client's own
    await shop.verify(5)
    assert [each.status for each in lines(caplog)[2:]] == [200, 400, 400]


async def test_a_store_that_is_away_has_a_line_a_second(
    autojump_clock: object, shop: RunningService, caplog: pytest.LogCaptureFixture
) -> None:
    shop.store.away = True
    await trio.sleep(LOGGED_EVERY_S)
    for _ in range(20):
        assert (await shop.verify()).status == 503
    assert len([each for each in caplog.records if each.name == "mailprobe.api"]) == 1


@pytest.mark.parametrize(
    ("value", "trace"),
    [
        (PARENT, f"{TRACE}-{SPAN}-01"),
        (f"{PARENT[:-2]}fe", f"{TRACE}-{SPAN}-00"),  # no flag but `sampled` is known
        (PARENT.replace("00-", "01-", 1), f"{TRACE}-{SPAN}-01"),  # of a later version
        (PARENT.upper(), ""),
        (PARENT.replace(TRACE, "0" * 32), ""),
        (PARENT.replace(SPAN, "0" * 16), ""),
        (PARENT.replace("00-", "ff-", 1), ""),
        (f"{PARENT}\n", ""),
        ("", ""),
    ],
)
def test_a_trace_is_taken_from_a_valid_header_alone(value: str, trace: str) -> None:
    header = (b"traceparent", value.encode())
    assert trace_of(trace_headers([(b"host", b"a"), header])[0]) == trace
    assert trace_of(trace_headers([header, header])[0]) == ""
