"""Every store: jobs that are created and claimed."""

from datetime import timedelta
from typing import Any

import pytest
import trio
from msgspec.structs import replace

from mailprobe.storage.base.claim_order import FAILING_AFTER
from mailprobe.storage.contract import RECEIVERS_KEPT
from mailprobe.storage.records import Caller, Claim, Job, Ledger
from mailprobe.storage.store import Store
from tests.storage.contract.job_calls import (
    SOON,
    abandon,
    extend,
    finish,
    ids,
    observe,
    put_off,
    verify,
)
from tests.storage.fixed_clock import (
    INSTANT,
    LEASE_S,
    NOON,
    RETENTION,
    Clock,
    another_key,
    attempt,
    claimed,
    delivering,
    granted,
    make_caller,
    order,
    promise,
)

# promised


async def test_a_job_is_as_it_was_ordered(store: Store):
    caller = await make_caller(store)
    ordered = order("a", host="hooks.test")
    job = await store.create_job(caller, ordered, granted)
    expected = Job(
        "a", caller.account.id, ordered.email, ordered.webhook, "hooks.test", "pending", NOON, NOON
    )
    assert job == await store.job("a") == expected
    assert await store.job("A") is None
    assert await store.attempts("a") == await store.attempts("A") == []


async def test_a_job_without_layer_4_keeps_that_choice(store: Store):
    caller = await make_caller(store)
    made = await store.create_job(caller, replace(order("a"), asks_hosts=False), granted)
    assert isinstance(made, Job)
    assert not made.asks_hosts
    assert made == await store.job("a")


async def test_a_pending_job_weighs_as_what_is_granted_does(store: Store):
    caller = await make_caller(store)
    await promise(store, caller, order("1"), order("2"))
    ledger = await store.ledger(caller)
    assert tuple(ledger.window) == ((NOON, 2),)
    assert (ledger.month_units, ledger.reserved, ledger.month_billable) == (2, 2, 0)
    other = await another_key(store, caller.account.id, "second")
    ledger = await store.ledger(other)
    assert (ledger.window_units, ledger.month_units, ledger.reserved) == (0, 2, 2)


async def test_a_refused_job_is_not_created(store: Store):
    caller = await make_caller(store)
    seen = []

    def refuse(ledger: Ledger) -> str:
        seen.append(ledger)
        return "no"

    before = await observe(store, caller)
    assert await store.create_job(caller, order(), refuse) == "no"
    assert seen == [before[2]]
    assert await observe(store, caller) == before


async def test_an_error_of_the_limit_check_creates_no_job(store: Store):
    caller = await make_caller(store)

    def stumble(_: Ledger) -> None:
        raise ZeroDivisionError

    before = await observe(store, caller)
    with pytest.raises(ZeroDivisionError):
        await store.create_job(caller, order(), stumble)
    assert await observe(store, caller) == before


async def test_an_id_that_is_kept_already_is_refused_and_weighs_nothing(store: Store):
    caller = await make_caller(store)
    await promise(store, caller, order())
    before = await observe(store, caller)
    with pytest.raises(ValueError, match="kept already"):
        await store.create_job(caller, replace(order(), email="bob@shop.test"), granted)
    assert await observe(store, caller) == before


async def test_a_key_that_is_not_there_is_promised_nothing(store: Store):
    caller = await make_caller(store)
    stranger = Caller(
        replace(caller.account, id="nobody"), replace(caller.key, id="no key", account_id="nobody")
    )
    with pytest.raises(KeyError):
        await store.create_job(stranger, order(), granted)
    assert await store.job("1") is None


async def test_sixty_jobs_at_the_edge_never_get_one_too_many(store: Store):
    caller = await make_caller(store)
    outcomes: list[Any] = []

    def weigh(ledger: Ledger) -> str | None:
        return "too many" if ledger.month_units >= 7 else None

    async def create_job(number: int) -> None:
        outcomes.append(await store.create_job(caller, order(f"{number}"), weigh))

    async with trio.open_nursery() as nursery:
        for number in range(60):
            nursery.start_soon(create_job, number)
    assert outcomes.count("too many") == 53
    assert (await store.ledger(caller)).reserved == 7


