"""`mailprobe clean --server` with a long list: it is sent whole, and fetched as it is answered."""

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import httpx
import msgspec
import pytest
import trio
from msgspec.structs import replace

from mailprobe.api.cli.cleaning.waiting import clock
from mailprobe.api.cli.output.progress import standing
from mailprobe.api.cli.remote import list_way
from mailprobe.api.cli.remote.runs import TIMEOUT_S
from mailprobe.api.cli.remote.service import RemoteService
from mailprobe.api.cli.remote.source import RemoteSource
from mailprobe.api.errors import CommandError
from mailprobe.api.listfile.journal import SentList, SentRequest
from mailprobe.api.quota.plans import PLANS
from mailprobe.api.results.counts import ProgressRate
from mailprobe.bench.world.mail_host import MailHost
from tests.api.lists.test_lists import LISTS, working_lists
from tests.api.service_fixture import RunningService, open_shop

BASE = "https://api.test"


class Transport(httpx.AsyncBaseTransport):
    """Passes requests to the application; `broken` says which to fail."""

    def __init__(self, shop: RunningService) -> None:
        self.shop = shop
        self.requests: Counter[str] = Counter()
        self.is_away = False
        self.is_unavailable = False
        self.limited: set[int] = set()  # the numbers of requests that get a 429
        self._count = 0

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if self.is_away:
            raise httpx.ConnectError("nobody listens")
        if self.is_unavailable:
            return httpx.Response(503)
        self._count += 1
        if self._count in self.limited:
            body = {"error": "rate_limit_exceeded"}
            return httpx.Response(429, headers={"retry-after": "7"}, json=body)
        path = request.url.raw_path.decode()
        self.requests[f"{request.method} {path.partition('?')[0].rpartition('/')[0]}"] += 1
        octets = await request.aread()
        headers = {
            name: text
            for name, text in request.headers.items()
            if name in ("content-type", "authorization")
        }
        got = await self.shop.request(
            request.method, path, octets=octets, key=None, headers=headers
        )
        return httpx.Response(got.status, headers=got.headers, content=got.octets)


@asynccontextmanager
async def open_source(
    shop: RunningService, *, asks_hosts: bool = True
) -> AsyncIterator[tuple[RemoteSource, Transport]]:
    transport = Transport(shop)
    headers = {"Authorization": f"Bearer {shop.key}", "Content-Type": "application/json"}
    async with httpx.AsyncClient(transport=transport, headers=headers) as client:
        yield RemoteSource(RemoteService(client, BASE, shop.key, asks_hosts)), transport


def knowns(count: int) -> list[str]:
    return [f"known{number}@friendly.test" for number in range(count)]


async def answered(source: RemoteSource, texts: list[str]) -> list[Any]:
    async with source.open_answers(texts) as answers:
        return [answer async for answer in answers]


PLAN = {**PLANS, "scale": replace(PLANS["scale"], rate_limit_per_min=10_000)}


async def test_a_long_list_is_sent_whole(autojump_clock: trio.testing.MockClock) -> None:
    texts = [*knowns(1_200), "nobody@friendly.test", "no address", "odd,text\u2028here"]
    async with open_shop("scale", plans=PLAN) as shop, working_lists(shop):
        async with open_source(shop) as (source, transport):
            answers = await answered(source, texts)
        assert sorted(answer.position for answer in answers) == list(range(len(texts)))
        for answer in answers:
            assert answer.verdict.email == texts[answer.position]
        statuses = Counter(answer.verdict.status for answer in answers)
        assert statuses == {"deliverable": 1_200, "undeliverable": 1, "invalid": 2}
        by_position = {answer.position: answer for answer in answers}
        assert by_position[1_200].cause.reason == "no_mailbox"
        assert transport.requests["POST /v1"] == 1
        assert transport.requests["POST /v1/email/verify"] == 0
        assert (await shop.request("GET", LISTS)).body["lists"] == []  # it was deleted
        assert (await shop.store.ledger(await shop.caller())).month_units == len(texts)


async def test_a_short_list_is_a_stream(autojump_clock: trio.testing.MockClock) -> None:
    async with open_shop("scale", plans=PLAN) as shop, working_lists(shop):
        async with open_source(shop) as (source, transport):
            assert len(await answered(source, knowns(99))) == 99
        assert transport.requests["POST /v1"] == 0


