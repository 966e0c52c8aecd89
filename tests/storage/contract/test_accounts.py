"""Every store: accounts and their keys."""

from datetime import date, timedelta
from typing import Any

import pytest
import trio
from msgspec.structs import replace

from mailprobe.storage.accounts import NewKey
from mailprobe.storage.contract import WINDOW, KeyCreationTooFast, KeyLimitReached
from mailprobe.storage.records import (
    COMMAND_LINE,
    Actor,
    Caller,
    Ledger,
    Reservation,
    Tier,
    Window,
)
from mailprobe.storage.store import Store
from tests.storage.contract.calls import keep_key
from tests.storage.fixed_clock import (
    NOON,
    RETENTION,
    Clock,
    another_key,
    make_caller,
    order,
    promise,
    use,
)

# accounts


@pytest.mark.parametrize("tier", ["free", "own"])
async def test_an_account_is_as_it_was_made(store: Store, clock: Clock, tier: Tier):
    account = await store.create_account("ann@shop.test", tier)
    assert (account.email, account.tier, account.created_at) == ("ann@shop.test", tier, NOON)
    assert account.alerts is True
    assert account.hard_cap_micros is None
    assert account.current_period_end is None
    assert await store.account(account.id) == account


async def test_of_several_first_accounts_at_once_one_is_made(store: Store):
    made: list[Any] = []

    async def begin(name: str) -> None:
        keys = [NewKey("standard", f"{name} live", "sk_live_"), NewKey("provisioning", name, "sk")]
        made.append(await store.create_first_account(f"{name}@shop.test", "free", keys))

    async with trio.open_nursery() as nursery:
        for name in "abcd":
            nursery.start_soon(begin, name)
    [account] = [each for each in made if each]
    assert await store.accounts() == [account]
    kinds = [key.kind for key in await store.keys(account.id)]
    assert kinds == ["standard", "provisioning"]


async def test_a_challenge_is_used_once_until_it_ends(store: Store, clock: Clock):
    until = clock() + timedelta(seconds=120)
    assert await store.use_challenge("a", until)
    assert not await store.use_challenge("a", until)
    assert await store.use_challenge("b", until)


async def test_an_ended_session_is_remembered_until_its_cookie_ends(store: Store, clock: Clock):
    caller, until = await make_caller(store), clock() + timedelta(hours=12)
    account_id = caller.account.id

    async def is_open(name: str) -> bool:
        return await store.find_sign_in(name, account_id, caller.key.id) is not None

    for _ in range(2):
        await store.end_sign_in("s", until, account_id, COMMAND_LINE)
    assert [entry.act.kind for entry in await store.audit(account_id)].count("signed_out") == 1
    await store.apply_retention(RETENTION)
    assert not await is_open("s")
    assert await is_open("other")
    clock.advance(12 * 3600)
    await store.apply_retention(RETENTION)
    assert await is_open("s")


async def test_accounts_are_listed_oldest_first(store: Store):
    made = [await store.create_account(f"{name}@shop.test", "free") for name in "cab"]
    assert await store.accounts() == made


async def test_an_account_that_is_not_there_is_none(store: Store):
    assert await store.account("no such id") is None
    assert await store.change_account("no such id", tier="scale") is None
    assert await store.keys("no such id") == []
    assert await store.days("no such id", date.min, date.max) == []
    assert await store.usage("no such id", limit=10) == []


async def test_every_field_of_an_account_can_be_changed_and_comes_back_as_it_was(store: Store):
    account = await store.create_account("ann@shop.test", "free")
    odd = NOON + timedelta(microseconds=123_457)
    changes: dict[str, Any] = {
        "email": "bob@shop.test",
        "tier": "scale",
        "soft_cap_micros": 0,
        "hard_cap_micros": 2**60,
        "alerts": False,
        "subscription_status": "active",
        "current_period_start": odd,
        "current_period_end": odd + timedelta(days=30),
        "cancel_at_period_end": False,
        "canceled_at": odd,
        "cancel_at": odd,
        "trial_start": odd,
        "trial_end": odd,
        "billing_cycle_anchor": odd,
        "customer_id": "cus_ü",
    }
    changed = await store.change_account(account.id, **changes)
    assert changed == replace(account, **changes)
    assert await store.account(account.id) == changed
    back = await store.change_account(account.id, soft_cap_micros=None, cancel_at=None)
    assert back == replace(account, **changes | {"soft_cap_micros": None, "cancel_at": None})