async def test_a_pending_job_is_reserved_for_however_long(store: Store, clock: Clock):
    caller = await make_caller(store)
    await promise(store, caller, order())
    await claimed(store)
    clock.advance(days=3_650)
    reservation: Any = await store.reserve(caller, 1, granted, lease_s=60)  # gives ended ones back
    await store.settle(reservation, [])
    await store.apply_retention(RETENTION)
    ledger = await store.ledger(caller)
    assert (ledger.reserved, ledger.month_units, ledger.window_units) == (1, 1, 1)
    [claim] = await claimed(store)
    assert await verify(store, claim)
    assert (await store.ledger(caller)).reserved == 0


async def test_a_caller_that_was_cancelled_before_is_promised_nothing(store: Store):
    caller = await make_caller(store)
    with trio.CancelScope() as scope:
        scope.cancel()
        await store.create_job(caller, order(), granted)
    assert scope.cancelled_caught
    assert await store.job("1") is None
    assert (await store.ledger(caller)).reserved == 0


# claimed


async def test_a_claim_has_the_job_its_caller_and_its_secret(store: Store):
    caller = await make_caller(store)
    [one, two] = await promise(store, caller, order("1", secret="geheim ü\0"), order("2"))
    assert await claimed(store) == [
        Claim(one, caller, "geheim ü\0", 1),
        Claim(two, caller, None, 1),
    ]


async def test_a_claims_account_is_as_it_is_now_and_its_key_may_be_revoked(
    store: Store, clock: Clock
):
    caller = await make_caller(store)
    await promise(store, caller, order())
    clock.advance(1)
    await store.revoke_key(None, caller.key.id)
    account = await store.change_account(caller.account.id, tier="scale", hard_cap_micros=5)
    [claim] = await claimed(store)
    assert claim.caller == Caller(account, replace(caller.key, revoked_at=clock()))  # type: ignore[arg-type]
    assert await verify(store, claim)


async def test_pending_jobs_are_verified_and_delivering_ones_delivered(store: Store):
    caller = await make_caller(store)
    await delivering(store, caller, order("1"))
    await promise(store, caller, order("2"))
    assert ids(await claimed(store, "verify")) == ["2"]
    assert ids(await claimed(store, "deliver")) == ["1"]
    assert await claimed(store, "verify") == await claimed(store, "deliver") == []


async def test_an_ended_job_is_nobodys(store: Store, clock: Clock):
    caller = await make_caller(store)
    await delivering(store, caller, order("1"), order("2"))
    await promise(store, caller, order("3"))
    [one, two] = await claimed(store, "deliver")
    await finish(store, one)
    await store.job_attempted(two, attempt(), state="failed", due_at=None)
    [three] = await claimed(store)
    await abandon(store, three)
    clock.advance(days=3)
    assert await claimed(store, "verify") == await claimed(store, "deliver") == []


async def test_nothing_is_claimed_before_it_is_due(store: Store, clock: Clock):
    caller = await make_caller(store)
    await delivering(store, caller, order())
    [claim] = await claimed(store, "deliver")
    await put_off(store, claim)
    clock.at = SOON - INSTANT
    assert await claimed(store, "deliver") == []
    clock.at = SOON
    assert ids(await claimed(store, "deliver")) == ["1"]


async def test_those_due_longest_are_claimed_first_and_of_one_instant_the_first_made(
    store: Store, clock: Clock
):
    caller = await make_caller(store)
    names = ["c", "a", "b", "e", "d"]
    await delivering(store, caller, *(order(name, host=f"{name}.test") for name in names))
    due_s = {"c": 30, "a": 20, "b": 30, "e": 10, "d": 20}
    for claim in await claimed(store, "deliver"):
        due_at = NOON + timedelta(seconds=due_s[claim.job.id])
        await store.job_attempted(claim, attempt(), state="delivering", due_at=due_at)
    clock.advance(20)
    assert ids(await claimed(store, "deliver", limit=2)) == ["e", "a"]
    clock.advance(10)
    assert ids(await claimed(store, "deliver")) == ["d", "c", "b"]


