"""An upload with an Idempotency-Key is stored once, whatever is repeated, and the bounds of uploads."""

from datetime import timedelta
from typing import Any

import pytest
import trio.testing
from msgspec.structs import replace

from mailprobe.api.lists.upload import ListReader
from mailprobe.api.quota import list_limits
from mailprobe.api.quota.list_limits import BOUNDS
from mailprobe.api.quota.plans import PLANS
from mailprobe.api.rest.idempotency import UPLOAD_LEASE_S
from mailprobe.storage.contract import OutcomeUnknown
from mailprobe.storage.list_records import ListChunk
from tests.api.lists.test_lists import LISTS, PEOPLE, ended, many, open_list_shop, rows_of, send
from tests.api.service_fixture import LazyApp, RunningService

KEY = {"idempotency-key": "march"}


async def listed(shop: RunningService, **more: Any) -> list[Any]:
    found: list[Any] = (await shop.request("GET", LISTS, **more)).body["lists"]
    return found


async def test_three_repeats_of_a_list_make_one(autojump_clock: trio.testing.MockClock) -> None:
    async with open_list_shop() as shop:
        first = await send(shop, headers=KEY)
        assert first.status == 202
        assert "idempotency-replayed" not in first.headers
        await ended(shop, first.body["list_id"])
        for _ in range(3):
            again = await send(shop, headers=KEY)
            assert (again.status, again.octets) == (202, first.octets)
            assert again.headers["idempotency-replayed"] == "true"
        assert len(await listed(shop)) == 1
        assert (await shop.store.ledger(await shop.caller())).month_units == 2


