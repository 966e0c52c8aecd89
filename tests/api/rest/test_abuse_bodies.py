"""The worst bodies cost CPU time in proportion to their size, and a unit of the minute."""

import contextlib
import time

import pytest

from mailprobe.api.operations.verify import BatchRequest
from mailprobe.api.refusals import InvalidRequest
from mailprobe.api.rest.decoding import TOKENS_MAX, read
from tests.api.service_fixture import RunningService

OCTETS = 2 * 1024 * 1024
CPU_S_MAX = 0.04  # the limit is 20 ms; the machine may be half as fast as expected


def filled(before: bytes, unit: bytes, after: bytes) -> bytes:
    return before + unit * ((OCTETS - len(before) - len(after)) // len(unit)) + after


ESCAPED = b'{"emails":["\\u0061"],"y":1,"x":'
WORST = {
    "brackets": filled(b'{"emails":["a"],"x":[', b"[],", b'[]],"y":1}'),
    "brackets beside a name that may come twice": filled(
        b'{"emails":["a"],"x":[', b"[],", b'[]],"y":{"emails":1,"emails":2}}'
    ),
    "brackets beside an escape": filled(ESCAPED + b"[", b"[],", b"[]]}"),
    "depth": b"[" * OCTETS,
    "depth behind the fields": filled(b'{"emails":["a"],"y":1,"x":', b"[", b""),
    "much depth": filled(b'{"emails":["a"],"y":1,"x":[', b"[" * 900 + b"]" * 900 + b",", b"[]]}"),
    "empty strings": filled(b'{"emails":["a"],"x":[', b'"",', b'""],"y":1}'),
    "strings of quotes": filled(b'{"emails":["a"],"x":[', rb'"\\",', b'""],"y":1}'),
    "escapes": filled(b'{"emails":["a"],"x":"', b"\\n", b'","y":1}'),
    "escapes of letters": filled(b'{"emails":["a"],"x":"', b"\\u0041", b'","y":1}'),
    "escapes in an address": filled(b'{"emails":["', b"\\u0041", b'"],"y":1}'),
    "names": filled(b'{"emails":["a"],', b'"a":1,', b'"y":1}'),
    "the same name": filled(b'{"y":1,', b'"emails":["a"],', b'"emails":["b"]}'),
    "numbers": filled(b'{"emails":["a"],"x":[', b"1,", b'1],"y":1}'),
    "a number": filled(b'{"emails":["a"],"y":1,"x":', b"1", b"}"),
    "spaces": filled(b'{"emails":["a"],"y":1}', b" ", b""),
    "spaces behind an escape": filled(ESCAPED + b"1}", b" ", b""),
    "addresses": filled(b'{"emails":[', b'"a",', b'"a"]}'),
    "lists for addresses": filled(b'{"emails":[', b"[],", b"[]]}"),
    "characters of four octets": filled(b'{"emails":["', "\U0001f600".encode(), b'"],"y":1}'),
}


def cpu_s_of(octets: bytes) -> float:
    began = time.thread_time()
    with contextlib.suppress(InvalidRequest):
        read(octets, BatchRequest, "batch")
    return time.thread_time() - began


@pytest.mark.parametrize("octets", WORST.values(), ids=WORST)
def test_no_body_costs_more_than_its_size(octets: bytes) -> None:
    assert min(cpu_s_of(octets) for _ in range(5)) < CPU_S_MAX


def test_fields_that_nobody_reads_are_passed_over_however_many_parts_they_have() -> None:
    body = b'{"emails":["a"],"x":[%b[]],"y":1}' % (b"[]," * 100_000)
    assert read(body, BatchRequest, "batch").emails == ["a"]


@pytest.mark.parametrize("again", [b'"emails":["b"]', b'"\\u0065mails":["b"]'])
@pytest.mark.parametrize("parts", [0, TOKENS_MAX])
def test_a_field_that_comes_twice_is_never_taken(again: bytes, parts: int) -> None:
    """If it comes after the maximum of parts, the body is refused for its parts."""
    octets = b'{"emails":["a"],"x":[%b[]],%b}' % (b"[]," * parts, again)
    with pytest.raises(InvalidRequest, match="more parts" if parts else "twice") as refused:
        read(octets, BatchRequest, "batch")
    assert refused.value.was_json


MALFORMED = [b"[" * 1000, b"{}", b'{"emails":[]}', b"hello"]


@pytest.mark.parametrize("path", ["batch", "stream"])
async def test_a_malformed_list_takes_one_unit_of_the_minute_and_none_of_the_month(
    autojump_clock: object, free_shop: RunningService, path: str
) -> None:
    for octets in MALFORMED:
        got = await free_shop.request("POST", f"/v1/email/verify/{path}", octets=octets)
        assert (got.status, got.error) == (400, "invalid_request")
    ledger = await free_shop.store.ledger(await free_shop.caller())
    assert sum(units for _, units in ledger.window) == len(MALFORMED)
    assert (ledger.month_units, await free_shop.rows()) == (0, [])


@pytest.mark.parametrize("path", ["batch", "stream"])
async def test_a_malformed_list_is_counted_alike_before_and_after_the_month_is_used_up(
    autojump_clock: object, free_shop: RunningService, path: str
) -> None:
    for used in (499, 500):
        await free_shop.use_up(
            used - (await free_shop.store.ledger(await free_shop.caller())).month_units
        )
        got = await free_shop.request("POST", f"/v1/email/verify/{path}", octets=b"{}")
        assert (got.status, got.error) == (400, "invalid_request")
        assert f'"month";r={500 - used};' in got.headers["ratelimit"]
    ledger = await free_shop.store.ledger(await free_shop.caller())
    assert (sum(units for _, units in ledger.window), ledger.month_units) == (2, 500)
    assert not [row for row in await free_shop.rows() if row.failed_check]


async def test_malformed_lists_count_towards_the_limit(
    autojump_clock: object, free_shop: RunningService
) -> None:
    """400 comes before 429, and the next good request gets the 429."""
    for _ in range(12):
        assert (await free_shop.batch()).status == 400
    assert (await free_shop.verify()).error == "rate_limit_exceeded"
    ledger = await free_shop.store.ledger(await free_shop.caller())
    assert sum(units for _, units in ledger.window) == 10
