"""Incoming requests: routes, methods, bodies of every kind, and the order of the checks."""

import json
import logging
from typing import Any

import pytest
import trio

from mailprobe.api.operations import verify
from mailprobe.api.rest import app as app_module
from mailprobe.api.rest import decoding
from tests.api.service_fixture import BATCH, MANAGEMENT, STREAM, VERIFY, RunningService, open_shop

FOUR = {"error", "message", "action", "docs"}


# -- routes and methods -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    ["/", "/nope", "/v1", "/v1/email/verify/", "/v1/email/verify/other", "//health", "/HEALTH",
     "/v1//email/verify", "/v2/email/verify", "/v1/management/keys/", "/health/x", "/é", "/%00"],
)  # fmt: skip
async def test_an_unknown_route_is_404_whatever_the_key(
    autojump_clock: object, shop: RunningService, path: str
) -> None:
    for key in ("", None, "nonsense"):
        got = await shop.request("POST", path, {"email": "a"}, key=key)
        assert (got.status, got.error) == (404, "not_found")
        assert set(got.body) == FOUR


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("GET", VERIFY, "POST"),
        ("PUT", BATCH, "POST"),
        ("OPTIONS", STREAM, "POST"),
        ("POST", "/health", "GET, HEAD"),
        ("DELETE", "/openapi.json", "GET, HEAD"),
        ("PATCH", f"{MANAGEMENT}/keys", "GET, HEAD, POST"),
        ("GET", f"{MANAGEMENT}/keys/0b8f4c1e-6f0a-4f7e-9a53-1d2c7f9e4b60", "DELETE"),
        ("BREW", "/health", "GET, HEAD"),
    ],
)
async def test_a_wrong_method_is_405_before_the_key_is_looked_at(
    autojump_clock: object, shop: RunningService, method: str, path: str, allow: str
) -> None:
    got = await shop.request(method, path, key=None)
    assert (got.status, got.error, got.headers["allow"]) == (405, "method_not_allowed", allow)
    assert set(got.body) == FOUR


async def test_head_is_get_without_a_key_too(autojump_clock: object, shop: RunningService) -> None:
    assert (await shop.request("HEAD", "/health", key=None)).status == 200


# -- the order of checks ----------------------------------------------------------------------


async def test_the_checks_come_in_the_order_that_was_decided(autojump_clock: object) -> None:
    """A request starts with every fault; the test removes one after the other."""
    async with open_shop("free", addresses_max=1) as shop:
        await shop.change(hard_cap_micros=0, tier="builder")
        await shop.use_up(5_000, units=0)
        bad, big = {"email": 5}, {"content-length": "99999999"}
        async with trio.open_nursery() as nursery:
            steps: list[tuple[int, str]] = []

            async def step(*arguments: Any, **named: Any) -> None:
                got = await shop.request(*arguments, **named)
                steps.append((got.status, got.error if got.status != 200 else ""))

            await step("GET", "/v1/email/verif", bad, key="x", headers=big)
            await step("GET", VERIFY, bad, key="x", headers=big)
            await step("POST", VERIFY, bad, key="x", headers=big)
            await step("POST", VERIFY, bad, headers=big)
            await step("POST", VERIFY, bad)
            good = {"email": "known@slow.test"}
            await step("POST", VERIFY, good)
            await shop.change(tier="free", hard_cap_micros=None)
            await shop.batch(*["x"] * 9)
            await step("POST", BATCH, {"emails": ["a@b"] * 5})
            await shop.use_up(500, units=1)
            await trio.sleep(60)
            await step("POST", VERIFY, good)
            shop.clock.set(shop.clock().replace(month=5))
            nursery.start_soon(shop.verify, "known@slow.test")
            await trio.sleep(0.1)
            await step("POST", VERIFY, good)
        await step("POST", VERIFY, good)
    assert steps == [
        (404, "not_found"),
        (405, "method_not_allowed"),
        (401, "invalid_api_key"),
        (413, "payload_too_large"),
        (400, "invalid_request"),
        (402, "payment_required"),
        (429, "rate_limit_exceeded"),
        (429, "monthly_quota_exceeded"),
        (503, "overloaded"),
        (200, ""),
    ]


# -- bodies -----------------------------------------------------------------------------------

DEEP = b"[" * 100_000

