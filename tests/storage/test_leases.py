"""Seats at an exchange, shared by many holders: the contract of every store."""

import random
from collections import Counter
from dataclasses import dataclass, field

import pytest
import trio
import trio.lowlevel

from mailprobe.storage.leases import WAITING_S
from mailprobe.storage.records import LeaseRequest
from mailprobe.storage.store import Store
from tests.seeds import seeds
from tests.storage.fixed_clock import NOON, RETENTION, Clock
from tests.storage.other_process import other_process

HOST = "192.0.2.1"
LEASE_S = 12.0
ONE = LeaseRequest(0, 1)


async def lease(
    store: Store, holder: str, held: int, wanted: int, *, limit: int = 4, address: str = HOST
) -> int:
    asked = {address: LeaseRequest(held, wanted)}
    granted = await store.lease_connections(holder, asked, limit=limit, lease_s=LEASE_S)
    assert granted.keys() == asked.keys()
    return granted[address]


async def lease_all(store: Store, holder: str, *, limit: int = 4) -> int:
    held = 0
    while (now := await lease(store, holder, held, limit, limit=limit)) > held:
        held = now
    return held


async def back(store: Store, holder: str, limit: int = 4) -> int:
    return (await store.revocable_connections(holder, limit=limit)).get(HOST, 0)


async def test_leases_are_given_one_at_a_time_up_to_the_limit(store: Store):
    assert [await lease(store, "a", held, 9) for held in (0, 1, 2, 3, 4)] == [1, 2, 3, 4, 4]
    assert await lease(store, "b", 0, 1) == 0


async def test_each_address_has_leases_of_its_own(store: Store):
    hosts = {f"192.0.2.{n}": ONE for n in range(50)}
    granted = await store.lease_connections("a", hosts, limit=1, lease_s=LEASE_S)
    assert granted == dict.fromkeys(hosts, 1)
    hosts["198.51.100.1"] = ONE
    granted = await store.lease_connections("b", hosts, limit=1, lease_s=LEASE_S)
    assert {host for host, leases in granted.items() if leases} == {"198.51.100.1"}


async def test_to_ask_again_gives_nothing_twice(store: Store):
    """A holder that does not know what became of its call asks for the same again."""
    assert await lease(store, "a", 0, 1) == 1
    assert await lease(store, "a", 0, 1) == 1
    assert await lease(store, "a", 1, 2) == 2
    assert await lease(store, "a", 1, 2) == 2
    assert await lease(store, "b", 0, 4) == 1


async def test_released_leases_are_free_at_once(store: Store):
    assert await lease_all(store, "a") == 4
    assert await lease(store, "a", 1, 1) == 1
    assert await lease_all(store, "b") == 3


async def test_a_holder_that_dies_gives_back_when_its_lease_ends(store: Store, clock: Clock):
    assert await lease_all(store, "a") == 4
    clock.advance(LEASE_S - 0.001)
    assert await lease(store, "b", 0, 1) == 0
    clock.advance(0.001)
    assert await lease(store, "b", 0, 1) == 1


async def test_a_killed_process_holds_nothing_any_more(store: Store):
    """Neither its connections nor its places in the queues, and nothing of a living one is touched."""
    with other_process() as one, other_process() as other:
        assert [await lease(store, one.holder, held, 2) for held in (0, 1)] == [1, 2]
        assert [await lease(store, other.holder, held, 2) for held in (0, 1)] == [1, 2]
        assert await lease(store, "a", 0, 1) == 0
        one.kill()
        while await lease(store, "a", 0, 1) == 0:
            await trio.lowlevel.checkpoint()
        assert await lease(store, "b", 0, 1) == 1
        assert await lease(store, "c", 0, 1) == 0
        assert await lease(store, other.holder, 2, 2) == 2


async def test_a_killed_process_that_waited_is_not_waited_for(store: Store):
    with other_process() as waiting:
        await lease(store, "a", 0, 1, limit=1)
        assert await lease(store, waiting.holder, 0, 1, limit=1) == 0
        waiting.kill()
        waiting.reap()
        assert await lease(store, "b", 0, 1, limit=1) == 0
        await store.return_connections("a")
        assert await lease(store, "b", 0, 1, limit=1) == 1


async def test_a_lease_that_is_extended_goes_on(store: Store, clock: Clock):
    await lease_all(store, "a")
    for _ in range(5):
        clock.advance(LEASE_S / 2)
        assert await lease(store, "a", 4, 4) == 4
        assert await lease(store, "b", 0, 1) == 0


async def test_an_ended_lease_cannot_be_extended(store: Store, clock: Clock):
    await lease_all(store, "a")
    clock.advance(LEASE_S)
    assert await lease_all(store, "b") == 4
    assert await lease(store, "a", 4, 4) == 0


async def test_a_holder_that_stops_returns_its_leases(store: Store):
    await lease_all(store, "a")
    await lease(store, "b", 0, 1)
    await store.return_connections("a")
    assert await lease(store, "b", 0, 1) == 1
    await store.return_connections("a")


async def test_of_who_has_none_the_first_to_wait_is_the_first_served(store: Store, clock: Clock):
    await lease(store, "a", 0, 1, limit=1)
    for holder in ("b", "c", "d"):
        assert await lease(store, holder, 0, 1, limit=1) == 0
        clock.advance(0.01)
    assert await lease(store, "a", 0, 1, limit=1) == 0, "it stands behind them"
    assert await lease(store, "c", 0, 1, limit=1) == 0
    assert await lease(store, "b", 0, 1, limit=1) == 1
    assert await lease(store, "b", 0, 0, limit=1) == 0
    assert await lease(store, "d", 0, 1, limit=1) == 0
    assert await lease(store, "c", 0, 1, limit=1) == 1