async def test_a_job_whose_claim_has_ended_stands_where_it_stood(store: Store, clock: Clock):
    caller = await make_caller(store)
    await promise(store, caller, order("1"))
    await claimed(store)
    clock.advance(1)
    other = await make_caller(store, sha256="other")
    await promise(store, other, order("2"))
    await promise(store, caller, order("3"))
    clock.advance(LEASE_S - 1)
    assert ids(await claimed(store)) == ["1", "2", "3"]


@pytest.mark.parametrize(("limit", "taken"), [(-1, 0), (0, 0), (1, 1), (4, 4), (5, 5), (99, 5)])
async def test_jobs_are_claimed_up_to_the_limit(store: Store, limit: int, taken: int):
    caller = await make_caller(store)
    await promise(store, caller, *(order(f"{number}") for number in range(5)))
    assert ids(await claimed(store, limit=limit)) == [f"{number}" for number in range(taken)]


@pytest.mark.parametrize(("each_max", "taken"), [(0, 0), (1, 1), (4, 4), (9, 5)])
async def test_an_account_has_no_more_than_each_max_claims(store: Store, each_max: int, taken: int):
    caller = await make_caller(store)
    await promise(store, caller, *(order(f"{number}", host=f"{number}") for number in range(5)))
    assert len(await claimed(store, each_max=each_max)) == taken
    assert await claimed(store, each_max=each_max) == []


async def test_an_accounts_host_has_no_more_than_each_max_claims(store: Store):
    one = await make_caller(store)
    two = await make_caller(store, sha256="other")
    for number in range(6):
        await delivering(store, one, order(f"{number}"))
    await delivering(store, two, order("another's"))
    assert len(await claimed(store, "deliver", each_max=4)) == 5
    assert await claimed(store, "deliver", each_max=4) == []
    assert len(await claimed(store, "deliver", each_max=5)) == 1


async def test_an_account_has_no_more_than_account_max_claims_over_all_its_hosts(store: Store):
    one = await make_caller(store)
    two = await make_caller(store, sha256="other")
    for number in range(9):
        await delivering(store, one, order(f"{number}", host=f"{number}.test"))
    await delivering(store, two, order("another's"))
    bounds: Any = {"limit": 20, "each_max": 4, "account_max": 3, "lease_s": LEASE_S}
    assert ids(await store.claim_jobs("deliver", **bounds)) == ["0", "another's", "1", "2"]
    assert await store.claim_jobs("deliver", **bounds) == []


async def test_accounts_come_in_turn_however_long_one_waits(store: Store, clock: Clock):
    """A thousand callbacks of one account came before the single one of its neighbour."""
    many = await make_caller(store)
    for number in range(12):
        await delivering(store, many, order(f"many {number}", host=f"{number % 6}.test"))
    clock.advance(5)
    for number in range(2):
        other = await make_caller(store, sha256=f"other {number}")
        await delivering(store, other, order(f"few {number}"))
    assert ids(await claimed(store, "deliver", limit=4)) == ["many 0", "few 0", "few 1", "many 1"]
    last = await make_caller(store, sha256="last")
    await delivering(store, last, order("last"))
    assert ids(await claimed(store, "deliver", limit=2)) == ["last", "many 2"]


async def test_a_receiver_whose_last_ten_tries_failed_gets_one_at_a_time(
    store: Store, clock: Clock
):
    caller = await make_caller(store)
    for number in range(4):
        await delivering(store, caller, order(f"{number}"))
    await delivering(store, caller, order("other", host="other.test"))
    for number in range(FAILING_AFTER):
        (claim, *_) = await claimed(store, "deliver", limit=1, each_max=4)
        await store.job_attempted(claim, attempt(), state="delivering", due_at=clock())
        if number == FAILING_AFTER - 2:
            assert len(await claimed(store, "deliver", each_max=4)) == 5
            clock.advance(LEASE_S)
    claims = {claim.job.host: claim for claim in await claimed(store, "deliver", each_max=4)}
    assert len(claims) == len(await claimed(store, "deliver", each_max=5)) + 2 == 2
    good = claims["hooks.test"]
    await store.job_attempted(good, attempt(status=200), state="done", due_at=None)
    assert len(await claimed(store, "deliver", each_max=4)) == 3


