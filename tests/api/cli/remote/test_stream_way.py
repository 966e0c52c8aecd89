"""`mailprobe clean --server`: small requests with retries; no answered address is sent again."""

import json
import math
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
import trio
from click.testing import CliRunner

from mailprobe.api.cli import main
from mailprobe.api.cli.clean import _source
from mailprobe.api.cli.cleaning.outputs import Order
from mailprobe.api.cli.cleaning.run import clean_list
from mailprobe.api.cli.remote.request_queue import Allowance, RequestQueue
from mailprobe.api.cli.remote.runs import FIRST_TIMEOUT_S, TEXT_CHARACTERS_MAX, TIMEOUT_S
from mailprobe.api.cli.remote.service import RemoteService, check_server
from mailprobe.api.cli.remote.source import RemoteSource
from mailprobe.api.cli.remote.stream_way import PATH, QUERY
from mailprobe.api.cli.source import DOMAIN_RUN
from mailprobe.api.errors import CommandError, Misuse
from mailprobe.api.results.row_result import domain_of
from tests.api.fake_source import verdict_of

URL = "https://api.test"

Instead = Callable[[list[str]], httpx.Response | None]


@dataclass
class Service:
    """A service with a sliding window, whose answers can be replaced one by one.

    `instead` holds what the first requests get; None in it lets one pass.
    """

    limit: int | None = 1_000
    instead: list[Instead | None] = field(default_factory=list)
    always: Instead | None = None
    asked: list[str] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    granted: list[tuple[float, int]] = field(default_factory=list)
    refused: int = 0
    open: Counter[str] = field(default_factory=Counter)
    open_max: int = 0

    async def handle(self, request: httpx.Request) -> httpx.Response:
        assert request.headers["authorization"] == "Bearer sk_test_x"
        emails = json.loads(await request.aread())["emails"]
        assert 1 <= len(emails) <= 50
        self.sizes.append(len(emails))
        instead = self.instead.pop(0) if self.instead else self.always
        answer = instead(emails) if instead else None
        if answer is not None:
            return answer
        now = trio.current_time()
        used = sum(units for at, units in self.granted if at > now - 60)
        if self.limit is not None and used + len(emails) > self.limit:
            self.refused += 1
            return error(429, "rate_limit_exceeded", {"retry-after": "60"}, limit=self.limit)
        self.granted.append((now, len(emails)))
        policy = {"ratelimit-policy": f'"minute";q={self.limit};w=60'} if self.limit else {}
        if request.url.path.endswith("/batch"):
            lines = [line async for line in self.lines(emails)]
            body = b'{"results":[%b]}' % b",".join(line.rstrip() for line in lines)
            return httpx.Response(200, headers=policy, content=body)
        return httpx.Response(200, headers=policy, content=self.lines(emails))

    async def lines(self, emails: list[str], cut_after: float = math.inf) -> AsyncIterator[bytes]:
        domains = Counter(map(domain_of, emails))
        assert max(domains.values()) <= DOMAIN_RUN
        assert not self.open.keys() & domains.keys(), "a domain in two requests at once"
        self.open.update(domains)
        self.open_max = max(self.open_max, len(self.open))
        try:
            for number, email in enumerate(reversed(emails)):
                if number >= cut_after:
                    yield b'{"email":"torn'
                    raise httpx.ReadError("the connection was lost")
                await trio.sleep(0.01)
                self.asked.append(email)
                yield line_of(email)
        finally:
            for domain in domains:
                del self.open[domain]


def line_of(email: str) -> bytes:
    return msgspec.json.encode(verdict_of(email)) + b"\n"


def error(
    status: int, code: str, headers: dict[str, str] | None = None, **more: Any
) -> httpx.Response:
    body = {"error": code, "message": "It is so.", "action": "Do it.", "docs": "", **more}
    return httpx.Response(status, headers=headers, json=body)