async def test_a_holder_without_a_lease_comes_before_one_that_wants_another(store: Store):
    await lease(store, "a", 0, 1, limit=2)
    await lease(store, "a", 1, 2, limit=2)
    assert await lease(store, "b", 0, 1, limit=2) == 0
    assert await lease(store, "a", 1, 2, limit=2) == 1
    assert await lease(store, "b", 0, 1, limit=2) == 1


async def test_a_holder_that_does_not_request_again_loses_its_turn(store: Store, clock: Clock):
    await lease(store, "a", 0, 1, limit=1)
    await lease(store, "b", 0, 1, limit=1)
    await lease(store, "c", 0, 1, limit=1)
    assert await back(store, "a", 1) == 1
    clock.advance(WAITING_S)
    assert await back(store, "a", 1) == 0
    await store.return_connections("a")
    assert await lease(store, "c", 0, 1, limit=1) == 1


async def test_a_lease_is_reclaimed_from_the_holder_of_most(store: Store, clock: Clock):
    assert [await lease(store, "a", held, 3) for held in (0, 1, 2)] == [1, 2, 3]
    clock.advance(0.01)
    assert await lease(store, "b", 0, 1) == 1
    assert await back(store, "a") == 0
    await lease(store, "c", 0, 1)
    assert (await back(store, "a"), await back(store, "b")) == (1, 0)
    await lease(store, "d", 0, 1)
    assert (await back(store, "a"), await back(store, "b")) == (2, 0)
    await lease(store, "e", 0, 1)
    assert (await back(store, "a"), await back(store, "b")) == (3, 0)
    await lease(store, "f", 0, 1)
    assert (await back(store, "a"), await back(store, "b")) == (3, 1)
    assert await back(store, "c") == 0


async def test_of_equal_holders_a_lease_is_reclaimed_from_the_longest_one(
    store: Store, clock: Clock
):
    for holder in ("b", "a"):
        assert await lease(store, holder, 0, 1, limit=2) == 1
        clock.advance(0.01)
    assert await lease(store, "b", 1, 1, limit=2) == 1, "to extend it changes no turn"
    await lease(store, "c", 0, 1, limit=2)
    assert (await back(store, "b", 2), await back(store, "a", 2)) == (1, 0)


async def test_retention_deletes_ended_leases_only(store: Store, clock: Clock):
    await lease_all(store, "a")
    clock.advance(LEASE_S / 2)
    await store.lease_connections("a", {"192.0.2.2": ONE}, limit=1, lease_s=LEASE_S)
    clock.advance(LEASE_S / 2)
    await store.apply_retention(RETENTION)
    assert await lease_all(store, "b") == 4
    assert await lease(store, "b", 0, 1, limit=1, address="192.0.2.2") == 0


@dataclass
class Holder:
    """What one process believes, by its own strict clock."""

    name: str
    leases: int = 0
    until: float = 0.0
    history: list[int] = field(default_factory=list)

    def holds(self, at: float) -> int:
        return self.leases if at < self.until else 0


@pytest.mark.parametrize("seed", range(seeds(40)))
async def test_never_more_than_the_limit_in_any_order(store: Store, clock: Clock, seed: int):
    """Leases, answers that are lost, returns, deaths and ends of leases, and everybody's turn."""
    rng = random.Random(seed)
    limit = rng.choice((1, 2, 4))
    holders = [Holder(f"{n}") for n in range(rng.choice((2, 5, 8)))]
    served: Counter[str] = Counter()
    for step in range(120):
        at = (clock() - NOON).total_seconds()
        holder = rng.choice(holders)
        held = holder.holds(at)
        match rng.choice(("more", "more", "more", "less", "lost", "dies", "leaves", "time")):
            case "more":
                asked_back = await back(store, holder.name, limit)
                kept = max(0, held - asked_back)
                holder.leases = await lease(store, holder.name, kept, kept + 1, limit=limit)
                holder.until = at + LEASE_S
                assert kept <= holder.leases <= kept + 1
                served[holder.name] += holder.leases > kept
            case "less":
                kept = rng.randint(0, held)
                holder.leases = kept
                assert await lease(store, holder.name, kept, kept, limit=limit) == kept
                holder.until = at + LEASE_S
            case "lost":
                await lease(store, holder.name, held, held + 1, limit=limit)
            case "dies":
                holder.name, holder.leases = f"{holder.name}'{step}", 0
            case "leaves":
                holder.leases = 0
                await store.return_connections(holder.name)
            case "time":
                clock.advance(rng.choice((0.01, 0.5, 5.0)))
        at = (clock() - NOON).total_seconds()
        assert sum(each.holds(at) for each in holders) <= limit
    assert served, "or nothing was tried"


async def test_everybody_gets_a_turn(store: Store, clock: Clock):
    """Eight that always want one, and one seat: nobody is served twice before all were once."""
    held = dict.fromkeys("abcdefgh", 0)
    turns = []
    for _ in range(40):
        for holder in held:
            if await back(store, holder, 1):
                held[holder] = 0
            before = held[holder]
            held[holder] = await lease(store, holder, before, 1, limit=1)
            if held[holder] > before:
                turns.append(holder)
        clock.advance(0.25)
    assert len(turns) > 24
    for first in range(0, len(turns) - 8, 8):
        assert set(turns[first : first + 8]) == set(held)