async def test_failures_of_one_account_at_a_host_delay_no_other_account_there(
    store: Store, clock: Clock
):
    caller = await make_caller(store)
    await delivering(store, caller, order("failing"))
    for _ in range(FAILING_AFTER):
        (claim,) = await claimed(store, "deliver", limit=1)
        await store.job_attempted(claim, attempt(), state="delivering", due_at=clock())
    other = await make_caller(store, sha256="other")
    for number in range(4):
        await delivering(store, other, order(f"other {number}"))
    taken = await claimed(store, "deliver", each_max=4)
    assert sum(claim.job.account_id == other.account.id for claim in taken) == 4


async def test_a_receiver_is_forgotten_a_day_after_its_last_try(store: Store, clock: Clock):
    caller = await make_caller(store)
    for number in range(4):
        await delivering(store, caller, order(f"{number}"))
    for _ in range(FAILING_AFTER):
        (claim, *_) = await claimed(store, "deliver", limit=1, each_max=4)
        await store.job_attempted(claim, attempt(), state="delivering", due_at=clock())
    clock.advance(RECEIVERS_KEPT.total_seconds() - 0.000_001)
    await store.apply_retention(RETENTION)
    assert len(await claimed(store, "deliver", each_max=4)) == 1
    clock.advance(LEASE_S)
    await store.apply_retention(RETENTION)
    assert len(await claimed(store, "deliver", each_max=4)) == 4


async def test_undelivered_jobs_are_counted_by_account(store: Store, clock: Clock):
    caller = await make_caller(store)
    counts = []

    async def observe() -> None:
        counts.append((await store.ledger(caller)).undelivered)

    await observe()
    await promise(store, caller, order("1"), order("2"), order("3"))
    await observe()
    one, two, three = await claimed(store)
    await verify(store, one)
    await observe()
    await verify(store, two)
    await abandon(store, three)
    await observe()
    first, second = await claimed(store, "deliver")
    await store.job_attempted(first, attempt(), state="delivering", due_at=clock())
    await store.job_attempted(second, attempt(status=200), state="done", due_at=None)
    await observe()
    await store.resend_job("1")
    await store.resend_job("2")
    await observe()
    reported: list[int] = []
    await store.create_job(caller, order("4"), lambda ledger: reported.append(ledger.undelivered))
    assert (counts, reported) == ([0, 3, 3, 2, 1, 2], [2])


async def test_claims_to_verify_take_no_place_from_those_to_deliver(store: Store):
    caller = await make_caller(store)
    await delivering(store, caller, order("1"))
    await promise(store, caller, order("2"))
    assert len(await claimed(store, "verify", each_max=1)) == 1
    assert len(await claimed(store, "deliver", each_max=1)) == 1


async def test_a_host_over_its_limit_does_not_delay_another_host(store: Store, clock: Clock):
    slow = [order(f"slow {number}", host="slow.test") for number in range(20)]
    caller = await make_caller(store)
    await delivering(store, caller, *slow)
    clock.advance(1)
    await delivering(store, caller, order("quick", host="quick.test"))
    assert ids(await claimed(store, "deliver", each_max=2)) == ["slow 0", "slow 1", "quick"]
    clock.advance(1)
    await delivering(store, caller, order("next", host="next.test"))
    assert ids(await claimed(store, "deliver", each_max=2)) == ["next"]


async def test_hosts_below_their_limit_are_claimed_in_the_order_due(store: Store, clock: Clock):
    caller = await make_caller(store)
    for number in range(6):
        host = "even.test" if number % 2 == 0 else "odd.test"
        await delivering(store, caller, order(f"{number}", host=host))
        clock.advance(1)
    assert ids(await claimed(store, "deliver", limit=3, each_max=3)) == ["0", "1", "2"]
    assert ids(await claimed(store, "deliver", limit=9, each_max=2)) == ["3"]