NOT_JSON = {
    "nothing": (b"", "no body"),
    "words": (b"hello", "not JSON"),
    "half": (b'{"email":"a', "not JSON"),
    "more behind it": (b'{"email":"a"} {}', "not JSON"),
    "NaN": (b'{"email":NaN}', "not JSON"),
    "NaN where nobody looks": (b'{"email":"a","x":NaN}', "not JSON"),
    "Infinity": (b'{"email":"a","x":-Infinity}', "not JSON"),
    "a byte order mark": (b'\xef\xbb\xbf{"email":"a"}', "byte order mark"),
    "UTF-16": ('{"email":"a"}'.encode("utf-16"), "not in UTF-8"),
    "Latin-1": ('{"email":"é"}'.encode("latin-1"), "not in UTF-8"),
    "Latin-1 where nobody looks": (b'{"email":"a","x":"\xe9"}', "not in UTF-8"),
    "a surrogate in octets": (b'{"email":"\xed\xa0\x80"}', "not in UTF-8"),
    "a lone surrogate": (b'{"email":"\\ud800"}', "not JSON"),
    "a lone surrogate where nobody looks": (b'{"email":"a","x":"\\udfff"}', "not JSON"),
    "a raw NUL": (b'{"email":"a\x00"}', "not JSON"),
    "single quotes": (b"{'email':'a'}", "not JSON"),
    "a comma too many": (b'{"email":"a",}', "not JSON"),
    "a comment": (b'{"email":"a"/**/}', "not JSON"),
    "depth": (b'{"email":' + DEEP, "nested too deeply"),
    "depth where nobody looks": (b'{"x":' + DEEP + b"]" * 100_000 + b"}", "nested too deeply"),
    "a wrong type, then rubbish": (b'{"email":5, rubbish', "not JSON"),
    "a form": (b"email=a%40example.org", "not JSON"),
}


@pytest.mark.parametrize("case", NOT_JSON)
async def test_invalid_json_is_400_and_counts_nothing(
    autojump_clock: object, shop: RunningService, case: str
) -> None:
    octets, said = NOT_JSON[case]
    got = await shop.request("POST", VERIFY, octets=octets)
    assert (got.status, got.error) == (400, "invalid_request")
    assert said in got.body["message"]
    assert set(got.body) == FOUR
    assert await shop.rows() == []
    assert (await shop.store.ledger(await shop.caller())).window == ()


NOT_THE_TYPE = {
    "an array": (b"[]", "The body is an array; it must be an object."),
    "null": (b"null", "The body is null; it must be an object."),
    "a string": (b'"a@example.org"', "The body is a string; it must be an object."),
    "no email": (b"{}", "The field email is missing."),
    "the wrong name": (b'{"Email":"a"}', "The field email is missing."),
    "email null": (b'{"email":null}', "The field email is null; it must be a string."),
    "email a number": (b'{"email":5}', "The field email is a number; it must be a string."),
    "email a huge number": (b'{"email":' + b"9" * 5000 + b"}", "The field email"),
    "email beyond numbers": (b'{"email":1e999}', "The field email"),
    "email an array": (b'{"email":["a"]}', "The field email is an array; it must be a string."),
    "email twice": (b'{"email":"a","email":"b"}', "The field email is there twice."),
    "email twice, once escaped": (
        b'{"email":"a","x":{"email":1},"\\u0065mail":"b"}', "The field email is there twice."),
    "webhook a number": (b'{"email":"a","webhook":1}',
                         "The field webhook is a number; it must be a string or null."),
    "a short secret": (b'{"email":"a","webhook_secret":"seven77"}',
                       "The field webhook_secret must have at least 8 characters."),
}  # fmt: skip


async def test_an_empty_batch_gets_the_number_that_is_taken(
    autojump_clock: object, shop: RunningService
) -> None:
    got = await shop.request("POST", BATCH, {"emails": []})
    assert got.body["message"] == "The field emails must have at least 1 item."


@pytest.mark.parametrize("case", NOT_THE_TYPE)
async def test_json_of_the_wrong_shape_is_400_that_names_the_field_and_counts_one(
    autojump_clock: object, shop: RunningService, case: str
) -> None:
    octets, said = NOT_THE_TYPE[case]
    got = await shop.request("POST", VERIFY, octets=octets)
    assert (got.status, got.error) == (400, "invalid_request")
    assert got.body["message"].startswith(said)
    (row,) = await shop.rows()
    assert (row.failed_check, row.units, row.billable) == ("invalid_request", 1, False)


