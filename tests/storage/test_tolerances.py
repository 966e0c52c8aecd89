"""Every store: the refusals that mail hosts take, shared by processes."""

from collections.abc import Sequence
from itertools import count

import pytest
import trio
from msgspec.structs import replace

from mailprobe.storage.store import Store
from mailprobe.storage.tolerances import (
    CLAIM_S,
    HOSTS_MAX,
    UNKNOWN,
    HostKey,
    LearnedTolerance,
    RefusalGrant,
    RefusalRequest,
    Refusals,
)
from tests.storage.fixed_clock import RETENTION, Clock
from tests.storage.other_process import other_process

HOST: HostKey = ("egress", "mx.shop.test")
LEASE_S = 30.0
HOUR_S, DAY_S = 3600.0, 86_400.0


class Process:
    """A holder that counts its own refusals, as an engine does."""

    def __init__(self, store: Store, name: str, tolerance: int = 4, hour: int | None = None):
        self.store, self.name = store, name
        self.held = self.noted = 0
        self.tolerance, self.hour = tolerance, hour
        self.learned = UNKNOWN
        self.names: Sequence[str] = ()

    async def ask(
        self, *ages_s: float, wanted: bool = True, key: HostKey = HOST, account: str = "one"
    ) -> RefusalGrant:
        """Report refusals of these ages; each was one that it held."""
        self.held = max(0, self.held - len(ages_s))
        request = RefusalRequest(
            self.held if wanted else 0,
            wanted,
            self.tolerance,
            self.hour,
            self.noted,
            [Refusals(age_s, account) for age_s in ages_s],
            self.learned,
            self.names,
        )
        granted = await self.store.lease_refusals(self.name, {key: request}, lease_s=LEASE_S)
        self.noted += len(ages_s)
        self.held = granted[key].leased
        return granted[key]


def counted(refusals: Sequence[Refusals]) -> int:
    return sum(each.count for each in refusals)


async def test_a_process_gets_half_of_its_share_of_what_is_left(store: Store):
    one, two, three = (Process(store, name, 16) for name in ("a", "b", "c"))
    assert [(await each.ask()).leased for each in (one, two, three)] == [8, 2, 1]
    assert (await one.ask()).leased == 8
    # 16 less three under lease elsewhere, and eight refusals: what is left is shared by three.
    assert (await one.ask(*[0.0] * 8)).leased == 1


async def test_leases_and_refusals_together_never_exceed_the_tolerance(store: Store, clock: Clock):
    processes = [Process(store, f"p{n}") for n in range(6)]
    total = 0
    for _ in range(20):
        for process in processes:
            if process.held:
                total += 1
                await process.ask(0.0)
            else:
                await process.ask()
        assert total + sum(each.held for each in processes) <= 4
    assert total == 4
    grant = await processes[0].ask()
    assert (grant.leased, grant.is_contested) == (0, False)
    clock.advance(600)
    assert (await processes[0].ask()).leased == 2  # the others have not asked for a minute


async def test_returned_refusals_are_free_for_others(store: Store):
    one, two = Process(store, "a", 2), Process(store, "b", 2)
    assert (await one.ask()).leased == 1
    assert (await two.ask()).leased == 1
    three = Process(store, "c", 2)
    grant = await three.ask()
    assert (grant.leased, grant.is_contested) == (0, True)
    await one.ask(wanted=False)
    assert (await three.ask()).leased == 1


async def test_a_lease_ends_by_itself(store: Store, clock: Clock):
    one, two = Process(store, "a", 2), Process(store, "b", 2)
    one.tolerance = two.tolerance = 1
    assert (await one.ask()).leased == 1
    clock.advance(LEASE_S - 0.001)
    assert (await two.ask()).leased == 0
    clock.advance(0.001)
    assert (await two.ask()).leased == 1
    assert (await one.ask()).leased == 0


async def test_the_lease_of_a_killed_process_ends_with_it(store: Store):
    with other_process() as killed, other_process() as alive:
        first, second = Process(store, killed.holder, 2), Process(store, alive.holder, 2)
        assert (await first.ask()).leased == 1
        assert (await second.ask()).leased == 1
        assert (await Process(store, "c", 2).ask()).leased == 0
        killed.kill()
        while (await Process(store, "c", 2).ask()).leased == 0:
            await trio.lowlevel.checkpoint()
        assert (await Process(store, "d", 2).ask()).leased == 0
        assert (await second.ask()).leased == 1


async def test_reports_of_a_killed_process_still_count(store: Store):
    with other_process() as killed:
        first = Process(store, killed.holder)
        await first.ask()
        await first.ask(0.0, 0.0)
        killed.kill()
        killed.reap()
        grant = await Process(store, "c").ask()
        assert counted(grant.elsewhere) == 2
        assert grant.leased == 1


