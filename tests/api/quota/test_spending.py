"""Answers known without a probe are counted in one transaction, with the same results as others."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import trio
from msgspec.structs import replace

from mailprobe.api.quota import charge
from mailprobe.api.quota.plans import PLANS
from mailprobe.bench.world.mail_host import MailHost
from mailprobe.engine import known_answers, open_answers
from mailprobe.storage.contract import StoreUnavailable
from tests.api.service_fixture import BATCH, STREAM, VERIFY, HttpAnswer, RunningService, open_shop

BLOCKED = "ann@yahoo.com"
NOWHERE = "ann@nowhere.test"  # no exchange
KNOWN = {
    "syntax": "no address",
    "disposable": "ann@mailinator.com",
    "no_mx": NOWHERE,
    "smtp_blocked": BLOCKED,
}
LABELS = {VERIFY: "verify", BATCH: "batch", STREAM: "stream"}


def asking(path: str, texts: list[str]) -> dict[str, Any]:
    return {"email": texts[0]} if path == VERIFY else {"emails": texts}


def results(path: str, got: HttpAnswer) -> list[Any]:
    assert got.status == 200, got.octets
    if path == VERIFY:
        return [got.body]
    return got.lines if path == STREAM else got.body["results"]


async def warm(shop: RunningService) -> None:
    """Look up the routes, so that they are cached from now on."""
    shop.world.add("yahoo.com", MailHost())
    other = await shop.new_key("sk_live_")
    await shop.batch(NOWHERE, BLOCKED, key=other)
    shop.store.calls.clear()


async def what_came_of(path: str, texts: list[str], query: str) -> dict[str, Any]:
    async with open_shop(reports_usage=True) as shop:
        await warm(shop)
        before = len(await shop.rows())
        shop.store.calls.clear()
        got = await shop.request("POST", path + query, asking(path, texts))
        calls = set(shop.store.calls)
        await trio.sleep(1)
        ledger = await shop.store.ledger(await shop.caller())
        messages = await shop.store.messages("meter", limit=10)
        return {
            "results": results(path, got),
            "limits": {name: got.headers[name] for name in ("ratelimit", "ratelimit-policy")},
            "rows": (await shop.rows())[before:],
            "ledger": (ledger.month_units, ledger.month_billable, ledger.reserved),
            "letters": [(message.name, message.body) for message in messages],
            "under way": shop.service.capacity.addresses,
            "calls": calls,
        }


TEXTS = {**{name: [text] for name, text in KNOWN.items()}, "all of them": [*KNOWN.values()] * 2}


@pytest.mark.parametrize("query", ["", "?evidence=1"])
@pytest.mark.parametrize("path", LABELS)
@pytest.mark.parametrize("texts", TEXTS.values(), ids=TEXTS)
async def test_known_answers_are_charged_like_a_stream(
    autojump_clock, monkeypatch, texts, path, query
):
    at_idempotency = await what_came_of(path, texts, query)
    monkeypatch.setattr(charge, "known_answers", know_nothing)
    by_the_stream = await what_came_of(path, texts, query)
    assert at_idempotency.pop("calls") == {"caller", "spend"}
    assert by_the_stream.pop("calls") >= {"caller", "reserve", "settle"}
    assert {row.operation for row in at_idempotency["rows"]} == {LABELS[path]}
    rows = [rows_without_instants(each.pop("rows")) for each in (at_idempotency, by_the_stream)]
    assert rows[0] == rows[1]
    assert at_idempotency == by_the_stream


def know_nothing(*arguments: Any, **named: Any) -> None:
    return None


def rows_without_instants(rows: list[Any]) -> list[str]:
    return sorted(repr(replace(row, at=rows[0].at)) for row in rows)


@pytest.mark.parametrize("path", LABELS)
async def test_if_one_answer_is_not_known_all_units_are_reserved(autojump_clock, path):
    async with open_shop() as shop:
        await warm(shop)
        texts = ["known@friendly.test", *KNOWN.values()]
        got = await shop.request("POST", path, asking(path, texts))
        assert results(path, got)
        assert "spend" not in shop.store.calls
        assert "reserve" in shop.store.calls


async def test_an_expired_route_is_not_a_known_answer(autojump_clock):
    async with open_shop() as shop:
        engine = shop.service.quota.engine
        assert known_answers(engine, [NOWHERE]) is None
        await warm(shop)
        assert known_answers(engine, [NOWHERE]) is not None
        await trio.sleep(24 * 3600)
        assert known_answers(engine, [NOWHERE]) is None
        assert known_answers(engine, ["bad", NOWHERE]) is None


@pytest.mark.parametrize("path", LABELS)
async def test_an_answer_that_cannot_be_counted_is_not_sent(autojump_clock, path):
    async with open_shop() as shop:
        shop.store.away = {"spend"}
        got = await shop.request("POST", path, asking(path, ["bad"]))
        assert (got.status, got.error) == (503, "quota_check_failed")
        assert not await shop.rows()
        shop.store.away = False
        assert (await shop.request("POST", path, asking(path, ["bad"]))).status == 200
        assert len(await shop.rows()) == 1


@pytest.mark.parametrize("path", LABELS)
async def test_beyond_the_limit_nothing_is_counted_and_the_refusal_is_logged(autojump_clock, path):
    plans = {**PLANS, "builder": replace(PLANS["builder"], rate_limit_per_min=3)}
    async with open_shop(plans=plans) as shop:
        got = [await shop.request("POST", path, asking(path, ["bad"])) for _ in range(5)]
        assert [each.status for each in got] == [200, 200, 200, 429, 429]
        rows = await shop.rows()
        assert sorted((row.failed_check, row.units) for row in rows) == [
            *[("rate_limit_exceeded", 0)] * 2,
            *[("syntax", 1)] * 3,
        ]
        assert {row.operation for row in rows} == {LABELS[path]}


async def test_a_repeated_request_is_counted_once(autojump_clock):
    async with open_shop() as shop:
        first, again = [await shop.verify("bad", headers={"idempotency-key": "a"}) for _ in "ab"]
        assert again.octets == first.octets
        assert again.headers["idempotency-replayed"] == "true"
        assert len(await shop.rows()) == 1


async def test_a_client_that_hangs_up_pays_for_at_most_one(autojump_clock):
    counted = []
    async with open_shop() as shop:
        for steps in range(40):
            await shop.verify("ann@mailinator.com", hang_up_steps=steps)
            await trio.sleep(1)
            counted.append(len(await shop.rows()))
        each = [after - before for before, after in pairwise([0, *counted])]
        assert set(each) <= {0, 1}
        assert (await shop.store.ledger(await shop.caller())).reserved == 0


async def test_the_watch_sees_each_and_a_full_house_turns_nobody_away(autojump_clock):
    seen: list[bool] = []
    watch: Callable[..., None] = lambda caller, capped: seen.append(capped)  # noqa: E731
    async with open_shop(addresses_max=1, watch=watch) as shop, trio.open_nursery() as nursery:
        nursery.start_soon(shop.verify, "known@slow.test")
        await trio.sleep(0.1)
        assert (await shop.verify("bad")).status == 200  # a known answer needs no capacity
        assert seen == [False]


async def test_a_store_that_dies_in_the_midst_tells_nobody_anything(autojump_clock, monkeypatch):
    async with open_shop() as shop:

        async def spend(*arguments: Any, **named: Any) -> None:
            await trio.sleep(0.8)
            raise StoreUnavailable("nobody knows")

        monkeypatch.setattr(shop.store.store, "spend", spend)
        got = await shop.stream("bad")
        assert (got.status, got.error) == (503, "quota_check_failed")
        assert b"syntax" not in got.octets


# -- what the observer receives ---------------------------------------------------------------


class Hearing:
    """An observer that records its notifications."""

    def __init__(self) -> None:
        self.received: list[Any] = []

    def __getattr__(self, name: str) -> Callable[..., None]:
        def receive(*words: Any, **named: Any) -> None:
            if name not in ("told", "recalled"):
                words = ()
            self.received.append((name, *words))

        return receive


async def test_the_observer_hears_the_same(autojump_clock):
    received = []
    for knows in (True, False):
        async with open_shop() as shop:
            await warm(shop)
            hearing = Hearing()
            engine = replace(shop.service.quota.engine, observer=hearing)
            if knows:
                known = known_answers(engine, [*KNOWN.values()])
                assert known is not None
                assert not hearing.received
                known.notify(hearing)
            else:
                async with open_answers(engine, [*KNOWN.values()], account="me") as answers:
                    assert len([answer async for answer in answers]) == len(KNOWN)
            received.append(sorted(map(repr, hearing.received)))
    assert received[0] == received[1]
