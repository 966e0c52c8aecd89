"""While the operator pauses a domain, an operator or an account, lists wait, uncounted."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
import trio
from msgspec.structs import replace

from mailprobe.api.quota.pauses import READ_EVERY_S, START_S, FleetPauses
from mailprobe.api.quota.plans import PLANS
from mailprobe.api.quota.set_aside import PAUSED_S
from mailprobe.bench.world.mail_host import MailHost
from mailprobe.engine.pauses import CurrentPauses
from tests.api.lists.test_lists import LISTS, causes_of, ended, many, open_list_shop, rows_of, send
from tests.api.service_fixture import RunningService


@asynccontextmanager
async def open_paused_shop(*paused: tuple[Any, str], **more: Any) -> AsyncIterator[RunningService]:
    """A service with lists that follows the pauses of its store, which has these."""
    async with (
        open_list_shop(pauses=FleetPauses("a"), **more) as shop,
        trio.open_nursery() as nursery,
    ):
        shop.world.add("google.test", MailHost(), mx="aspmx.l.google.com")
        for kind, name in paused:
            await shop.store.pause(kind, name or shop.account.id)
        quota, lists = shop.service.quota, shop.service.lists
        assert lists

        async def follow() -> None:
            await quota.pauses.watch(
                shop.store, quota.engine.pauses, now=shop.clock, wake_lists=lists.wake
            )

        nursery.start_soon(follow)
        await trio.sleep(2 * READ_EVERY_S)
        yield shop
        nursery.cancel_scope.cancel()


async def state_of(shop: RunningService, list_id: str) -> Any:
    return (await shop.request("GET", f"{LISTS}/{list_id}")).body


@pytest.mark.parametrize(
    ("kind", "name", "held"),
    [
        ("domain", "friendly.test", 50),
        ("operator", "google", 50),
        ("account", "", 100),
    ],
)
async def test_paused_addresses_of_a_list_wait_uncounted_and_then_go_on(
    autojump_clock: object, kind: Any, name: str, held: int
) -> None:
    async with open_paused_shop((kind, name)) as shop:
        domain = "google.test" if kind == "operator" else "friendly.test"
        text = many(50, domain) + many(50, "slow.test").removeprefix("email\n")
        list_id = (await send(shop, text)).body["list_id"]
        await trio.sleep(1.5 * PAUSED_S)
        waits = await state_of(shop, list_id)
        assert (waits["answered"], waits["status"]) == (100 - held, "running")
        assert (waits["stage"], causes_of(waits)) == ("waiting", ["paused"])
        assert len(await shop.rows()) == 100 - held
        caller = await shop.caller()
        ledger = await shop.store.ledger(caller)
        assert (ledger.reserved, ledger.month_units) == (0, 100 - held)
        assert await shop.store.unpause(kind, name or shop.account.id)
        body = await ended(shop, list_id, within_s=2 * PAUSED_S)
        assert (body["status"], body["answered"]) == ("done", 100)
        assert len(await shop.rows()) == 100


async def test_a_pause_holds_a_running_list_within_seconds_and_no_answer_is_made_up(
    autojump_clock: object,
) -> None:
    """The host answers some 20 a second, so most are in the backlog or not claimed."""
    async with open_paused_shop() as shop:
        host = MailHost(reply_s=0.2)
        address = shop.world.add("big.test", host)
        list_id = (await send(shop, many(1_000, "big.test"))).body["list_id"]
        await trio.sleep(4)
        await shop.store.pause("domain", "big.test")
        await trio.sleep(2 * READ_EVERY_S)
        dialled, before = len(shop.world.dialled), await state_of(shop, list_id)
        await trio.sleep(1.5 * PAUSED_S)
        waits = await state_of(shop, list_id)
        assert waits["answered"] - before["answered"] < 50
        assert all(to != address for to, _ in list(shop.world.dialled)[dialled:])
        assert len(await shop.rows()) == waits["answered"] < 1_000
        assert (await shop.store.ledger(await shop.caller())).reserved == 0
        await shop.store.unpause("domain", "big.test")
        body = await ended(shop, list_id, within_s=3600)
        assert (body["answered"], len(await shop.rows())) == (1_000, 1_000)
        rows = await rows_of(shop, list_id)
        assert len(rows) == 1_000
        assert "paused" not in {row["reason"] for row in rows}


async def test_a_pause_holds_a_list_that_waits_for_its_keys_minute(autojump_clock: object) -> None:
    """Its chunk is claimed for as long as the limit lets it wait."""
    plans = {**PLANS, "scale": replace(PLANS["scale"], rate_limit_per_min=10)}
    async with open_paused_shop(plans=plans) as shop:
        list_id = (await send(shop, many(60))).body["list_id"]
        await trio.sleep(90)
        await shop.store.pause("account", shop.account.id)
        await trio.sleep(2 * READ_EVERY_S)
        before = (await state_of(shop, list_id))["answered"]
        assert before < 60
        await trio.sleep(600)
        waits = await state_of(shop, list_id)
        assert (waits["answered"], causes_of(waits)) == (before, ["paused"])
        assert (await shop.store.ledger(await shop.caller())).reserved == 0
        await shop.store.unpause("account", shop.account.id)
        body = await ended(shop, list_id, within_s=1_200)
        assert (body["status"], len(await shop.rows())) == ("done", 60)


async def test_requests_for_what_is_paused_are_answered_so_and_billed(
    autojump_clock: object,
) -> None:
    """A paused account's requests go on."""
    async with open_paused_shop(("domain", "friendly.test"), ("account", "")) as shop:
        paused = await shop.verify("ann@friendly.test")
        assert (paused.body["status"], paused.body["confidence"]) == ("unknown", 0.5)
        assert (paused.body["failed_check"], paused.body["mx_found"]) == (None, True)
        asked = await shop.batch("known@slow.test", "ann@friendly.test")
        statuses = [each["status"] for each in asked.body["results"]]
        assert statuses == ["deliverable", "unknown"]
        assert [row.billable for row in await shop.rows()] == [True] * 3
        assert not any(to == "friendly.test" for to, _ in shop.world.dialled)