async def test_an_outcome_and_the_end_of_a_lease_make_room(store: Store, clock: Clock):
    caller = await make_caller(store)
    await promise(store, caller, *(order(f"{number}") for number in range(4)))
    [claim] = await claimed(store, each_max=1)
    await verify(store, claim)
    [claim] = await claimed(store, each_max=1)
    await abandon(store, claim)
    assert ids(await claimed(store, each_max=1)) == ["2"]
    clock.advance(LEASE_S - 0.000_001)
    assert await claimed(store, each_max=1) == []
    clock.advance(0.000_001)
    assert ids(await claimed(store, each_max=1)) == ["2"]
    assert await claimed(store, each_max=1) == []


@pytest.mark.parametrize("lease_s", [1, 25, 30])
async def test_a_killed_claimants_job_is_claimed_again_when_its_lease_ends(
    store: Store, clock: Clock, lease_s: float
):
    caller = await make_caller(store)
    await promise(store, caller, order())
    fences = []
    for _ in range(3):
        [claim] = await store.claim_jobs("verify", limit=5, each_max=5, lease_s=lease_s)
        fences.append(claim.fence)
        clock.advance(lease_s - 0.000_001)
        assert await claimed(store) == []
        clock.advance(0.000_001)
    assert fences == [1, 2, 3]


async def test_many_claimants_have_each_job_once(store: Store):
    caller = await make_caller(store)
    await promise(store, caller, *(order(f"{number}") for number in range(30)))
    taken: list[str] = []

    async def claim() -> None:
        taken.extend(ids(await claimed(store, limit=3, each_max=20)))

    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(claim)
    assert len(taken) == len(set(taken)) == 20


async def test_claimants_that_are_cancelled_leave_nothing_that_nobody_knows_of(store: Store):
    caller = await make_caller(store)
    await promise(store, caller, *(order(f"{number}") for number in range(60)))
    taken: list[str] = []

    async def claim() -> None:
        taken.extend(ids(await claimed(store, limit=1)))

    for steps in range(6):
        async with trio.open_nursery() as nursery:
            for _ in range(10):
                nursery.start_soon(claim)
            for _ in range(steps):
                await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()
    left = ids(await claimed(store))
    assert sorted(taken + left, key=int) == [f"{number}" for number in range(60)]


# extended


async def test_a_claim_is_extended_from_now_while_it_lasts(store: Store, clock: Clock):
    caller = await make_caller(store)
    await promise(store, caller, order())
    [claim] = await claimed(store)
    clock.advance(20)
    assert await extend(store, claim)
    clock.advance(LEASE_S - 0.000_001)
    assert await claimed(store) == []
    clock.advance(0.000_001)
    assert not await extend(store, claim)
    assert ids(await claimed(store)) == ["1"]


async def test_jobs_are_found_by_the_beginning_of_their_ids(store: Store) -> None:
    """In order of the databases, a digit is before every letter, and a hyphen may not count."""
    caller = await make_caller(store)
    other = await make_caller(store, sha256="other")
    made = [
        f"{first}-77aa-4abc-8def-0123456789ab" for first in ("0a0a0a0f", "0a0a0a0e", "fffffff9")
    ]
    await promise(store, caller, *map(order, made))
    await promise(store, other, order("0a0a0a0f-88bb-4abc-8def-0123456789ab"))
    for prefix, found in (
        ("0a0a0a0f", [made[0]]), ("0A0A0A0F-77", [made[0]]), ("0a0a0a0f-", [made[0]]),
        ("fffffff9-77aa", [made[2]]), (made[1], [made[1]]), ("0a0a0a0d", []),
        ("0a0a0a0", []), ("0a0a0a%", []), ("", []), ("x" * 50, []),
        ("--------", []), ("0-------", []), ("0a0a-0a0f", []), (f"{made[0]}0", []),
    ):  # fmt: skip
        jobs = await store.jobs(account_id=caller.account.id, prefix=prefix, limit=9)
        assert [job.id for job in jobs] == found, prefix
    assert len(await store.jobs(prefix="0a0a0a0f", limit=9)) == 2