def addresses(count: int, domains: int) -> list[str]:
    return [f"ann{n}@shop{n % domains}.test" for n in range(count)]


def remote_source(client: httpx.AsyncClient) -> RemoteSource:
    return RemoteSource(RemoteService(client, URL, "sk_test_x"), "stream")


async def stream_answers(
    texts: list[str], handle: Callable[[httpx.Request], Awaitable[httpx.Response]]
) -> tuple[list[str], str | None]:
    """Send all addresses; return the answers, and the error at the end."""
    came: list[str] = []
    headers = {"authorization": "Bearer sk_test_x"}
    transport = httpx.MockTransport(handle)  # type: ignore[arg-type]
    async with httpx.AsyncClient(transport=transport, headers=headers) as client:
        try:
            async with remote_source(client).open_answers(texts) as answers:
                async for answer in answers:
                    assert answer.verdict.email == texts[answer.position]
                    came.append(answer.verdict.email)
        except CommandError as fault:
            return came, fault.message
    return came, None


# How it asks


async def test_every_address_is_sent_once_and_domains_take_turns(autojump_clock: Any) -> None:
    service = Service()
    texts = addresses(700, 40)
    came, fault = await stream_answers(texts, service.handle)
    assert fault is None
    assert Counter(came) == Counter(service.asked) == Counter(texts)
    assert max(service.sizes) == 50
    assert service.open_max > 3  # several requests at once


async def test_the_same_text_twice_has_two_answers(autojump_clock: Any) -> None:
    service = Service()
    came, _ = await stream_answers(["a@x.test", "a@x.test"], service.handle)
    assert came == ["a@x.test"] * 2