async def test_while_the_store_is_away_all_stays_as_it_was(autojump_clock: object) -> None:
    async with open_paused_shop(("domain", "friendly.test")) as shop:
        pauses = shop.service.quota.engine.pauses
        shop.store.away = {"pauses", "note_machine"}
        await trio.sleep(READ_EVERY_S)
        await shop.store.unpause("domain", "friendly.test")
        await trio.sleep(60)
        assert pauses.value.domains == {"friendly.test"}
        shop.store.away = False
        await trio.sleep(2 * READ_EVERY_S)
        assert not pauses.value


async def test_a_drained_machine_ends_what_it_has_and_claims_no_more(
    autojump_clock: object,
) -> None:
    async with open_paused_shop() as shop:
        list_id = (await send(shop, many(1_000, "slow.test"))).body["list_id"]
        assert (await shop.request("GET", "/health")).body.keys() == {"ok", "ts"}
        await shop.store.pause("machine", "another")
        await shop.store.pause("machine", "a")
        await trio.sleep(2 * READ_EVERY_S)
        ready = await shop.request("GET", "/health?ready=1")
        assert (ready.status, ready.body["drained"]) == (200, True)
        await trio.sleep(30)
        answered = (await state_of(shop, list_id))["answered"]
        assert answered in range(100, 1_000, 100)  # whole chunks
        await trio.sleep(30)
        assert (await state_of(shop, list_id))["answered"] == answered
        assert shop.service.load().drained
        assert [each.name for each in await shop.store.machines()] == ["a"]
        await shop.store.unpause("machine", "a")
        await ended(shop, list_id, within_s=600)


async def test_a_pass_waits_for_the_end_of_a_pause(autojump_clock: object) -> None:
    """Else the passes would be spent while nobody is asked."""
    async with open_paused_shop() as shop:
        shop.world.add("grey.test", MailHost(mailboxes=frozenset({"ann"}), greylist_s=200))
        list_id = (await send(shop, "email\nann@grey.test\n", "?recheck=1")).body["list_id"]
        await trio.sleep(30)
        await shop.store.pause("domain", "grey.test")
        await trio.sleep(3600)  # both passes would be over
        assert (await state_of(shop, list_id))["status"] == "running"
        await shop.store.unpause("domain", "grey.test")
        assert (await ended(shop, list_id, within_s=1_000))["status"] == "done"
        [row] = await rows_of(shop, list_id)
        assert row["status"] in ("deliverable", "catch_all")


async def test_a_start_knows_the_pauses_before_there_is_work(autojump_clock: object) -> None:
    """A drained machine that is restarted takes no list."""
    async with open_list_shop() as shop:
        await shop.store.pause("machine", "a")
        await shop.store.pause("domain", "friendly.test")
        pauses, engine_pauses = FleetPauses("a"), CurrentPauses(lambda _: "other")
        await pauses.start(shop.store, engine_pauses)
        assert pauses.drained
        assert engine_pauses.value.has_domain("friendly.test")

        class Hanging:
            async def pauses(self) -> Any:
                await trio.sleep_forever()

        began, hanging = trio.current_time(), cast(Any, Hanging())
        await FleetPauses("a").start(hanging, engine_pauses)
        assert trio.current_time() - began <= START_S
