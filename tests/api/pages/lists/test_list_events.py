"""The events of a running list: shared by its watchers, limited, and ended with the sign-in."""

import re
from itertools import pairwise

import pytest
import trio
import trio.testing

from mailprobe.api.admission.connections import LiveConnections
from mailprobe.api.pages.dashboard.work.list_events import (
    COMMENT,
    COMMENT_S,
    END,
    EVERY_S,
    SIGN_IN_EVERY_S,
    ListEvents,
    ListLooks,
    Look,
    event_of,
)
from mailprobe.api.serve import create_app
from tests.api.lists.test_lists import ended, open_list_shop, send
from tests.api.pages.people.visitor import open_people_shop
from tests.api.pages.test_dashboard import HOME, PageClient, signed_in
from tests.api.service_fixture import HttpAnswer

Clock = trio.testing.MockClock
SLOW = "email\nknown@friendly.test\n" + "".join(f"a{n}@nowhere.invalid\n" for n in range(100))


async def watch(visitor: PageClient, list_id: str, got: list[HttpAnswer]) -> None:
    got.append(await visitor.get(f"/lists/{list_id}/events"))


def events_of(answer: HttpAnswer) -> list[bytes]:
    return [octets for _, octets in answer.chunks]


def answered_in(event: bytes) -> int:
    found = re.search(rb'data-answered="(\d+)"', event)
    assert found
    return int(found[1])


async def test_a_running_list_sends_its_progress_until_its_end(autojump_clock: Clock) -> None:
    async with open_list_shop("free") as shop:  # whose minute lets it wait
        visitor = await signed_in(shop)
        list_id = (await send(shop, SLOW)).body["list_id"]
        got = await visitor.get(f"/lists/{list_id}/events")
        assert got.status == 200
        assert got.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert got.headers["x-accel-buffering"] == "no"
        progress = [event for event in events_of(got) if event.startswith(b"event: progress\n")]
        counts = [answered_in(event) for event in progress]
        assert counts == sorted(counts)
        assert len(set(counts)) > 3
        assert b"The limit of a minute is used up." in b"".join(progress)
        assert b'data-status="done"' in progress[-1]
        assert counts[-1] == 101
        assert COMMENT in events_of(got)
        for event in events_of(got):
            assert event.endswith(b"\n\n")
            lines = event[:-2].split(b"\n")
            assert all(line.startswith((b"event: ", b"data:", b":")) for line in lines)


async def test_a_list_that_has_ended_is_said_once(autojump_clock: Clock) -> None:
    async with open_list_shop() as shop:
        visitor, list_id = await signed_in(shop), (await send(shop)).body["list_id"]
        await ended(shop, list_id)
        got = await visitor.get(f"/lists/{list_id}/events")
        assert len(got.chunks) == 1


async def test_watchers_of_a_process_share_each_look(idle_clock: Clock) -> None:
    """A look has a thread, whose time is not the clock's."""
    async with open_list_shop("free") as shop:
        visitor, list_id = await signed_in(shop), (await send(shop, SLOW)).body["list_id"]

        await trio.sleep(2)
        before = shop.store.calls.count("list_marks")
        got: list[HttpAnswer] = []
        async with trio.open_nursery() as nursery:
            for _ in range(15):
                nursery.start_soon(watch, visitor, list_id, got)
            await trio.sleep(20)
            nursery.cancel_scope.cancel()
        looks = shop.store.calls.count("list_marks") - before
        assert 0 < looks <= 20 / EVERY_S + 1


@pytest.mark.parametrize("way", ["sign out", "revoke"])
async def test_the_events_end_with_the_sign_in(way: str, autojump_clock: Clock) -> None:
    async with open_list_shop("free") as shop:
        visitor, list_id = await signed_in(shop), (await send(shop, SLOW)).body["list_id"]
        got: list[HttpAnswer] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch, visitor, list_id, got)
            await trio.sleep(3)
            assert got == []
            if way == "sign out":
                await visitor.get("")
                await visitor.post("/sign-out")
            else:
                key = await shop.caller(shop.provisioning)
                await shop.store.revoke_key(shop.account.id, key.key.id)
            nursery.cancel_scope.deadline = trio.current_time() + 10 * SIGN_IN_EVERY_S
        assert events_of(got[0])[-1] == END
        again = await visitor.get(f"/lists/{list_id}/events")
        assert again.status == 303


async def test_the_events_of_a_viewer_end_with_the_removal_of_the_person(
    autojump_clock: Clock,
) -> None:
    async with open_people_shop(open_list_shop, tier="free") as people:
        shop = people.shop
        bob = await people.active("viewer", "bob@shop.test")
        visitor = await people.signed_in("bob@shop.test")
        list_id = (await send(shop, SLOW)).body["list_id"]
        got: list[HttpAnswer] = []

        async def watch_as_bob() -> None:
            got.append(await visitor.get(f"lists/{list_id}/events"))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch_as_bob)
            await trio.sleep(3)
            assert got == []
            await shop.store.remove_person(shop.account.id, bob.id)
            nursery.cancel_scope.deadline = trio.current_time() + 10 * SIGN_IN_EVERY_S
        assert events_of(got[0])[-1] == END


