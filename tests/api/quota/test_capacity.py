"""Capacity shared by account: the share of each, waiting, and the order of grants."""

import random
from contextlib import AsyncExitStack

import pytest
import trio

from mailprobe.api.quota.capacity import SHORT_WAIT_S, WAIT_S, Capacity
from mailprobe.bench.world.mail_host import HostAddress, MailHost
from tests.api.service_fixture import open_shop


def filled_by(capacity: Capacity, account: str, each: int = 1) -> int:
    """Let it have as much as it gets."""
    count = 0
    while capacity.fits(account, each):
        capacity.enter(each, account)
        count += each
    return count


def test_one_account_alone_gets_half_and_newcomers_get_their_share() -> None:
    capacity = Capacity(1200)
    assert filled_by(capacity, "ann") == 600
    assert filled_by(capacity, "bob") == 300
    assert filled_by(capacity, "eve") == 150
    assert capacity.fits("newcomer", 50)


@pytest.mark.parametrize("accounts", [2, 3, 5])
def test_accounts_that_all_ask_get_the_same(accounts: int) -> None:
    capacity, rng = Capacity(1200), random.Random(0)
    held = dict.fromkeys(map(str, range(accounts)), 0)
    for _ in range(50_000):
        account = rng.choice(list(held))
        if capacity.fits(account, 1):
            capacity.enter(1, account)
            held[account] += 1
        leaver = rng.choice(list(held))
        if capacity.addresses > 800 and held[leaver] and rng.random() < 0.5:
            capacity.release(1, leaver)
            held[leaver] -= 1
    share = 1200 / (accounts + 1)
    assert all(0.7 * share < each < 1.3 * share for each in held.values())


def test_a_request_of_fifty_gets_its_turn_in_a_small_service() -> None:
    capacity = Capacity(10)
    assert capacity.fits("ann", 50)
    capacity.enter(50, "ann")
    assert not capacity.fits("bob", 1)


async def test_waiting_is_in_turn_by_account(autojump_clock: object) -> None:
    capacity, order = Capacity(10), list[str]()

    async def wait_for_capacity(account: str) -> None:
        async with capacity.waiting(account, 1) as ticket:
            assert ticket.is_free
            ticket.use()
            order.append(account)
        capacity.enter(1, account)

    capacity.enter(10, "hog")
    async with trio.open_nursery() as nursery:
        for account in ("ann", "ann", "ann", "bob", "eve"):
            nursery.start_soon(wait_for_capacity, account)
            await trio.testing.wait_all_tasks_blocked()
        for addresses in (1, 1, 1, 7):
            capacity.release(addresses, "hog")
            await trio.testing.wait_all_tasks_blocked()
    assert order == ["ann", "bob", "eve", "ann", "ann"]


async def test_a_request_waits_one_second_in_vain_and_the_next_hardly_at_all(
    autojump_clock: object,
) -> None:
    capacity = Capacity(2)
    capacity.enter(2, "ann")
    for wait_s in (WAIT_S, SHORT_WAIT_S, SHORT_WAIT_S):
        began = trio.current_time()
        async with capacity.waiting("ann", 1) as ticket:
            assert not ticket.is_free
        assert trio.current_time() - began == pytest.approx(wait_s)
    await trio.sleep(WAIT_S)
    began = trio.current_time()
    async with capacity.waiting("ann", 1) as ticket:
        assert trio.current_time() - began == pytest.approx(WAIT_S)


async def test_a_request_cancelled_while_waiting_leaves_nothing(autojump_clock: object) -> None:
    capacity = Capacity(2)
    for steps in range(8):
        capacity.enter(2, "hog")
        async with trio.open_nursery() as nursery:

            async def wait_for_capacity() -> None:
                async with capacity.waiting("ann", 1):
                    await trio.lowlevel.checkpoint()

            nursery.start_soon(wait_for_capacity)
            await trio.testing.wait_all_tasks_blocked()
            capacity.release(2, "hog")
            for _ in range(steps):
                await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()
        assert capacity.addresses == 0
        assert capacity.fits("ann", 2)


async def test_streams_of_one_account_to_silent_hosts_leave_a_neighbour_its_answers(
    autojump_clock: object,
) -> None:
    """60 streams of 50 addresses, where 2,000 addresses may be in progress."""
    async with open_shop("scale", addresses_max=2000) as shop, AsyncExitStack() as stack:
        neighbour = await shop.store.create_account("bob@example.org", "scale")
        key = await shop.new_key("sk_live_", neighbour.id)
        keys = [await shop.new_key("sk_live_") for _ in range(60)]
        for host in range(100):
            shop.world.add(f"silent{host}.test", MailHost(address=HostAddress.SILENT))
        nursery = await stack.enter_async_context(trio.open_nursery())
        statuses: list[int] = []

        async def stream(number: int) -> None:
            texts = [f"a{n}@silent{(number + n) % 100}.test" for n in range(50)]
            statuses.append((await shop.stream(*texts, key=keys[number])).status)

        for number in range(60):
            nursery.start_soon(stream, number)
        await trio.sleep(0.2)
        waits_s = []
        for number in range(20):
            began = trio.current_time()
            got = await shop.verify(f"known{number}@friendly.test", key=key)
            assert (got.status, got.body["status"]) == (200, "deliverable")
            waits_s.append(trio.current_time() - began)
            await trio.sleep(0.1)
        assert max(waits_s) < 0.1
    assert statuses.count(200) >= 20
    assert statuses.count(503) == 60 - statuses.count(200) >= 10