@pytest.mark.parametrize("name", ["id", "created_at", "balance", "tier = 'scale' --"])
async def test_changing_an_unknown_field_of_an_account_is_an_error(store: Store, name: str):
    account = await store.create_account("ann@shop.test", "free")
    changes: Any = {name: "x"}
    with pytest.raises(TypeError):
        await store.change_account(account.id, **changes)
    assert await store.account(account.id) == account


async def test_a_change_is_seen_by_the_next_request(store: Store):
    caller = await make_caller(store)
    await store.change_account(caller.account.id, hard_cap_micros=5)
    again = await store.caller("hash")
    assert again
    assert again.account.hard_cap_micros == 5


async def test_an_account_is_found_by_who_it_is_to_the_billing_provider(store: Store):
    account = await store.create_account("ann@shop.test", "free")
    other = await store.create_account("bob@shop.test", "free")
    assert await store.account_of_customer("cus_1") is None
    changed = await store.change_account(account.id, customer_id="cus_1")
    assert changed is not None
    assert await store.account_of_customer("cus_1") == changed
    assert await store.account_of_customer("CUS_1") is None
    with pytest.raises(ValueError, match="another account"):
        await store.change_account(other.id, tier="scale", customer_id="cus_1")
    assert await store.account(other.id) == other
    assert await store.change_account(account.id, customer_id="cus_1") == changed
    assert await store.change_account("no such id", customer_id="cus_1") is None
    await store.change_account(account.id, customer_id=None)
    assert await store.account_of_customer("cus_1") is None
    assert await store.change_account(other.id, customer_id="cus_1")


# keys


async def test_a_key_is_found_by_its_hash_with_its_account(store: Store):
    account = await store.create_account("ann@shop.test", "free")
    key = await keep_key(store, account.id, label="shop ü\0", sha256="h")
    assert (key.account_id, key.kind, key.label, key.prefix) == (
        account.id,
        "standard",
        "shop ü\0",
        "sk_live_abcd",
    )
    caller = await store.caller("h")
    assert caller
    assert (caller.account, caller.key) == (account, key)
    assert await store.caller("H") is None


async def test_active_keys_of_both_kinds_are_listed_oldest_first(store: Store):
    account = await store.create_account("ann@shop.test", "free")
    other = await store.create_account("bob@shop.test", "free")
    first = await keep_key(store, account.id, "provisioning")
    second = await keep_key(store, account.id)
    gone = await keep_key(store, account.id)
    await keep_key(store, other.id, sha256="other's")
    await store.revoke_key(account.id, gone.id)
    assert await store.keys(account.id) == [first, second]


async def test_only_active_standard_keys_are_bounded(store: Store):
    account = await store.create_account("ann@shop.test", "free")
    await keep_key(store, account.id, "provisioning", keys_max=0)
    first = await keep_key(store, account.id, keys_max=2)
    await keep_key(store, account.id, keys_max=2)
    with pytest.raises(KeyLimitReached):
        await keep_key(store, account.id, keys_max=2)
    await keep_key(store, account.id, "provisioning", keys_max=2)
    await store.revoke_key(account.id, first.id)
    await keep_key(store, account.id, keys_max=2, sha256="a place again")


async def test_test_keys_are_counted_apart(store: Store):
    account = await store.create_account("ann@shop.test", "free")
    await keep_key(store, account.id, keys_max=1)
    await keep_key(store, account.id, "test", keys_max=1)
    for kind in ("standard", "test"):
        with pytest.raises(KeyLimitReached):
            await keep_key(store, account.id, kind, keys_max=1)


async def test_parallel_creations_never_pass_the_bound(store: Store):
    account = await store.create_account("ann@shop.test", "free")
    refused = 0

    async def create(number: int) -> None:
        nonlocal refused
        try:
            await keep_key(store, account.id, keys_max=2, sha256=f"{number}")
        except KeyLimitReached:
            refused += 1

    async with trio.open_nursery() as nursery:
        for number in range(20):
            nursery.start_soon(create, number)
    assert refused == 18
    assert len(await store.keys(account.id)) == 2