async def test_the_source_keeps_below_the_rate_limit_without_a_429(
    autojump_clock: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    service = Service(limit=100)
    texts = addresses(350, 50)
    began = trio.current_time()
    came, _ = await stream_answers(texts, service.handle)
    assert len(came) == 350
    assert service.refused == 0
    assert capsys.readouterr().err.count("rate limit is reached") == 1
    assert 180 <= trio.current_time() - began < 190


async def test_an_account_that_loses_its_limit_is_not_held_to_it(autojump_clock: Any) -> None:
    service, texts = Service(limit=100), addresses(1_000, 100)

    async def raise_tier() -> None:
        await trio.sleep(30)
        service.limit = None

    async with trio.open_nursery() as nursery:
        nursery.start_soon(raise_tier)
        came, _ = await stream_answers(texts, service.handle)
    assert sorted(came) == sorted(texts)
    assert trio.current_time() < 80  # 100 in the first minute, and then the rest


async def test_a_limit_that_no_header_says_is_kept(autojump_clock: Any) -> None:
    """A proxy may remove the headers; the body of a 429 has the limit, too."""
    service, texts = Service(limit=100), addresses(400, 100)

    async def handle(request: httpx.Request) -> httpx.Response:
        response = await service.handle(request)
        response.headers.pop("ratelimit-policy", None)
        return response

    came, _ = await stream_answers(texts, handle)
    assert sorted(came) == sorted(texts)
    assert service.refused < 10


async def test_a_limit_below_a_requests_size_splits_it(autojump_clock: Any) -> None:
    service = Service(limit=10)
    came, _ = await stream_answers(addresses(30, 3), service.handle)
    assert len(came) == 30
    assert service.sizes[1:] == [10, 10, 10]
    assert service.refused == 1


async def test_another_users_share_of_the_limit_is_waited_for(autojump_clock: Any) -> None:
    def no(emails: list[str]) -> httpx.Response:
        return error(429, "rate_limit_exceeded", {"retry-after": "37"}, limit=1000)

    service = Service(instead=[no])
    began = trio.current_time()
    came, _ = await stream_answers(addresses(5, 1), service.handle)
    assert len(came) == 5
    assert 37 < trio.current_time() - began < 39


@pytest.mark.parametrize("status", [408, 500, 502, 503])
async def test_a_request_is_repeated_while_the_service_is_unavailable(
    autojump_clock: Any, status: int
) -> None:
    def no(emails: list[str]) -> httpx.Response:
        return error(status, "overloaded", {"retry-after": "2"})

    service = Service(instead=[None, no, no])
    texts = addresses(150, 30)
    began = trio.current_time()
    came, fault = await stream_answers(texts, service.handle)
    assert (Counter(came), fault) == (Counter(texts), None)
    assert trio.current_time() - began > 2


async def test_after_a_lost_connection_only_the_rest_is_sent_again(autojump_clock: Any) -> None:
    service = Service()

    def cut(emails: list[str]) -> httpx.Response:
        return httpx.Response(200, content=service.lines(emails, cut_after=7))

    service.instead = [cut]
    texts = addresses(50, 10)
    came, fault = await stream_answers(texts, service.handle)
    assert (Counter(came), fault) == (Counter(texts), None)
    assert Counter(service.asked) == Counter(texts)
    assert service.sizes == [50, 43]


async def test_addresses_missing_from_a_short_answer_are_sent_again(
    autojump_clock: Any,
) -> None:
    service = Service(instead=[lambda emails: httpx.Response(200, content=line_of(emails[0]))])
    came, _ = await stream_answers(addresses(10, 2), service.handle)
    assert len(came) == 10
    assert service.sizes == [10, 9]


async def test_a_line_separator_within_a_result_is_no_line_end(autojump_clock: Any) -> None:
    text = "a\u2028b\x85c@x.test"
    came, _ = await stream_answers([text], Service().handle)
    assert came == [text]


async def test_a_text_too_long_for_a_request_needs_none(autojump_clock: Any) -> None:
    service = Service()
    came, _ = await stream_answers(["a" * 3_000_000, "b@x.test"], service.handle)
    assert sorted(map(len, came)) == [8, 3_000_000]
    assert service.sizes == [1]
    largest = msgspec.json.encode({"emails": ["\0" * TEXT_CHARACTERS_MAX] * 50})
    assert len(largest) < 2 * 1024 * 1024


# Where it ends


@pytest.mark.parametrize(
    ("status", "code", "more"),
    [
        (401, "invalid_api_key", {}),
        (402, "payment_required", {}),
        (404, "not_found", {}),
        (429, "monthly_quota_exceeded", {"limit": 500, "used": 500}),
    ],
)
async def test_a_refusal_for_good_ends_it_and_what_was_under_way_is_taken(
    autojump_clock: Any, status: int, code: str, more: dict[str, Any]
) -> None:
    service = Service(instead=[None, None, lambda emails: error(status, code, **more)])
    came, fault = await stream_answers(addresses(400, 80), service.handle)
    assert fault == f"the service answers {status} {code}: It is so. Do it"
    assert set(came) == set(service.asked)
    assert len(came) >= 100
    assert len(service.sizes) <= 5


async def test_the_last_units_of_the_month_are_used(autojump_clock: Any) -> None:
    left = 20

    def quota(emails: list[str]) -> httpx.Response | None:
        nonlocal left
        if len(emails) > left:
            return error(429, "monthly_quota_exceeded", limit=500, used=500 - left)
        left -= len(emails)
        return None

    came, fault = await stream_answers(addresses(30, 30), Service(always=quota).handle)
    assert len(came) == 20
    assert fault
    assert "monthly_quota_exceeded" in fault


async def test_a_service_that_is_gone_is_given_up_after_a_while(autojump_clock: Any) -> None:
    def gone(emails: list[str]) -> httpx.Response:
        raise httpx.ConnectError("Connection refused")

    began = trio.current_time()
    came, fault = await stream_answers(addresses(3, 1), Service(always=gone).handle)
    assert fault == f"the service at {URL}{PATH}{QUERY} cannot be reached (Connection refused)"
    assert FIRST_TIMEOUT_S <= trio.current_time() - began < 3 * FIRST_TIMEOUT_S
    began = trio.current_time()
    came, fault = await stream_answers(
        addresses(99, 9), Service(instead=[None], always=gone).handle
    )
    assert len(came) == 50
    assert TIMEOUT_S <= trio.current_time() - began < 2 * TIMEOUT_S


async def test_answers_of_another_program_are_not_taken_for_results(autojump_clock: Any) -> None:
    page = httpx.Response(200, content=b"<html>\n</html>\n")
    _, fault = await stream_answers(["a@x.test"], Service(always=lambda _: page).handle)
    assert fault
    assert "is not a result of a mailprobe service" in fault


async def test_leaving_the_source_ends_its_requests(autojump_clock: Any) -> None:
    service = Service()
    headers = {"authorization": "Bearer sk_test_x"}
    transport = httpx.MockTransport(service.handle)
    async with (
        httpx.AsyncClient(transport=transport, headers=headers) as client,
        remote_source(client).open_answers(addresses(500, 90)) as answers,
    ):
        async for _ in answers:
            break
    assert len(service.asked) < 500


def test_received_answers_are_kept_and_not_requested_again(tmp_path: Path) -> None:
    """Test the journal and this source together, with a refusal and --resume."""
    path = tmp_path / "list.txt"
    texts = addresses(120, 12)
    path.write_text("".join(f"{text}\n" for text in texts))
    first = Service(instead=[None, None], always=lambda _: error(401, "invalid_api_key"))

    def opening(service: Service) -> Any:
        @asynccontextmanager
        async def open_source() -> AsyncIterator[RemoteSource]:
            headers = {"authorization": "Bearer sk_test_x"}
            transport = httpx.MockTransport(service.handle)
            async with httpx.AsyncClient(transport=transport, headers=headers) as client:
                yield remote_source(client)

        return open_source

    out = tmp_path / "out.csv"
    with pytest.raises(
        CommandError, match=r"are answered and kept; continue with: .*--resume"
    ) as fault:
        clean_list(Order(path, out), opening(first), standard_output=None)  # type: ignore[arg-type]
    assert fault.value.exit_code == 1
    second = Service()
    clean_list(Order(path, out, resume=True), opening(second), standard_output=None)  # type: ignore[arg-type]
    assert Counter(first.asked) + Counter(second.asked) == Counter(texts)
    assert len(out.read_text().splitlines()) >= 120


# A service that misbehaves


async def test_the_first_answer_about_another_address_ends_it(autojump_clock: Any) -> None:
    """A repeat would get the same wrong answer, and be billed."""
    service = Service(always=lambda _: httpx.Response(200, content=line_of("mallory@x.test")))
    came, fault = await stream_answers(addresses(300, 60), service.handle)
    assert came == []
    assert fault
    assert "answers about mallory@x.test, which was not in the request" in fault
    assert len(service.sizes) <= 4


async def test_an_answer_given_twice_ends_it(autojump_clock: Any) -> None:
    texts = addresses(3, 3)
    content = line_of(texts[0]) + line_of(texts[0])
    service = Service(always=lambda _: httpx.Response(200, content=content))
    came, fault = await stream_answers(texts, service.handle)
    assert came == [texts[0]]
    assert fault
    assert "was not in the request" in fault
    assert service.sizes == [3]


@pytest.mark.parametrize(
    ("code", "more"),
    [
        ("rate_limit_exceeded", {"limit": 0}),
        ("rate_limit_exceeded", {"limit": -5}),
        ("rate_limit_exceeded", {}),
        ("rate_limit_exceeded", {"limit": 1000}),
        ("too_many_requests", {}),
    ],
)
@pytest.mark.parametrize("headers", [{}, {"retry-after": "0"}, {"retry-after": "60"}])
async def test_a_429_for_ever_waits_and_ends(
    autojump_clock: Any, code: str, more: dict[str, Any], headers: dict[str, str]
) -> None:
    service = Service(always=lambda _: error(429, code, headers, **more))
    began = trio.current_time()
    came, fault = await stream_answers(addresses(30, 3), service.handle)
    assert came == []
    assert fault == f"the service answers 429 {code}: It is so. Do it"
    assert 60 < trio.current_time() - began < 1100
    assert len(service.sizes) < 4000


async def dripping(piece: bytes, every_s: float) -> AsyncIterator[bytes]:
    while True:
        await trio.sleep(every_s)
        yield piece


@pytest.mark.parametrize("status", [200, 503, 401])
@pytest.mark.parametrize(("piece", "every_s"), [(b" ", 1.0), (b"x" * 4000, 1.0), (b"", 1e9)])
async def test_a_response_without_end_ends_by_a_clock(
    autojump_clock: Any, status: int, piece: bytes, every_s: float
) -> None:
    service = Service(always=lambda _: httpx.Response(status, content=dripping(piece, every_s)))
    began = trio.current_time()
    _, fault = await stream_answers(addresses(10, 3), service.handle)
    assert fault
    assert "\n" not in fault
    assert trio.current_time() - began < 600


@pytest.mark.parametrize("how", ["500", "nothing"])
async def test_an_address_on_which_the_service_fails_is_set_aside(
    autojump_clock: Any, capsys: pytest.CaptureFixture[str], how: str
) -> None:
    texts = addresses(400, 60)
    poison = {texts[7], texts[333]}

    def fail(emails: list[str]) -> httpx.Response | None:
        if poison & set(emails):
            return error(500, "internal") if how == "500" else httpx.Response(200, content=b"")
        return None

    service = Service(always=fail)
    verdicts: dict[str, str] = {}
    headers = {"authorization": "Bearer sk_test_x"}
    transport = httpx.MockTransport(service.handle)
    async with (
        httpx.AsyncClient(transport=transport, headers=headers) as client,
        remote_source(client).open_answers(texts) as answers,
    ):
        async for answer in answers:
            assert answer.verdict.email not in verdicts
            verdicts[answer.verdict.email] = answer.verdict.status
    assert verdicts.keys() == set(texts)
    assert {email for email, status in verdicts.items() if status == "unknown"} == poison
    assert Counter(service.asked) == Counter(set(texts) - poison)
    assert "and 1 more each time" in capsys.readouterr().err


@pytest.mark.parametrize("count", [1, 5, 500])
async def test_a_service_that_fails_on_everything_is_no_verdict(
    autojump_clock: Any, count: int
) -> None:
    service = Service(always=lambda _: error(500, "internal"))
    began = trio.current_time()
    came, fault = await stream_answers(addresses(count, 50), service.handle)
    assert came == []
    assert fault
    assert trio.current_time() - began < 2 * TIMEOUT_S


# Pure functions


def test_a_domain_is_taken_by_the_run_and_rests_until_it_is_put_back() -> None:
    queue = RequestQueue()
    for place in range(30):
        queue.add(place, "x@big.test")
    queue.add(30, "x@small.test")
    taken = queue.pop_batch(50)
    assert taken == {"big.test": list(range(20)), "small.test": [30]}
    assert queue.pop_batch(50) == {}
    queue.requeue("small.test", [])
    queue.requeue("big.test", [3, 4])
    assert queue.pop_batch(5) == {"big.test": [3, 4, 20, 21, 22]}
    assert "small.test" not in queue.waiting


def test_units_come_back_a_minute_after_they_were_granted() -> None:
    allowance = Allowance(limit=100)
    allowance.granted.append((5.0, 60))
    allowance.requested = 30
    assert allowance.room(64.9) == 10
    assert allowance.opens_at() == 65.0
    assert allowance.room(65.0) == 70


# The command line


@pytest.mark.parametrize(
    "words",
    [
        ["--server", "http://127.0.0.1:1"],
        ["--key", "sk_live_x"],
        ["--server", "127.0.0.1:1", "--key", "sk_live_x"],
        ["--server", "ftp://x.test", "--key", "sk_live_x"],
        ["--server", "http://u:p@x.test", "--key", "sk_live_x"],
        ["--server", "http://x.test", "--key", "a\nb"],
        ["--server", "http://x.test", "--key", ""],
    ],
)
def test_half_a_service_is_wrong_usage(tmp_path: Path, words: list[str]) -> None:
    path = tmp_path / "list.txt"
    path.write_text("ann@shop.test\n")
    result = CliRunner().invoke(main, ["clean", str(path), *words])
    assert result.exit_code == 2, result.output
    assert len(result.output.splitlines()) == 1
    assert "sk_live_x" not in result.output


def test_the_address_of_a_service_has_no_slash_at_its_end() -> None:
    assert check_server("https://api.test/", "k") == URL
    with pytest.raises(Misuse):
        check_server("https://", "k")


def test_a_server_that_is_not_there_ends_the_command_with_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On real sockets; the line does not contain the key."""
    monkeypatch.setattr("mailprobe.api.cli.remote.runs.FIRST_TIMEOUT_S", 0.0)
    path = tmp_path / "list.txt"
    path.write_text("ann@shop.test\n")
    words = ["clean", str(path), "--server", "http://127.0.0.1:1", "--key", "sk_live_secret"]
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 1
    assert "cannot be reached" in result.output
    assert "nothing was answered yet" in result.output
    assert "sk_live_secret" not in result.output


@pytest.mark.parametrize("place", ["environment", "file"])
def test_server_and_key_may_come_from_the_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """Neither is in the process list, and the advice to resume repeats neither."""
    monkeypatch.setattr("mailprobe.api.cli.remote.runs.FIRST_TIMEOUT_S", 0.0)
    monkeypatch.chdir(tmp_path)
    if place == "environment":
        monkeypatch.setenv("MAILPROBE_SERVER", "http://127.0.0.1:1")
        monkeypatch.setenv("MAILPROBE_KEY", "sk_live_secret")
    else:
        Path("mailprobe.toml").write_text('server = "http://127.0.0.1:1"\nkey = "sk_live_secret"\n')
    Path("list.txt").write_text("ann@shop.test\n")
    result = CliRunner().invoke(main, ["clean", "list.txt"])
    assert result.exit_code == 1
    assert "the service at http://127.0.0.1:1/" in result.output
    assert "sk_live_secret" not in result.output


def test_the_options_win_over_the_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mailprobe.api.cli.remote.runs.FIRST_TIMEOUT_S", 0.0)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MAILPROBE_SERVER", "http://127.0.0.1:1")
    monkeypatch.setenv("MAILPROBE_KEY", "sk_live_secret")
    Path("list.txt").write_text("ann@shop.test\n")
    result = CliRunner().invoke(main, ["clean", "list.txt", "--server", "http://127.0.0.1:2"])
    assert "the service at http://127.0.0.1:2/" in result.output
    result = CliRunner().invoke(main, ["clean", "list.txt", "--key", "a\nb"])
    assert (result.exit_code, "--key takes an API key" in result.output) == (2, True)


def test_a_key_alone_in_the_environment_asks_no_service(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAILPROBE_KEY", "sk_live_secret")
    monkeypatch.setenv("MAILPROBE_SERVER", "")
    assert _source(None, None)[1]
    with pytest.raises(Misuse, match="MAILPROBE_SERVER"):
        _source(None, "sk_live_x")


@pytest.mark.parametrize("name", ["MAILPROBE_SERVER", "MAILPROBE_KEY"])
def test_a_wrong_server_or_key_in_the_environment_is_named_and_no_secret_shown(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, "ftp://ann:secret@x.test bad")
    result = CliRunner().invoke(main, ["clean", "list.txt"])
    assert (result.exit_code, len(result.output.splitlines())) == (2, 1)
    assert result.output.startswith(f"mailprobe: {name} is ")
    assert "secret" not in result.output