async def test_a_list_that_is_deleted_ends_its_events(autojump_clock: Clock) -> None:
    async with open_list_shop("free") as shop:
        visitor, list_id = await signed_in(shop), (await send(shop, SLOW)).body["list_id"]
        got: list[HttpAnswer] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch, visitor, list_id, got)
            await trio.sleep(3)
            await shop.store.delete_list(list_id)
            await trio.sleep(2 * EVERY_S)
        assert events_of(got[0])[-1] == END or b'data-status="cancelled"' in events_of(got[0])[-1]


async def test_an_account_has_a_number_of_streams_and_others_have_theirs(
    autojump_clock: Clock,
) -> None:
    async with open_list_shop("free") as shop:
        shop.app = create_app(shop.service, LiveConnections(trio.Event(), each_max=3))
        visitor, list_id = await signed_in(shop), (await send(shop, SLOW)).body["list_id"]
        got: list[HttpAnswer] = []
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(watch, visitor, list_id, got)
            await trio.sleep(2)
            assert (await visitor.get(f"/lists/{list_id}/events")).status == 503
            nursery.cancel_scope.cancel()
        path = f"{HOME}/lists/{list_id}/events"
        more = await shop.request("GET", path, key=None, headers=visitor.sent({}), hang_up_at=2)
        assert more.status == 200


async def test_a_strangers_list_has_no_events(autojump_clock: Clock) -> None:
    async with open_list_shop("free") as shop:
        list_id = (await send(shop, SLOW)).body["list_id"]
        other = await shop.store.create_account("eve@example.org", "scale")
        eve = await signed_in(shop, await shop.new_key("sk_mgmt_", other.id))
        for wanted in (list_id, "x", list_id.upper(), "00000000-0000-4000-8000-000000000000"):
            assert (await eve.get(f"/lists/{wanted}/events")).status == 404, wanted
        nobody = PageClient(shop)
        assert (await nobody.get(f"/lists/{list_id}/events")).status == 303


async def test_the_events_end_when_the_process_stops(autojump_clock: Clock) -> None:
    async with open_list_shop("free") as shop:
        drain = trio.Event()
        shop.app = create_app(shop.service, LiveConnections(drain))
        visitor, list_id = await signed_in(shop), (await send(shop, SLOW)).body["list_id"]
        got: list[HttpAnswer] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch, visitor, list_id, got)
            await trio.sleep(2)
            drain.set()
            await trio.sleep(30)  # the list has half an hour to go
            assert len(got) == 1


async def test_the_events_outlast_a_store_that_is_away(autojump_clock: Clock) -> None:
    async with open_list_shop("free") as shop:
        visitor, list_id = await signed_in(shop), (await send(shop, SLOW)).body["list_id"]
        got: list[HttpAnswer] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch, visitor, list_id, got)
            await trio.sleep(2)
            shop.store.away = {"stored_list", "account", "list_marks"}
            await trio.sleep(20)
            assert got == []
            shop.store.away = False
        assert b'data-status="done"' in events_of(got[0])[-1]


async def test_a_stream_is_never_silent_for_long(autojump_clock: Clock) -> None:
    async def same() -> Look:
        return Look(b"as before")

    async def yes() -> bool:
        return True

    times = []
    async with ListEvents(same, yes, trio.Event(), []) as events:
        with trio.move_on_after(100):
            async for event in events:
                times.append((trio.current_time(), event))
    assert [event for _, event in times] == [b"as before", *[COMMENT] * (len(times) - 1)]
    gaps = [after - before for (before, _), (after, _) in pairwise(times)]
    assert len(gaps) > 4
    assert max(gaps) <= COMMENT_S + EVERY_S


async def test_a_client_that_reads_nothing_costs_nothing(autojump_clock: Clock) -> None:
    """Nothing is looked at for it, and it gets what is known when it reads again."""
    looks = []

    async def next_look() -> Look:
        looks.append(trio.current_time())
        return Look(b"look %d" % len(looks))

    async def yes() -> bool:
        return True

    async with ListEvents(next_look, yes, trio.Event(), []) as events:
        assert await anext(events) == b"look 1"
        await trio.sleep(600)
        assert len(looks) == 1
        assert await anext(events) == b"look 2"


async def test_a_cancelled_look_leaves_the_next_watcher_to_look(autojump_clock: Clock) -> None:
    looks = ListLooks()

    async def slow() -> Look:
        await trio.sleep(10)
        return Look(b"never")

    async def quick() -> Look:
        return Look(b"seen")

    with looks.watching("a"):
        with trio.move_on_after(1):
            await looks.latest("a", slow)
        assert await looks.latest("a", quick) == Look(b"seen")


def test_an_event_has_no_line_without_a_field() -> None:
    """A name of a list with a line break begins no field of its own."""
    event = event_of("<p>a\r\n\nevent: end\rdata: x\n</p>")
    assert event.count(b"\nevent:") == 0
    assert all(line.startswith((b"event: progress", b"data: ")) for line in event[:-2].split(b"\n"))