async def test_to_repeat_a_request_counts_nothing_twice(store: Store):
    """A process that does not know what became of its call asks for the same again."""
    one = Process(store, "a", 16)
    await one.ask()
    held, noted = one.held, one.noted
    for _ in range(3):
        one.held, one.noted = held, noted
        assert (await one.ask(1.0, 2.0)).leased == 7  # half of 14
    one.noted -= 1  # the last of those again, and a new one
    await one.ask(2.0, 0.0)
    assert counted((await Process(store, "b", 16).ask()).elsewhere) == 3


async def test_refusals_reach_the_other_processes_with_their_age_and_account(
    store: Store, clock: Clock
):
    one, two = Process(store, "a"), Process(store, "b")
    await one.ask(100.0, account="one")
    await one.ask(5.0, 4.0, account="two")
    clock.advance(10)
    grant = await two.ask()
    assert grant.elsewhere[0].account == "one"
    assert counted([each for each in grant.elsewhere if each.account == "two"]) == 2
    assert grant.elsewhere[0].age_s == pytest.approx(110)
    assert not (await one.ask()).elsewhere
    clock.advance(HOUR_S - 110)
    assert counted((await two.ask()).elsewhere) == 2


async def test_the_limit_of_an_hour_holds_over_all_processes(store: Store, clock: Clock):
    one, two = Process(store, "a", 8, hour=3), Process(store, "b", 8, hour=3)
    assert (await one.ask()).leased == 1
    await one.ask(0.0)
    clock.advance(700)
    assert (await two.ask(0.0)).leased == 1
    await two.ask(0.0)
    clock.advance(700)
    assert (await one.ask()).leased == (await two.ask()).leased == 0
    clock.advance(HOUR_S - 1400)
    assert (await one.ask()).leased == 1