@pytest.mark.parametrize(
    "octets",
    [
        b'{"email":"known@friendly.test","x":1e999}',
        b'{"email":"known@friendly.test","x":' + b"9" * 5000 + b"}",
        b'{"email":"known@friendly.test","x":{"email":"b"},"y":[{"email":1},{"email":2}]}',
        b'{"email":"known@friendly.test","x":1,"x":2}',
        b'{"x":"\\"email\\":","email":"known@friendly.test","y":"z"}',
        b' \r\n\t{"email":\n"known@friendly.test"} ',
    ],
)
async def test_fields_that_nobody_reads_are_passed_over(
    autojump_clock: object, shop: RunningService, octets: bytes
) -> None:
    got = await shop.request("POST", VERIFY, octets=octets)
    assert (got.status, got.body["status"]) == (200, "deliverable")


async def test_an_escaped_nul_is_a_string_and_fails_layer_1(
    autojump_clock: object, shop: RunningService
) -> None:
    got = await shop.verify("a\0@example.org")
    assert (got.status, got.body["failed_check"]) == (200, "syntax")


@pytest.mark.parametrize(
    ("media_type", "status"),
    [
        (None, 200), ("application/json", 200), ("Application/JSON; charset=UTF-8", 200),
        ('application/json; charset="utf-8"', 200), ("application/json; charset=utf-16", 400),
        ("text/plain", 400), ("application/x-www-form-urlencoded", 400), ("", 400), (";", 400),
        ("multipart/form-data; boundary=x", 400),
    ],
)  # fmt: skip
async def test_a_body_is_json_in_utf_8_or_says_nothing_of_its_type(
    autojump_clock: object, shop: RunningService, media_type: str | None, status: int
) -> None:
    got = await shop.verify(headers={"content-type": media_type})
    assert got.status == status
    if status == 400:
        assert "Content-Type" in got.body["message"]


async def test_a_length_that_is_too_large_is_413_without_reading(
    autojump_clock: object, shop: RunningService
) -> None:
    never: list[tuple[float, bytes]] = [(1000, b"{")]
    got = await shop.request("POST", VERIFY, pieces=never, headers={"content-length": "2097153"})
    assert (got.status, got.error) == (413, "payload_too_large")
    assert got.headers["connection"] == "close"
    assert set(got.body) == FOUR
    assert trio.current_time() < 1


@pytest.mark.parametrize(("octets_over", "status"), [(0, 200), (1, 413)])
async def test_a_body_without_a_length_is_read_up_to_2_mb(octets_over: int, status: int) -> None:
    """In real time, because a body of this size is parsed in a thread."""
    async with open_shop() as shop:
        body = b'{"email":"known@friendly.test","x":"'
        body += b"x" * (2 * 1024 * 1024 - len(body) - 2 + octets_over) + b'"}'
        pieces = [(0.0, body[at : at + 65_536]) for at in range(0, len(body), 65_536)]
        got = await shop.request("POST", VERIFY, pieces=pieces)
        assert got.status == status
        if status == 413:
            assert got.headers["connection"] == "close"
            assert got.error == "payload_too_large"


async def test_a_large_body_is_parsed_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[int] = []
    run_sync = trio.to_thread.run_sync

    async def watched(act: Any, *words: Any, limiter: Any = None) -> Any:
        sizes = [len(word) for word in words if isinstance(word, bytes)]
        if sizes:  # without sizes, the call comes from a store that opens meanwhile
            assert limiter.total_tokens == decoding.THREADS_MAX
        threads.extend(sizes)
        return await run_sync(act, *words, limiter=limiter)

    monkeypatch.setattr(trio.to_thread, "run_sync", watched)
    async with open_shop() as shop:
        for size in (decoding.THREAD_OCTETS - 100, decoding.THREAD_OCTETS + 1):
            octets = json.dumps({"email": "known@friendly.test", "x": "x" * size}).encode()
            assert (await shop.request("POST", VERIFY, octets=octets)).status == 200
            assert (await shop.request("POST", VERIFY, octets=octets, key=None)).status == 401
    assert len(threads) == 1
    assert threads[0] > decoding.THREAD_OCTETS


async def test_a_large_body_with_many_tokens_keeps_its_meaning() -> None:
    async with open_shop() as shop:
        many = b",".join(b'{"email":"%b"}' % (b"n" * 50) for _ in range(2_000))
        octets = b'{"x":[' + many + b'],"email":"known@friendly.test"}'
        assert len(octets) > decoding.THREAD_OCTETS
        assert (await shop.request("POST", VERIFY, octets=octets)).status == 200
        twice = octets[:-1] + b',"email":"b"}'
        assert "twice" in (await shop.request("POST", VERIFY, octets=twice)).body["message"]


async def test_a_slow_body_is_408_ten_seconds_after_its_head(
    autojump_clock: object, shop: RunningService
) -> None:
    drip = [(1.0, b" ")] * 60
    got = await shop.request("POST", VERIFY, pieces=drip)
    assert (got.status, got.error) == (408, "request_timeout")
    assert got.headers["connection"] == "close"
    assert trio.current_time() == pytest.approx(10, abs=0.01)
    assert await shop.rows() == []


