"""A list waits for what its mail hosts take, up to its patience: nothing is lost or counted twice."""

import json
import random
import re
from collections import Counter
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
import trio
import trio.testing

from mailprobe.api.lists.worker import LEASE_S, ListQueue, open_lists
from mailprobe.api.operations.table import description
from mailprobe.api.quota.set_aside import (
    HOST_WAIT_S_MAX,
    TURN_CHUNKS,
    TURN_S,
    Patience,
    ReturnTurns,
)
from mailprobe.bench.world.mail_host import MailHost
from mailprobe.engine import Answer
from mailprobe.engine.reasons import VerdictCause
from mailprobe.engine.verdict import Reason
from mailprobe.storage.list_records import PATIENCE_S
from tests.api.fake_source import verdict_of
from tests.api.lists.test_lists import (
    LISTS,
    causes_of,
    ended,
    many,
    open_list_shop,
    rows_of,
    send,
    working_lists,
)
from tests.api.pages.test_dashboard import signed_in
from tests.api.service_fixture import PLACES, KilledProcess, RunningService, open_shop
from tests.seeds import stride

LIVING, GONE = 10, 40
DAY_S = 24 * 3600
HOUR_S = 3600.0
NOON = datetime(2026, 7, 1, 12, tzinfo=UTC)


def add_host(shop: RunningService, domain: str = "hoster.test") -> MailHost:
    host = MailHost(mailboxes=frozenset(f"ann{number}" for number in range(LIVING)))
    shop.world.add(domain, host)
    return host


def former_staff(domain: str = "hoster.test") -> str:
    """A list of which most addresses are refused, so that its host takes it over some time."""
    names = [f"ann{number}" for number in range(LIVING)] + [f"gone{n}" for n in range(GONE)]
    return "email\n" + "".join(f"{name}@{domain}\n" for name in names)


async def new_account(shop: RunningService) -> str:
    return str((await shop.store.create_account("eve@shop.test", "scale")).id)


async def shown(shop: RunningService, list_id: str, **more: Any) -> Any:
    return (await shop.request("GET", f"{LISTS}/{list_id}", **more)).body


async def done(shop: RunningService, list_id: str, *, within_s: float) -> Any:
    """The list once it has ended; it is looked at rarely, as it may take hours."""
    until = trio.current_time() + within_s
    while (found := await shown(shop, list_id))["status"] in ("running", "reading"):
        assert trio.current_time() < until, found
        await trio.sleep(60)
    return found


async def check_whole(shop: RunningService, list_id: str) -> Counter[str]:
    """Every address has one result, and is counted once; return the reasons."""
    rows = await rows_of(shop, list_id)
    assert len(rows) == LIVING + GONE
    assert len(await shop.rows()) == LIVING + GONE
    ledger = await shop.store.ledger(await shop.caller())
    assert (ledger.month_units, ledger.reserved) == (LIVING + GONE, 0)
    assert (await shop.store.list_waits([list_id]))[list_id].addresses == 0
    return Counter(row["reason"] for row in rows)