async def test_a_key_needs_an_account_and_a_hash_of_its_own(store: Store):
    account = await store.create_account("ann@shop.test", "free")
    with pytest.raises(KeyError):
        await store.create_key(
            "nobody", "standard", None, sha256="h", prefix="sk_live_abcd", keys_max=None
        )
    await keep_key(store, account.id, sha256="h")
    with pytest.raises(ValueError, match="kept already"):
        await keep_key(store, account.id, sha256="h")
    assert len(await store.keys(account.id)) == 1


async def test_a_revoked_key_fails_at_once_and_for_good(store: Store):
    caller = await make_caller(store)
    assert await store.revoke_key(caller.account.id, caller.key.id)
    assert await store.caller("hash") is None
    assert not await store.revoke_key(caller.account.id, caller.key.id)
    assert await store.keys(caller.account.id) == []


async def test_a_publishable_key_keeps_its_origins_and_its_rate(store: Store):
    account = await store.create_account("ann@shop.test", "free")
    bounds: Any = {"origins": ("https://shop.test", "http://localhost:8000"), "rate_per_min": 30}
    form = await keep_key(store, account.id, "form", sha256="f", **bounds)
    secret = await keep_key(store, account.id, sha256="s")
    caller = await store.caller("f")
    assert caller is not None
    assert caller.key == form
    assert [key.origins for key in await store.keys(account.id)] == [bounds["origins"], ()]
    assert (form.rate_per_min, secret.rate_per_min) == (30, None)
    for origin, known in [
        ("https://shop.test", True),
        ("http://localhost:8000", True),
        ("https://shop.tes", False),
        ("https://shop.test:8443", False),
        ("https://shop.%", False),
        ("https://shop_test", False),
        ("", False),
        (" ", False),
        ("null", False),
    ]:
        assert await store.is_form_origin(origin) is known, origin
    await store.revoke_key(account.id, form.id)
    assert not await store.is_form_origin("https://shop.test")


async def test_a_keys_maker_is_kept(store: Store):
    account = await store.create_account("ann@shop.test", "free")
    made = [
        await keep_key(store, account.id, by=by)
        for by in (Actor("session"), Actor("command_line"), Actor("key"))
    ]
    assert await store.keys(account.id) == made
    assert [key.made_by for key in made] == ["session", "command_line", "key"]
    assert [key.used_at for key in made] == [None] * 3


async def test_a_keys_last_use_is_written_once_in_an_hour(store: Store, clock: Clock):
    one = await make_caller(store)
    two = await another_key(store, one.account.id, "two")
    ids = [one.key.id, two.key.id]

    async def used_at() -> list[Any]:
        return [key.used_at for key in await store.keys(one.account.id)]

    await store.note_key_uses([two.key.id, "no such id"])
    assert await used_at() == [None, NOON]
    clock.advance(3599)
    await store.note_key_uses(ids)
    assert await used_at() == [clock(), NOON]
    clock.advance(1)
    await store.note_key_uses(ids)
    assert await used_at() == [NOON + timedelta(seconds=3599), clock()]
    caller = await store.caller("two")
    assert caller is not None
    assert caller.key.used_at == clock()
    clock.advance(-7200)  # what a clock wrote that was ahead is corrected
    await store.note_key_uses(ids)
    assert await used_at() == [clock(), clock()]


async def test_an_account_cannot_revoke_another_accounts_key(store: Store):
    caller = await make_caller(store)
    other = await store.create_account("bob@shop.test", "free")
    assert not await store.revoke_key(other.id, caller.key.id)
    assert not await store.revoke_key("no such id", caller.key.id)
    assert not await store.revoke_key(caller.account.id, "no such id")
    assert await store.caller("hash")
    assert await store.revoke_key(None, caller.key.id)


# keys that come and go