async def test_a_client_that_leaves_in_the_middle_of_its_body_is_no_bug(
    autojump_clock: object, shop: RunningService, caplog: pytest.LogCaptureFixture
) -> None:
    got = await shop.request("POST", VERIFY, pieces=[(0.0, b"{"), (5.0, b"}")], hang_up_at=1.0)
    assert got.status == 0
    assert not caplog.records


# -- every answer -----------------------------------------------------------------------------


async def test_every_answer_has_a_request_id_of_its_own(
    autojump_clock: object, shop: RunningService
) -> None:
    answers = [
        await shop.verify(), await shop.verify(key=None), await shop.request("GET", "/nope"),
        await shop.request("PUT", "/health"), await shop.request("GET", "/health"),
        await shop.stream("known@friendly.test"), await shop.manage("GET", "/account"),
    ]  # fmt: skip
    ids = [got.headers["x-request-id"] for got in answers]
    assert len(set(ids)) == len(ids)
    assert all(got.headers["cache-control"] == "no-store" for got in answers)


async def test_the_limits_stand_on_every_answer_to_a_caller_of_a_verify_route(
    autojump_clock: object, shop: RunningService
) -> None:
    for got in (
        await shop.verify(), await shop.verify(5), await shop.batch(),
        await shop.stream("known@friendly.test"), await shop.request("POST", VERIFY, octets=b"{"),
        await shop.verify(headers={"content-length": "2097153"}),
    ):  # fmt: skip
        assert got.headers["ratelimit-policy"] == '"minute";q=100;w=60'
        assert got.headers["ratelimit"].startswith('"minute";r=')
    assert "ratelimit" not in (await shop.request("GET", "/health")).headers
    assert "ratelimit" not in (await shop.manage("GET", "/account")).headers
    assert "ratelimit" not in (await shop.verify(key=None)).headers


async def test_the_limits_say_what_is_left_and_when_there_is_more(
    autojump_clock: object, free_shop: RunningService
) -> None:
    got = await free_shop.batch("x", "y", "z")
    assert got.headers["ratelimit-policy"] == f'"minute";q=10;w=60, "month";q=500;w={31 * 86400}'
    minute, month = got.headers["ratelimit"].split(", ")
    assert minute == '"minute";r=7;t=60'
    assert month.startswith('"month";r=497;t=')
    await trio.sleep(20)
    got = await free_shop.batch(*["x"] * 8)
    assert got.status == 429
    assert got.headers["ratelimit"].startswith('"minute";r=7;t=40')


# -- trouble ----------------------------------------------------------------------------------


async def test_a_bug_is_500_with_an_id_and_is_logged(
    autojump_clock: object,
    shop: RunningService,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def broken(*arguments: object) -> None:
        raise ZeroDivisionError("ours")

    monkeypatch.setattr(verify, "answer_whole", broken)
    with caplog.at_level(logging.ERROR):
        got = await shop.verify()
    assert (got.status, got.error) == (500, "internal_error")
    assert got.headers["x-request-id"] in got.body["action"]
    assert "ZeroDivisionError" in caplog.text
    assert shop.key not in caplog.text


async def test_a_bug_of_the_framework_is_answered_the_same_way(
    autojump_clock: object,
    shop: RunningService,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def broken(*arguments: object) -> None:
        raise ZeroDivisionError("ours")

    monkeypatch.setattr(app_module, "call_of", broken)
    got = await shop.request("GET", "/health")
    assert (got.status, got.error) == (500, "internal_error")
    assert "ZeroDivisionError" in caplog.text


@pytest.mark.parametrize("away", [True, {"settle"}], ids=["all", "settle"])
async def test_a_store_that_is_away_is_503_and_heals(
    autojump_clock: object, shop: RunningService, away: Any
) -> None:
    shop.store.away = away
    got = await shop.verify()
    assert (got.status, got.error) == (503, "quota_check_failed")
    assert got.headers["retry-after"] == "1"
    assert set(got.body) == FOUR
    shop.store.away = False
    assert (await shop.verify()).status == 200


# -- keys -------------------------------------------------------------------------------------


async def test_the_scheme_may_be_written_in_any_case(
    autojump_clock: object, shop: RunningService
) -> None:
    for scheme in ("bearer", "BEARER", "Bearer  "):
        headers = {"authorization": f"{scheme} {shop.key}"}
        assert (await shop.verify(key=None, headers=headers)).status == 200