async def test_each_egress_and_host_has_refusals_of_its_own(store: Store):
    keys = [(egress, f"mx{n}.test") for egress in ("e", "f") for n in range(HOSTS_MAX // 2)]
    request = RefusalRequest(0, True, 4)
    granted = await store.lease_refusals("a", dict.fromkeys(keys, request), lease_s=LEASE_S)
    assert granted.keys() == set(keys)
    assert all(grant.leased == 2 for grant in granted.values())


async def test_of_what_was_learned_the_careful_one_wins(store: Store):
    one, two = Process(store, "a"), Process(store, "b")
    one.learned = LearnedTolerance(
        tolerance=64, took=40, asked=500, refused=30, shared=True, label="postfix", hour_took=50
    )
    await one.ask()
    two.learned = LearnedTolerance(tolerance=16, took=10, asked=20, refused=20)
    assert (await two.ask()).learned == one.learned
    two.learned = LearnedTolerance(
        tolerance=12, ceiling=12, hour=30, careful=True, ban_ages_s=(60.0,)
    )
    await two.ask()
    assert (await one.ask()).learned == replace(
        one.learned, tolerance=12, ceiling=12, hour=30, careful=True, ban_ages_s=(60.0,)
    )
    one.tolerance = 64  # not what it believed before
    assert (await one.ask()).leased <= 12


async def test_a_ban_that_two_processes_saw_is_one(store: Store, clock: Clock):
    one, two = Process(store, "a"), Process(store, "b")
    one.learned = LearnedTolerance(careful=True, tolerance=2, ceiling=2, ban_ages_s=(30.0,))
    two.learned = LearnedTolerance(careful=True, tolerance=2, ceiling=2, ban_ages_s=(0.0,))
    await one.ask()
    assert (await two.ask()).learned.ban_ages_s == pytest.approx((30.0,))
    clock.advance(3600)
    one.learned = two.learned = UNKNOWN
    two.learned = LearnedTolerance(ban_ages_s=(0.0,))
    assert (await two.ask()).learned.ban_ages_s == pytest.approx((3630.0, 0.0))
    two.learned = UNKNOWN
    clock.advance(DAY_S - 3600)
    assert (await two.ask()).learned.ban_ages_s == pytest.approx((DAY_S - 3600,))


async def test_knowledge_of_a_host_is_kept_for_30_days_after_the_last_use(
    store: Store, clock: Clock
):
    one = Process(store, "a")
    one.learned = LearnedTolerance(tolerance=64)
    await one.ask(0.0)
    for _ in range(2):
        clock.advance(29 * DAY_S)
        await store.apply_retention(RETENTION)
        one.learned = UNKNOWN
        grant = await one.ask()
        assert grant.learned.tolerance == 64
        assert not grant.elsewhere
    clock.advance(31 * DAY_S)
    await store.apply_retention(RETENTION)
    assert (await one.ask()).learned.tolerance == 0


async def test_refusals_and_leases_go_within_two_hours_of_the_last_use(store: Store, clock: Clock):
    await Process(store, "a").ask(0.0, account="one")
    assert [each.refused_hour for each in await store.host_tolerances(HOST[0])] == [1]
    clock.advance(2 * HOUR_S + 1)
    await store.apply_retention(RETENTION)
    clock.advance(-2 * HOUR_S)  # were they there, they would be shown
    assert [each.refused_hour for each in await store.host_tolerances(HOST[0])] == [0]


async def test_a_clock_that_was_ahead_blocks_no_host(store: Store, clock: Clock):
    one, two = Process(store, "a", 2), Process(store, "b", 2)
    clock.advance(DAY_S)
    await one.ask(0.0)
    clock.advance(-DAY_S)
    await store.apply_retention(RETENTION)
    assert (await two.ask()).leased == 0
    clock.advance(LEASE_S)
    assert (await two.ask()).leased == 1
    clock.advance(600)
    assert (await two.ask()).leased == 1
    clock.advance(31 * DAY_S)
    await store.apply_retention(RETENTION)
    assert await store.host_tolerances(HOST[0]) == []


async def test_the_hosts_of_an_egress_are_listed_for_the_operator(store: Store, clock: Clock):
    one = Process(store, "a", 16)
    one.learned = LearnedTolerance(careful=True, tolerance=9, ceiling=9, ban_ages_s=(0.0,))
    await one.ask(0.0, 0.0)
    await Process(store, "a").ask(key=("other", "mx.shop.test"))
    clock.advance(700)
    (found,) = await store.host_tolerances(HOST[0])
    assert (found.host, found.refused, found.refused_hour, found.tolerance) == (HOST[1], 0, 2, 9)
    assert found.learned.careful
    assert found.learned.ban_ages_s == pytest.approx((700.0,))
    clock.advance(2 * DAY_S)
    assert await store.host_tolerances(HOST[0]) == []


async def test_the_row_of_a_host_is_bounded(store: Store, clock: Clock):
    """The count of refusals is right all the same."""
    names, one = count(), Process(store, "a", 100_000)
    for _ in range(30):
        await one.ask(*[0.0] * 40, account=f"account {next(names)}")
        for _ in range(20):
            await one.ask(1.0, account=f"account {next(names)}")
        clock.advance(1)
    grant = await Process(store, "b", 100_000).ask()
    assert counted(grant.elsewhere) == 30 * 60
    assert len(grant.elsewhere) <= 500


@pytest.mark.parametrize(
    "key", [("egress", "x" * 321), ("x" * 321, "mx.test"), ("egress", "mx\0.test")]
)
async def test_a_name_that_may_not_be_stored_is_a_value_error(store: Store, key: HostKey):
    with pytest.raises(ValueError, match="may not be stored"):
        await store.lease_refusals("a", {key: RefusalRequest(0, True, 4)}, lease_s=LEASE_S)


async def test_a_random_name_belongs_to_the_process_that_named_it_first(store: Store):
    one, two = Process(store, "a", 16), Process(store, "b", 16)
    one.names, two.names = ["shop.test", "forge.test"], ["mill.test", "shop.test"]
    assert list((await one.ask()).names_elsewhere) == []
    assert sorted((await two.ask()).names_elsewhere) == ["forge.test", "shop.test"]
    assert list((await one.ask()).names_elsewhere) == ["mill.test"]
    assert list((await one.ask(key=("egress", "another host"))).names_elsewhere) == []


async def test_a_claim_ends_with_a_call_that_does_not_name_it(store: Store):
    one, two = Process(store, "a", 16), Process(store, "b", 16)
    one.names = two.names = ["shop.test"]
    await one.ask()
    assert (await two.ask()).names_elsewhere
    one.names = ()
    await one.ask()
    assert not (await two.ask()).names_elsewhere


async def test_the_claim_of_a_process_that_calls_no_more_ends_soon(store: Store, clock: Clock):
    one, two = Process(store, "a", 16), Process(store, "b", 16)
    one.names = two.names = ["shop.test"]
    await one.ask()
    clock.advance(CLAIM_S - 0.001)
    assert (await two.ask()).names_elsewhere
    clock.advance(0.001)
    assert not (await two.ask()).names_elsewhere
    assert (await one.ask()).names_elsewhere


async def test_a_claim_is_not_prolonged_by_naming_it_again(store: Store, clock: Clock):
    """An account whose part of the tolerance is spent can't send it: others must be able to."""
    one, two = Process(store, "a", 16), Process(store, "b", 16)
    one.names = ["shop.test"]
    for _ in range(int(CLAIM_S)):
        await one.ask()
        clock.advance(1.0)
    await one.ask()
    two.names = ["shop.test"]
    assert not (await two.ask()).names_elsewhere
    assert (await one.ask()).names_elsewhere


async def test_a_clock_that_was_ahead_keeps_no_claim(store: Store, clock: Clock):
    one, two = Process(store, "a", 16), Process(store, "b", 16)
    one.names = two.names = ["shop.test"]
    clock.advance(DAY_S)
    await one.ask()
    clock.advance(-DAY_S)
    assert (await two.ask()).names_elsewhere
    clock.advance(CLAIM_S)
    assert not (await two.ask()).names_elsewhere