async def test_another_list_under_the_same_key_is_refused(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_list_shop() as shop:
        assert (await send(shop, headers=KEY)).status == 202
        for text, query in ((many(1), ""), (PEOPLE, "?name=b")):
            got = await send(shop, text, query, headers=KEY)
            assert (got.status, got.error) == (422, "idempotency_key_reused")
        tests = await send(shop, headers=KEY, key=await shop.new_key("sk_test_"))
        assert (tests.status, "idempotency-replayed" in tests.headers) == (202, False)
        assert len(await listed(shop)) == 1


async def test_of_lists_sent_at_once_under_one_key_one_is_stored(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_list_shop() as shop:
        answers: list[Any] = []

        async def one() -> None:
            answers.append(await send(shop, many(300), headers=KEY))

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(one)
        made = {each.octets for each in answers if each.status == 202}
        assert len(made) == 1
        running = [each.error for each in answers if each.status != 202]
        assert set(running) <= {"idempotency_in_progress"}
        assert len(await listed(shop)) == 1


async def test_a_list_that_takes_longer_than_its_lease_is_stored_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The repeat after the lease has the key; the first is given up, whatever it has read."""
    read, reads, goes_on = ListReader.next_chunks, trio.Event(), trio.Event()

    async def next_chunks(reader: ListReader) -> list[ListChunk]:
        if not reads.is_set():
            reads.set()
            await goes_on.wait()
        return await read(reader)

    monkeypatch.setattr(ListReader, "next_chunks", next_chunks)
    first: list[Any] = []
    async with open_list_shop() as shop:

        async def send_first() -> None:
            first.append(await send(shop, headers=KEY))

        async with trio.open_nursery() as nursery:
            began_at = shop.clock()
            nursery.start_soon(send_first)
            await reads.wait()
            shop.clock.set(began_at + timedelta(seconds=UPLOAD_LEASE_S - 10))
            assert (await send(shop, headers=KEY)).status == 409
            shop.clock.set(began_at + timedelta(seconds=UPLOAD_LEASE_S + 10))
            made = await send(shop, headers=KEY)
            goes_on.set()
        assert (first[0].status, made.status) == (409, 202)
        await shop.service.background_writes.drain(10)
        assert [each["list_id"] for each in await listed(shop)] == [made.body["list_id"]]
        again = await send(shop, headers=KEY)
        assert (again.status, again.octets) == (202, made.octets)


@pytest.mark.parametrize("is_repeated", [True, False])
async def test_a_list_whose_answer_from_the_store_was_lost_is_there_for_a_repeat_alone(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch, is_repeated: bool
) -> None:
    """The store has stored it, and was too late to say so. Without a key, a repeat is another list."""
    async with open_list_shop() as shop:
        change = shop.store.store.change_list

        async def change_unseen(*arguments: Any, **named: Any) -> None:
            await change(*arguments, **named)
            raise OutcomeUnknown

        headers = KEY if is_repeated else {}
        with monkeypatch.context() as late:
            late.setattr(shop.store.store, "change_list", change_unseen)
            assert (await send(shop, query="?start=0", headers=headers)).status == 503
        await shop.service.background_writes.drain(10)
        there = [each["list_id"] for each in await listed(shop)]
        assert len(there) == int(is_repeated)
        again = await send(shop, query="?start=0", headers=headers)
        assert again.status == 202
        assert ("idempotency-replayed" in again.headers) == is_repeated
        assert [each["list_id"] for each in await listed(shop)] == [again.body["list_id"]]
        if is_repeated:
            assert there == [again.body["list_id"]]
            assert len(await rows_of(shop, there[0])) == 4


async def test_a_list_that_may_have_begun_leaves_nothing(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would be one of the account's few lists under way, for a quarter of an hour."""
    async with open_list_shop() as shop:
        create = shop.store.store.create_list

        async def create_unseen(*arguments: Any, **named: Any) -> None:
            await create(*arguments, **named)
            raise OutcomeUnknown

        with monkeypatch.context() as late:
            late.setattr(shop.store.store, "create_list", create_unseen)
            assert (await send(shop, headers=KEY)).status == 503
        await shop.service.background_writes.drain(10)
        assert await listed(shop) == []
        assert (await send(shop, headers=KEY)).status == 202


async def test_a_list_that_is_refused_leaves_its_key_unused(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_list_shop() as shop:
        assert (await send(shop, "name\nAnn\n", headers=KEY)).status == 400
        assert (await send(shop, headers=KEY)).status == 202


async def test_lists_are_sent_at_a_rate(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One a day: virtual time passes while lists are read, and a minute would be over."""
    monkeypatch.setattr("mailprobe.storage.list_jobs.lists.WINDOW", timedelta(days=1))
    monkeypatch.setattr(list_limits, "BOUNDS", replace(BOUNDS, per_minute_max=1))
    async with open_list_shop() as shop:
        assert (await send(shop)).status == 202
        got = await send(shop)
        assert (got.status, got.error) == (429, "rate_limit_exceeded")
        assert got.body["limit"] == 1
        assert 80_000 < int(got.headers["retry-after"]) <= 86_400
        assert len(await listed(shop)) == 1


async def test_the_size_of_all_lists_is_limited_by_the_tier(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_list_shop() as shop:
        plans = {**PLANS, "scale": replace(PLANS["scale"], lists_mib=1)}
        shop.service = replace(shop.service, plans=plans)
        shop.app = LazyApp(shop.service)
        wide = "email,note\n" + "".join(f"a{n}@friendly.test,{'x' * 1000}\n" for n in range(600))
        first = await send(shop, wide, "?start=0")
        assert first.status == 202
        got = await send(shop, wide)
        assert (got.status, got.error) == (429, "list_limit_reached")
        assert "1 MiB" in got.body["message"]
        await trio.sleep(1)
        assert len(await listed(shop)) == 1
        await shop.request("DELETE", f"{LISTS}/{first.body['list_id']}")
        assert (await send(shop, wide)).status == 202


async def test_a_list_of_a_revoked_key_says_why_it_pauses(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_list_shop() as shop:
        key = await shop.new_key("sk_live_")
        list_id = (await send(shop, many(2000), key=key)).body["list_id"]
        await shop.store.revoke_key(None, (await shop.caller(key)).key.id)
        paused = await ended(shop, list_id)
        assert (paused["status"], paused["cause"]) == ("paused", "key_revoked")
        await trio.sleep(60)
        before = (await shop.request("GET", f"{LISTS}/{list_id}")).body["answered"]
        await trio.sleep(60)
        assert (await shop.request("GET", f"{LISTS}/{list_id}")).body["answered"] == before
        await shop.request("POST", f"{LISTS}/{list_id}/resume")
        assert (await ended(shop, list_id))["status"] == "done"