async def test_an_address_that_its_host_does_not_take_waits_and_is_counted_once(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_list_shop() as shop:
        add_host(shop)
        list_id = (await send(shop, former_staff())).body["list_id"]
        await trio.sleep(20)
        waits = await shown(shop, list_id)
        assert (waits["status"], waits["stage"], causes_of(waits)) == (
            "running", "waiting", ["hosts"],
        )  # fmt: skip
        [cause] = waits["waits_for"]
        [host] = cause["hosts"]
        assert host["host"] == "mx.hoster.test"
        assert host["refusals_in_10_min"] >= 4
        assert host["addresses"] == cause["addresses"] == LIVING + GONE - waits["answered"] > 0
        assert cause["until"] == waits["waits_until"] <= host["done_about"]
        assert waits["left_s"] > 0
        assert len(await shop.rows()) == waits["answered"]
        assert (await shop.store.ledger(await shop.caller())).reserved == 0
        listed = (await shop.request("GET", LISTS)).body["lists"]
        assert causes_of(listed[0]) == ["hosts"]
        body = await done(shop, list_id, within_s=4 * 3600)
        assert (body["status"], body["stage"], body["waits_for"]) == ("done", None, [])
        reasons = await check_whole(shop, list_id)
        assert reasons["no_mailbox"] == GONE
        assert reasons["host_budget"] == 0


async def test_a_list_without_patience_is_done_at_once_as_requests_are(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_list_shop() as shop:
        shop.world.add("hoster.test", MailHost(mailboxes=frozenset()))  # never shows that it judges
        made = await send(shop, former_staff(), "?patience_s=0")
        assert made.body["patience_s"] == 0
        began = trio.current_time()
        await done(shop, made.body["list_id"], within_s=120)
        assert trio.current_time() - began <= 61  # it is looked at once a minute
        await check_whole(shop, made.body["list_id"])


async def test_an_address_that_waits_when_the_patience_ends_has_its_result_then(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_list_shop() as shop:
        shop.world.add("hoster.test", MailHost(mailboxes=frozenset()))
        # Beside another account the wrong addresses of one raise no host's tolerance.
        other = await shop.new_key("sk_live_", await new_account(shop))
        await shop.batch(*(f"bob{number}@hoster.test" for number in range(3)), key=other)
        query = "?patience_s=900"
        list_id = (await send(shop, former_staff(), query)).body["list_id"]
        await trio.sleep(600)
        assert (await shown(shop, list_id))["status"] == "running"
        began = trio.current_time()
        await done(shop, list_id, within_s=1_800)
        assert trio.current_time() - began < 600
        reasons = await check_whole(shop, list_id)
        assert reasons["host_budget"] > 0


async def test_a_list_that_was_resumed_has_its_whole_patience_again(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Paused for longer than it, a list would else have none left."""
    async with open_list_shop() as shop:
        add_host(shop)
        list_id = (await send(shop, former_staff())).body["list_id"]
        await trio.sleep(20)
        assert (await shop.request("POST", f"{LISTS}/{list_id}/pause")).status == 200
        paused = await shown(shop, list_id)
        assert (paused["stage"], paused["waits_for"]) == (None, [])
        await trio.sleep(PATIENCE_S + 600)
        await shop.request("POST", f"{LISTS}/{list_id}/resume")
        await done(shop, list_id, within_s=4 * 3600)
        assert (await check_whole(shop, list_id))["host_budget"] == 0


@pytest.mark.parametrize("moment", range(7, 63, stride(4)))
async def test_kill_9_of_a_process_with_a_list_that_waits_counts_nothing_twice(
    moment: int, autojump_clock: trio.testing.MockClock
) -> None:
    """It dies before or after one of its calls of the store; another process goes on."""
    async with open_shop("scale") as shop, trio.open_nursery() as the_dead:
        add_host(shop)
        quota = shop.service.quota
        async with working_lists(shop) as queue:
            queue.stop()
            list_id = (await send(shop, former_staff())).body["list_id"]
        killed_process = KilledProcess(moment)

        async def process() -> None:
            async with open_lists(quota, rng=random.Random(1), wake_jobs=lambda: None):
                await trio.sleep_forever()

        the_dead.start_soon(killed_process.run, process)
        with trio.fail_after(3600):
            await killed_process.killed.wait()
        await trio.sleep(LEASE_S)
        async with working_lists(shop):
            await done(shop, list_id, within_s=8 * 3600)
        reasons = await check_whole(shop, list_id)
        assert reasons["no_mailbox"] == GONE
        the_dead.cancel_scope.cancel()


async def test_an_account_that_waits_takes_nothing_from_another(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_list_shop() as shop:
        add_host(shop)
        waiting = [(await send(shop, former_staff())).body["list_id"] for _ in range(5)]
        await trio.sleep(30)
        states = [await shown(shop, list_id) for list_id in waiting]
        assert {each["stage"] for each in states} == {"waiting"}
        lists, capacity = shop.service.lists, shop.service.quota.list_capacity
        assert isinstance(lists, ListQueue)
        assert lists.worker.held() == []
        free = capacity.free
        other = await shop.new_key("sk_live_", await new_account(shop))
        made = await send(shop, many(300), key=other)
        began = trio.current_time()
        await ended(shop, made.body["list_id"], key=other)
        assert trio.current_time() - began < 30
        assert capacity.free == free == capacity.addresses_max


def test_many_chunks_of_an_account_come_back_in_turns() -> None:
    """Ten thousand cost the store twenty claims a second; a second account waits for none."""
    turns, now = ReturnTurns(), datetime(2026, 3, 14, 9, 26, tzinfo=UTC)
    soon = now + timedelta(seconds=60)
    due = [turns.reserve("ann", soon, now) for _ in range(10_000)]
    assert due[:TURN_CHUNKS] == [soon] * TURN_CHUNKS
    most = Counter(due).most_common()
    assert {count for _, count in most[1:]} == {TURN_CHUNKS}
    assert max(due) <= now + timedelta(seconds=HOST_WAIT_S_MAX)
    assert turns.reserve("bob", soon, now) == soon
    later = now + timedelta(seconds=HOST_WAIT_S_MAX + TURN_S)
    assert turns.reserve("ann", later, later) == later


async def test_the_page_of_a_list_says_at_which_hosts_addresses_wait(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_list_shop() as shop:
        add_host(shop)
        visitor = await signed_in(shop)
        list_id = (await send(shop, former_staff())).body["list_id"]
        await trio.sleep(20)
        got = await visitor.get(f"/lists/{list_id}")
        text = re.sub("<[^>]+>", "", got.octets.decode())
        assert re.search(
            r"\d+ mx\.hoster\.test takes \d+ refusals in 10 minutes\.done about \d\d:\d\d UTC",
            text,
        ), text
        assert re.search(r"Waiting until \d\d:\d\d UTC", text)
        assert "Waiting" in (await visitor.get("/lists")).octets.decode()


@pytest.mark.parametrize("patience", ["-1", "x", "86401", "9" * 30, "1.5"])
async def test_a_patience_that_is_none_is_refused(
    patience: str, autojump_clock: trio.testing.MockClock
) -> None:
    async with open_list_shop() as shop:
        got = await send(shop, query=f"?patience_s={patience}")
        assert (got.status, "patience_s" in got.body["message"]) == (400, True)


async def test_a_list_has_the_patience_that_is_set_unless_it_names_one(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_list_shop() as shop:
        for query, patience_s in (
            ("", 4 * 3600),
            ("?patience_s=60", 60),
            ("?patience_s=", 4 * 3600),
            ("?patience_s=0", 0),
            ("?patience_s=86400", 86_400),
        ):
            assert (await send(shop, query=query)).body["patience_s"] == patience_s


def test_the_description_names_the_bounds_of_a_patience() -> None:
    parameters = json.loads(description(PLACES))["paths"][LISTS]["post"]["parameters"]
    [schema] = [each["schema"] for each in parameters if each["name"] == "patience_s"]
    assert schema == {"type": "integer", "minimum": 0, "maximum": DAY_S}


# How long an address waits for its mail host.

PATIENCE = Patience(NOON, NOON + timedelta(hours=4))


def wait_s(reason: Reason, retry_s: float | None, after_s: float) -> float | None:
    """For how long an answer that comes so long after the chunk's first wait lets it wait."""
    answer = Answer(0, verdict_of("known@shop.test"), None, VerdictCause(reason, "host"), retry_s)
    return PATIENCE.wait_s(answer, NOON + timedelta(seconds=after_s))


@pytest.mark.parametrize("after_s", [0.0, 600.0, 3 * HOUR_S])
def test_an_address_that_was_not_sent_waits_as_long_as_its_host_says(after_s: float) -> None:
    assert wait_s("host_budget", 60.0, after_s) == 60.0


def test_an_address_that_was_sent_waits_longer_each_time() -> None:
    asked_at, at_s = [], 0.0
    while (wait := wait_s("unconfirmed", 60.0, at_s)) is not None:
        asked_at.append(at_s)
        at_s += wait
    assert asked_at[:4] == [0.0, 60.0, 120.0, 180.0]
    waits = [later - before for before, later in pairwise(asked_at)]
    assert max(waits) == 900.0
    assert 20 <= len(asked_at) <= 40


def test_its_last_wait_leaves_some_patience() -> None:
    """Without any the answer would be a request's, which is less proven."""
    assert wait_s("untested", 60.0, 4 * HOUR_S - 600.0) == 300.0


@pytest.mark.parametrize("reason", ["host_budget", "unconfirmed"])
def test_a_host_that_asks_for_more_than_what_is_left_is_not_waited_for(reason: Reason) -> None:
    assert wait_s(reason, HOUR_S + 1, 3 * HOUR_S) is None
    assert wait_s(reason, HOUR_S, 3 * HOUR_S) == HOUR_S


def test_an_answer_that_time_does_not_cure_does_not_wait() -> None:
    assert wait_s("no_mailbox", None, 0.0) is None