async def test_an_account_makes_so_many_keys_in_a_minute(store: Store, clock: Clock):
    caller = await make_caller(store)
    account_id = caller.account.id
    made = 0

    async def make(kind: Any = "standard", keys_per_minute_max: int | None = 3) -> None:
        nonlocal made
        made += 1
        key = await store.create_key(
            account_id,
            kind,
            None,
            sha256=f"new {made}",
            prefix="",
            keys_max=5,
            keys_per_minute_max=keys_per_minute_max,
        )
        await store.revoke_key(account_id, key.id)

    await make()
    clock.advance(10)
    await make()  # with the first of all, which make_caller() made, it is the third
    for _ in range(2):
        with pytest.raises(KeyCreationTooFast) as early:
            await make()
        assert (early.value.asked_at, early.value.reset_at) == (clock(), NOON + WINDOW)
    await make("provisioning")
    await make(keys_per_minute_max=None)
    clock.advance(49.999_999)
    with pytest.raises(KeyCreationTooFast):
        await make()
    clock.advance(20)
    await make()


async def test_units_of_all_keys_weigh_until_a_minute_after_they_were_revoked(
    store: Store, clock: Clock
):
    """A fresh key in a revoked one's place bought a fresh minute."""
    one = await make_caller(store)
    account_id = one.account.id
    seen: list[tuple[int, int, int, tuple[Any, ...]]] = []

    def observe(ledger: Ledger) -> str:
        window = ledger.account_window
        units = window.units if isinstance(window, Window) else sum(n for _, n in window)
        seen.append((ledger.keys, ledger.window_units, units, tuple(window)))
        return "no"

    await use(store, one, clock(), 3)
    clock.advance(10)
    await store.revoke_key(account_id, one.key.id)
    two = await another_key(store, account_id, "second")
    await store.create_key(account_id, "provisioning", None, sha256="p", prefix="", keys_max=None)
    other = await make_caller(store, sha256="other")
    await use(store, other, clock(), 7)
    await use(store, two, clock(), 2)
    await store.reserve(two, 1, observe, lease_s=60)
    later = NOON + timedelta(seconds=10)
    assert seen.pop() == (2, 2, 5, ((NOON, 3), (later, 2)))
    shown = await store.ledger(two)
    assert (shown.keys, tuple(shown.account_window)) == (2, ((NOON, 3), (later, 2)))
    clock.advance(50)
    await store.reserve(two, 1, observe, lease_s=60)
    assert seen.pop() == (2, 2, 2, ((later, 2),))
    clock.advance(10)
    await store.reserve(two, 1, observe, lease_s=60)
    assert seen.pop() == (1, 0, 0, ())


async def test_units_reserved_together_count_for_all_keys_of_an_account(store: Store):
    one = await make_caller(store)
    callers = [one, *[await another_key(store, one.account.id, f"{n}") for n in range(3)]]
    outcomes: list[Any] = []

    def weigh(ledger: Ledger) -> str | None:
        units = getattr(ledger.account_window, "units", None)
        if units is None:
            units = sum(count for _, count in ledger.account_window)
        return "too many" if units + 1 > 10 else None

    async def reserve(caller: Caller) -> None:
        outcomes.append(await store.reserve(caller, 1, weigh, lease_s=60))

    async with trio.open_nursery() as nursery:
        for number in range(40):
            nursery.start_soon(reserve, callers[number % 4])
    assert sum(isinstance(outcome, Reservation) for outcome in outcomes) == 10


async def test_revoked_keys_go_when_they_are_past_retention(store: Store, clock: Clock):
    caller = await make_caller(store, "free")
    account_id = caller.account.id
    unused = await another_key(store, account_id, "unused")
    with_job = await another_key(store, account_id, "with a job")
    await promise(store, with_job, order("1"))
    for one in (unused, with_job):
        await store.revoke_key(account_id, one.key.id)
    await another_key(store, account_id, "last")
    clock.advance(6 * 86_400)
    await store.apply_retention(RETENTION)
    with pytest.raises(ValueError, match="kept already"):
        await another_key(store, account_id, "unused")
    clock.advance(10 * 86_400)
    await store.apply_retention(RETENTION)
    assert await store.caller("hash")
    again = await another_key(store, account_id, "unused")
    assert again.key.id != unused.key.id
    (claim,) = await store.claim_jobs("verify", limit=5, each_max=5, lease_s=60)
    assert claim.caller.key.id == with_job.key.id