@pytest.mark.parametrize("count", [200, 1_000])
async def test_without_smtp_the_service_asks_no_host_for_a_stream_and_a_list(
    autojump_clock: trio.testing.MockClock, count: int
) -> None:
    async with open_shop("own") as shop, working_lists(shop):
        async with open_source(shop, asks_hosts=False) as (source, transport):
            reasons = {answer.cause.reason for answer in await answered(source, knowns(count))}
        assert reasons == {"not_asked"}
        assert transport.requests["POST /v1"] == (count == 1_000)
        assert not shop.world.dialled


async def test_a_service_without_lists_gets_a_stream(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_shop("scale", plans=PLAN) as shop, open_source(shop) as (source, transport):
        assert len(await answered(source, knowns(1_000))) == 1_000
        assert transport.requests["POST /v1/email/verify"] >= 20


async def test_a_list_that_is_paused_ends_with_what_is_known(
    autojump_clock: trio.testing.MockClock,
) -> None:
    plans = {**PLANS, "free": replace(PLANS["free"], rate_limit_per_min=9_999, monthly_calls=300)}
    async with open_shop("free", plans=plans) as shop, working_lists(shop):
        async with open_source(shop) as (source, _):
            found = []
            with pytest.raises(CommandError, match="monthly_quota_exceeded"):  # noqa: PT012
                async with source.open_answers(knowns(1_000)) as answers:
                    async for answer in answers:
                        found.append(answer.position)
        assert len(set(found)) == len(found) == 300
        assert (await shop.request("GET", LISTS)).body["lists"] == []


async def test_an_interrupted_run_deletes_its_list(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_shop("builder") as shop, working_lists(shop):
        async with open_source(shop) as (source, _):
            found = []
            with trio.CancelScope() as scope:
                async with source.open_answers(knowns(1_000)) as answers:
                    scope.deadline = trio.current_time() + 400
                    async for answer in answers:
                        found.append(answer.position)
        assert 180 <= len(found) < 1_000
        await trio.sleep(10)
        assert (await shop.request("GET", LISTS)).body["lists"] == []
        units = (await shop.store.ledger(await shop.caller())).month_units
        await trio.sleep(200)
        assert (await shop.store.ledger(await shop.caller())).month_units == units


class Record:
    """What a run has sent, in memory."""

    def __init__(self) -> None:
        self.sent: list[SentRequest | SentList] = []

    def record_sent(self, sent: SentRequest | SentList) -> None:
        self.sent.append(sent)


async def test_a_list_of_an_interrupted_run_waits_and_costs_nothing_twice(
    autojump_clock: trio.testing.MockClock,
) -> None:
    texts, record = knowns(1_000), Record()
    async with open_shop("builder") as shop, working_lists(shop):
        found = set()
        async with open_source(shop) as (source, _):
            source.keep_record(record)
            with trio.CancelScope() as scope:
                async with source.open_answers(texts) as answers:
                    scope.deadline = trio.current_time() + 400
                    async for answer in answers:
                        found.add(texts[answer.position])
        assert 180 <= len(found) < 1_000
        await trio.sleep(10)
        (kept,) = (await shop.request("GET", LISTS)).body["lists"]
        assert kept["status"] == "paused"
        async with open_source(shop, asks_hosts=False) as (source, _):
            source.keep_record(record)  # of a list whose hosts are asked
            cause = (await answered(source, ["bob@friendly.test"]))[0].cause
            assert cause.reason == "not_asked"
        left = [text for text in texts if text not in found] + ["bob@friendly.test"]
        async with open_source(shop) as (source, _):
            source.keep_record(record)
            assert len(await answered(source, left)) == len(left)
        assert (await shop.request("GET", LISTS)).body["lists"] == []
        assert (await shop.store.ledger(await shop.caller())).month_units == 1_002
        assert record.sent[-1] == SentList(kept["list_id"], done=True)


async def test_the_limit_of_requests_is_a_wait(autojump_clock: trio.testing.MockClock) -> None:
    async with open_shop("scale", plans=PLAN) as shop, working_lists(shop):
        async with open_source(shop) as (source, transport):
            transport.limited = {1, 3, 4, 6}
            assert len(await answered(source, knowns(1_000))) == 1_000
        assert transport.requests["POST /v1/email/verify"] == 0
        assert (await shop.store.ledger(await shop.caller())).month_units == 1_000


async def test_a_service_that_is_away_for_a_while_loses_nothing(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with (
        open_shop("scale", plans=PLAN) as shop,
        working_lists(shop),
        open_source(shop) as (source, transport),
    ):
        async with source.open_answers(knowns(1_000)) as answers:
            transport.is_away = True
            await trio.sleep(TIMEOUT_S / 2)
            transport.is_away = False
            assert len([answer async for answer in answers]) == 1_000
        with pytest.raises(CommandError, match="cannot be reached"):  # noqa: PT012
            async with source.open_answers(knowns(1_001)) as answers:
                transport.is_away = True
                assert [answer async for answer in answers] == []


async def test_a_service_that_stays_unavailable_ends_the_run(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with (
        open_shop("scale", plans=PLAN) as shop,
        working_lists(shop),
        open_source(shop) as (source, transport),
    ):
        with pytest.raises(CommandError, match="is unavailable \\(503\\)"):  # noqa: PT012
            async with source.open_answers(knowns(1_000)) as answers:
                transport.is_unavailable = True
                began = trio.current_time()
                assert [answer async for answer in answers] == []
        assert TIMEOUT_S <= trio.current_time() - began < 2 * TIMEOUT_S


async def test_an_answer_that_is_none_ends_the_run(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_shop("scale", plans=PLAN) as shop, working_lists(shop):
        monkeypatch.setattr(list_way, "_Row", list)
        async with open_source(shop) as (source, _):
            with pytest.raises(CommandError, match="is not a result of a mailprobe service"):
                await answered(source, knowns(1_000))
        assert (await shop.request("GET", LISTS)).body["lists"] == []


async def test_an_explained_answer_has_the_services_evidence(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """`verify --server --explain` prints what an engine here would have said."""
    async with open_shop("scale") as shop, open_source(shop) as (_, transport):
        headers = {"Authorization": f"Bearer {shop.key}", "Content-Type": "application/json"}
        async with httpx.AsyncClient(transport=transport, headers=headers) as client:
            source = RemoteSource(RemoteService(client, BASE, shop.key), "stream")
            async with source.open_answers(knowns(1), explain=True) as answers:
                [answer] = [answer async for answer in answers]
    assert answer.evidence is not None
    assert answer.evidence.rule == "accepted"
    assert any(line.text.startswith("RCPT TO:") for line in answer.evidence.conversation)
    assert answer.cause.reason == "accepted"


async def test_a_list_waits_at_the_service_for_as_long_as_the_command_is_patient(
    autojump_clock: trio.testing.MockClock, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = [*knowns(1_000), *(f"gone{number}@hoster.test" for number in range(40))]
    async with open_shop("scale", plans=PLAN) as shop, working_lists(shop):
        shop.world.add("hoster.test", MailHost(mailboxes=frozenset()))
        async with open_source(shop) as (source, _):
            noted: list[datetime | None] = []
            source.wait_up_to(lambda: 700.0, noted.append)
            began = trio.current_time()
            async with source.open_answers(texts) as answers:
                await trio.sleep(60)
                [shown] = (await shop.request("GET", LISTS)).body["lists"]
                assert noted[-1] == datetime.fromisoformat(shown["waits_until"])
                found = [answer async for answer in answers]
        assert noted[-1] is None
        assert (shown["patience_s"], shown["stage"]) == (700, "waiting")
        assert len(found) == len(texts)
        assert {answer.retry_s for answer in found} == {None}  # the service has waited
        assert trio.current_time() - began > 600
        assert (await shop.store.ledger(await shop.caller())).month_units == len(texts)
    said = capsys.readouterr().err
    assert "of 1,040 wait at 1 host: mx.hoster.test takes " in said
    assert 1 <= said.count("the service goes on by itself") <= 3


def test_the_progress_says_when_a_list_that_waits_goes_on() -> None:
    """The rate before the wait says nothing of what is left: it was "0 s left" for minutes."""
    pace, at = ProgressRate(), datetime.now(UTC)
    pace.mark(0.0, 0)
    pace.mark(10.0, 100)
    assert standing(at, pace, 101) == f"waits until {clock(at)}"
    assert standing(None, pace, 101) == "10/s, 0 s left"


def test_a_list_of_an_earlier_service_waits_without_words() -> None:
    line = b'{"list_id": "a", "status": "running", "addresses": 1, "answered": 0, "waits_for": "x"}'
    assert msgspec.json.decode(line, type=list_way.ListState).host_words() == ""
