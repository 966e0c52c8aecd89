"""On a terminal a request is a line that people read."""

import logging
import re

import pytest

from mailprobe.api.observability.logs import formatter
from mailprobe.api.observability.request_context import (
    NO_REQUEST_LOG,
    RequestContext,
    request_scope,
)


def line_of(record: RequestContext, milliseconds: float) -> str:
    """The line of the request under way, without colours."""
    values = {"name": "mailprobe.access", "msg": "access", "duration_ms": milliseconds}
    shown = formatter(terminal=True).format(logging.makeLogRecord(values))
    return re.sub(r"\x1b\[\d+m", "", shown)


async def test_a_request_is_one_line() -> None:
    with request_scope(NO_REQUEST_LOG, "r1") as record:
        record.method, record.path, record.status = "POST", "/v1/email/verify/batch", 200
        record.addresses = 50
        line = line_of(record, 25.4)
    assert re.fullmatch(r"\d\d:\d\d:\d\d POST /v1/email/verify/batch 200 25 ms 50 addresses", line)


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("/a\x1b[31m\nb", r"/a\x1b[31m\nb"),
        ("/ann@example.org", "/…@example.org"),
        ("/" + "x" * 500, "/" + "x" * 79 + "…"),
        ("/sk_live_0123456789abcdefghij", "/sk_live_0123…"),
    ],
)
async def test_a_strangers_path_is_shown_safely(path: str, shown: str) -> None:
    with request_scope(NO_REQUEST_LOG, "r1") as record:
        record.method, record.path, record.status, record.code = "GET", path, 404, "not_found"
        line = line_of(record, 0.2)
    assert line.endswith(f"GET {shown} 404 0 ms not_found")


async def test_a_request_without_an_answer_says_so() -> None:
    with request_scope(NO_REQUEST_LOG, "r1") as record:
        record.method, record.path, record.cut = "POST", "/v1/email/verify/stream", True
        line = line_of(record, 3000)
    assert "no answer 3000 ms" in line
    assert line.endswith("the client did not get the whole answer")


def test_other_lines_stay_as_they_were() -> None:
    values = {"name": "mailprobe.serve", "msg": "started", "levelname": "INFO", "workers": 2}
    shown = formatter(terminal=True).format(logging.makeLogRecord(values))
    assert "started" in shown
    assert "workers" in shown
