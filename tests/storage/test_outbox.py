"""One contract, every Store: what must reach somebody outside is kept until it is told how it went."""

from datetime import timedelta
from functools import partial
from typing import Any

import pytest
import trio
from msgspec.structs import replace

from mailprobe.storage.contract import LISTED_MAX, MESSAGES_KEPT_MAX, METER_REST_S, METER_SLOT_S
from mailprobe.storage.records import EPOCH, OutboxMessage
from mailprobe.storage.store import Store
from tests.storage.fixed_clock import (
    INSTANT,
    LEASE_S,
    NOON,
    RETENTION,
    Clock,
    another_key,
    claimed,
    granted,
    make_caller,
    order,
    promise,
    row,
)

SLOT = int((NOON - EPOCH).total_seconds())  # noon begins a slot
LATER = NOON + timedelta(hours=1)


async def post(store: Store, account_id: str, name: str = "n", **other: Any) -> bool:
    values: dict[str, Any] = {"kind": "alert", "body": b"\xff", "due_at": NOON} | other
    return await store.enqueue_message(
        values["kind"], account_id, name, values["body"], due_at=values["due_at"]
    )


async def taken(store: Store, kind: Any = "alert", limit: int = 100) -> list[OutboxMessage]:
    return await store.claim_messages(kind, limit=limit, lease_s=LEASE_S)


def names(messages: list[OutboxMessage]) -> list[str]:
    return [message.name for message in messages]


# posted


async def test_a_message_is_as_it_was_posted(store: Store, clock: Clock):
    account_id = (await make_caller(store)).account.id
    clock.advance(1)
    assert await post(store, account_id, "cap ü", body=b"\0\xff", due_at=LATER)
    [message] = await store.messages("alert", limit=10)
    assert message == OutboxMessage(
        message.id, "alert", account_id, "cap ü", b"\0\xff", 0, clock(), LATER
    )


async def test_a_message_is_posted_once_for_its_kind_account_and_name(store: Store, clock: Clock):
    one = (await make_caller(store)).account.id
    two = (await make_caller(store, sha256="other")).account.id
    assert await post(store, one)
    assert not await post(store, one, body=b"other", due_at=LATER)
    assert await post(store, one, "N")
    assert await post(store, two)
    assert await post(store, one, kind="meter")
    alerts = await store.messages("alert", limit=10)
    assert [(message.account_id, message.name) for message in alerts] == [
        (two, "n"),
        (one, "N"),
        (one, "n"),
    ]
    assert {(message.body, message.due_at) for message in alerts} == {(b"\xff", NOON)}
    assert len({message.id for message in alerts + await store.messages("meter", limit=10)}) == 4


async def test_a_message_that_was_sent_or_given_up_is_not_posted_again(store: Store):
    account_id = (await make_caller(store)).account.id
    for name in ("sent", "given up"):
        await post(store, account_id, name)
        [message] = await taken(store)
        await store.message_attempted(message, sent=name == "sent", due_at=None)
        assert not await post(store, account_id, name)
    assert await taken(store) == []


async def test_one_of_many_that_post_together_has_posted(store: Store):
    account_id = (await make_caller(store)).account.id
    posted = []

    async def post_once() -> None:
        posted.append(await post(store, account_id))

    async with trio.open_nursery() as nursery:
        for _ in range(60):
            nursery.start_soon(post_once)
    assert sum(posted) == 1


async def test_a_message_for_an_unknown_account_is_an_error(store: Store):
    with pytest.raises(KeyError):
        await post(store, "nobody")


# claimed


async def test_messages_are_claimed_when_they_are_due_those_due_longest_first(
    store: Store, clock: Clock
):
    account_id = (await make_caller(store)).account.id
    for name, seconds in {"c": 3, "a": 2, "b": 3, "d": 1}.items():
        await post(store, account_id, name, due_at=NOON + timedelta(seconds=seconds))
    assert await taken(store) == []
    clock.advance(2)
    assert names(await taken(store, limit=1)) == ["d"]
    assert names(await taken(store)) == ["a"]
    clock.advance(1 - 0.000_001)
    assert await taken(store) == []
    clock.advance(0.000_001)
    assert names(await taken(store)) == ["c", "b"]


@pytest.mark.parametrize(("limit", "count"), [(-1, 0), (0, 0), (2, 2), (9, 3)])
async def test_messages_are_claimed_up_to_the_limit(store: Store, limit: int, count: int):
    account_id = (await make_caller(store)).account.id
    for name in "abc":
        await post(store, account_id, name)
    assert len(await taken(store, limit=limit)) == count


async def test_a_claim_is_of_one_kind(store: Store):
    account_id = (await make_caller(store)).account.id
    await post(store, account_id, "alert")
    await post(store, account_id, "meter", kind="meter")
    assert names(await taken(store, "meter")) == ["meter"]
    assert names(await taken(store, "alert")) == ["alert"]


async def test_a_message_whose_lease_ends_is_claimed_again_with_a_higher_fence(
    store: Store, clock: Clock
):
    account_id = (await make_caller(store)).account.id
    await post(store, account_id)
    fences = []
    for _ in range(3):
        [message] = await taken(store)
        fences.append(message.fence)
        assert message.first_tried_at == NOON
        clock.advance(LEASE_S - 0.000_001)
        assert await taken(store) == []
        clock.advance(0.000_001)
    assert fences == [1, 2, 3]


async def test_a_claimed_message_is_shown_as_it_was_claimed(store: Store):
    account_id = (await make_caller(store)).account.id
    await post(store, account_id)
    messages = await taken(store)
    assert messages == await store.messages("alert", limit=10)


async def test_many_claimants_have_each_message_once(store: Store):
    account_id = (await make_caller(store)).account.id
    for number in range(30):
        await post(store, account_id, f"{number}")
    got: list[str] = []

    async def claim() -> None:
        got.extend(names(await taken(store, limit=3)))

    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(claim)
    assert len(got) == len(set(got)) == 30


# extended


async def test_a_message_is_extended_from_now_while_its_claim_lasts(store: Store, clock: Clock):
    account_id = (await make_caller(store)).account.id
    await post(store, account_id)
    [message] = await taken(store)
    clock.advance(LEASE_S - 1)
    assert await store.extend_message(message, lease_s=LEASE_S)
    clock.advance(LEASE_S - 0.000_001)
    assert await taken(store) == []
    clock.advance(0.000_001)
    assert not await store.extend_message(message, lease_s=LEASE_S)
    assert names(await taken(store)) == ["n"]


async def test_a_claim_that_has_its_outcome_or_is_not_the_last_is_not_extended(
    store: Store, clock: Clock
):
    account_id = (await make_caller(store)).account.id
    await post(store, account_id)
    [first] = await taken(store)
    clock.advance(LEASE_S)
    [second] = await taken(store)
    assert not await store.extend_message(first, lease_s=LEASE_S)
    assert await store.extend_message(second, lease_s=LEASE_S)
    assert await store.message_attempted(second, sent=False, due_at=LATER)
    assert not await store.extend_message(second, lease_s=LEASE_S)
    assert not await store.extend_message(replace(second, name="other", id="x"), lease_s=LEASE_S)


# tried


async def test_a_sent_message_is_never_claimed_again(store: Store, clock: Clock):
    account_id = (await make_caller(store)).account.id
    await post(store, account_id)
    [message] = await taken(store)
    clock.advance(3)
    assert await store.message_attempted(message, sent=True, due_at=None)
    clock.advance(days=3)
    assert await taken(store) == []
    [sent] = await store.messages("alert", limit=10)
    at = NOON + timedelta(seconds=3)
    assert sent == replace(message, due_at=None, tries=1, sent_at=at)


async def test_an_unsent_message_is_due_again_or_given_up(store: Store, clock: Clock):
    account_id = (await make_caller(store)).account.id
    await post(store, account_id)
    [message] = await taken(store)
    again = NOON + timedelta(seconds=9)
    assert await store.message_attempted(message, sent=False, due_at=again, error="503")
    assert await taken(store) == []
    clock.at = again
    [second] = await taken(store)
    assert second == replace(message, due_at=again, tries=1, fence=2, error="503")
    assert await store.message_attempted(second, sent=False, due_at=None, error="gone")
    [given_up] = await store.messages("alert", limit=10)
    assert given_up == replace(second, due_at=None, tries=2, error="gone")
    clock.advance(days=3)
    assert await taken(store) == []


async def test_a_message_that_is_sent_in_the_end_has_no_error(store: Store):
    account_id = (await make_caller(store)).account.id
    await post(store, account_id)
    [message] = await taken(store)
    await store.message_attempted(message, sent=False, due_at=NOON, error="503")
    [message] = await taken(store)
    await store.message_attempted(message, sent=True, due_at=None)
    assert [message.error for message in await store.messages("alert", limit=10)] == [None]


async def test_a_stale_claim_of_a_message_changes_nothing(store: Store, clock: Clock):
    account_id = (await make_caller(store)).account.id
    await post(store, account_id)
    [unclaimed] = await store.messages("alert", limit=10)
    assert not await store.message_attempted(unclaimed, sent=True, due_at=None)
    [stale] = await taken(store)
    clock.advance(LEASE_S)
    [message] = await taken(store)
    assert not await store.message_attempted(stale, sent=True, due_at=None)
    assert await store.messages("alert", limit=10) == [message]
    assert await store.message_attempted(message, sent=False, due_at=LATER, error="503")
    before = await store.messages("alert", limit=10)
    assert not await store.message_attempted(message, sent=True, due_at=None)
    assert await store.messages("alert", limit=10) == before


async def test_a_claim_that_has_ended_and_that_nobody_took_over_still_tells(
    store: Store, clock: Clock
):
    account_id = (await make_caller(store)).account.id
    await post(store, account_id)
    [message] = await taken(store)
    clock.advance(days=1)
    assert await store.message_attempted(message, sent=True, due_at=None)
    assert await taken(store) == []


async def test_recording_a_sent_message_as_due_again_is_an_error(store: Store):
    account_id = (await make_caller(store)).account.id
    await post(store, account_id)
    [message] = await taken(store)
    with pytest.raises(ValueError, match="not due again"):
        await store.message_attempted(message, sent=True, due_at=LATER)
    assert await store.messages("alert", limit=10) == [message]


# shown


async def test_messages_are_shown_newest_first(store: Store):
    one = (await make_caller(store)).account.id
    two = (await make_caller(store, sha256="other")).account.id
    for name, account_id in {"b": one, "c": two, "a": one}.items():
        await post(store, account_id, name)
    assert names(await store.messages("alert", limit=10)) == ["a", "c", "b"]
    assert names(await store.messages("alert", limit=2)) == ["a", "c"]
    assert names(await store.messages("alert", account_id=one, limit=10)) == ["a", "b"]
    assert await store.messages("alert", account_id="nobody", limit=10) == []
    assert await store.messages("alert", limit=-1) == []
    assert await store.messages("meter", limit=10) == []


async def test_no_more_messages_than_listed_max_are_shown(store: Store):
    account_id = (await make_caller(store)).account.id
    async with trio.open_nursery() as nursery:
        for number in range(LISTED_MAX + 1):
            nursery.start_soon(partial(post, store, account_id, f"{number}"))
    assert len(await store.messages("alert", limit=10 * LISTED_MAX)) == LISTED_MAX


# the meter


async def use(store: Store, caller: Any, count: int = 1, **other: Any) -> None:
    reservation: Any = await store.reserve(caller, count, granted, lease_s=60)
    await store.settle(reservation, [row(NOON, **other)] * count, emit_meter_event=True)


async def counts(store: Store, account_id: str | None = None) -> dict[int, int]:
    """By the seconds from noon to the slot's beginning."""
    messages = await store.messages("meter", account_id=account_id, limit=1_000)
    return {int(message.name) - SLOT: message.count for message in reversed(messages)}


async def test_billable_units_are_counted_in_the_message_of_their_slot(store: Store, clock: Clock):
    caller = await make_caller(store)
    clock.advance(3)
    await use(store, caller, 2)
    clock.advance(METER_SLOT_S - 3 - 0.000_001)
    await use(store, caller, 5)
    due_at = NOON + timedelta(seconds=METER_SLOT_S + METER_REST_S)
    made_at = NOON + timedelta(seconds=3)
    [message] = await store.messages("meter", limit=10)
    assert message == OutboxMessage(
        message.id, "meter", caller.account.id, f"{SLOT}", b"", 7, made_at, due_at
    )
    clock.advance(0.000_001)
    await use(store, caller)
    assert await counts(store) == {0: 7, METER_SLOT_S: 1}


async def test_a_meters_message_leaves_when_its_slot_has_been_over_for_a_moment(
    store: Store, clock: Clock
):
    caller = await make_caller(store)
    clock.advance(METER_SLOT_S - 0.000_001)
    await use(store, caller)
    clock.at = NOON + timedelta(seconds=METER_SLOT_S + METER_REST_S) - INSTANT
    assert await taken(store, "meter") == []
    clock.advance(0.000_001)
    assert [message.count for message in await taken(store, "meter")] == [1]


async def test_each_account_has_its_own_count(store: Store):
    one = await make_caller(store, "scale")
    second = await another_key(store, one.account.id, "second")
    two = await make_caller(store, sha256="other")
    await use(store, one)
    await use(store, second)
    await use(store, two)
    assert await counts(store, one.account.id) == {0: 2}
    assert await counts(store, two.account.id) == {0: 1}


async def test_only_what_is_billable_and_to_be_reported_is_posted(store: Store):
    caller = await make_caller(store)
    await use(store, caller, billable=False)
    reservation: Any = await store.reserve(caller, 1, granted, lease_s=60)
    await store.settle(reservation, [row(NOON)])
    assert await store.messages("meter", limit=10) == []
    reservation = await store.reserve(caller, 3, granted, lease_s=60)
    await store.settle(reservation, [row(NOON), row(NOON, billable=False)], emit_meter_event=True)
    assert await counts(store) == {0: 1}


async def test_the_caller_decides_whether_a_meter_event_is_recorded(store: Store):
    """The store posts what it is told, whatever the account's tier."""
    caller = await make_caller(store, "free")
    await use(store, caller)
    assert await counts(store) == {0: 1}
    other = await make_caller(store, "builder", sha256="other")
    reservation: Any = await store.reserve(other, 1, granted, lease_s=60)
    await store.settle(reservation, [row(NOON)], emit_meter_event=False)
    assert await counts(store) == {0: 1}


async def test_each_part_is_posted_once(store: Store):
    caller = await make_caller(store)
    reservation: Any = await store.reserve(caller, 5, granted, lease_s=60)
    for part in (1, 0, 1, 0):
        rows = [row(NOON)] * (part + 1)
        await store.settle(reservation, rows, part=part, ends=part == 1, emit_meter_event=True)
    assert await counts(store) == {0: 3}


async def test_a_job_is_posted_when_it_is_verified(store: Store, clock: Clock):
    caller = await make_caller(store)
    await promise(store, caller, *(order(f"{number}") for number in range(4)))
    clock.advance(METER_SLOT_S)
    for claim, emit_meter_event in zip(
        await claimed(store), (True, False, True, True), strict=True
    ):
        billable = claim.job.id != "3"
        await store.job_verified(
            claim, row(NOON, billable=billable), b"{}", emit_meter_event=emit_meter_event
        )
    assert await counts(store) == {METER_SLOT_S: 2}


async def test_units_after_a_count_was_claimed_go_to_the_next_slot(store: Store, clock: Clock):
    """A clock that is set back finds its slot closed: what was told stays as it was told."""
    caller = await make_caller(store)
    await use(store, caller, 2)
    clock.advance(METER_SLOT_S)
    await use(store, caller, 3)
    clock.advance(METER_SLOT_S + METER_REST_S)
    messages = await taken(store, "meter")
    await store.message_attempted(messages[0], sent=True, due_at=None)
    clock.at = NOON
    await use(store, caller, 5)
    await use(store, caller, 7)
    assert await counts(store) == {0: 2, METER_SLOT_S: 3, 2 * METER_SLOT_S: 12}
    assert await store.message_attempted(messages[1], sent=True, due_at=None)
    due_at = NOON + timedelta(seconds=3 * METER_SLOT_S + METER_REST_S)
    assert [message.due_at for message in await store.messages("meter", limit=1)] == [due_at]


async def test_a_clock_set_back_goes_to_the_first_slot_that_is_not_closed(
    store: Store, clock: Clock
):
    caller = await make_caller(store)
    await use(store, caller)
    clock.advance(2 * METER_SLOT_S)
    await use(store, caller)
    clock.advance(days=1)
    assert len(await taken(store, "meter")) == 2
    clock.at = NOON
    await use(store, caller, 4)
    assert await counts(store) == {0: 1, 2 * METER_SLOT_S: 1, METER_SLOT_S: 4}


async def test_a_claim_that_ended_has_closed_its_count(store: Store, clock: Clock):
    caller = await make_caller(store)
    await use(store, caller, 2)
    clock.advance(METER_SLOT_S + METER_REST_S)
    await taken(store, "meter")
    clock.advance(LEASE_S)
    clock.at = NOON
    await use(store, caller, 1)
    assert await counts(store) == {0: 2, METER_SLOT_S: 1}


async def test_accounts_do_not_close_each_others_slots(store: Store, clock: Clock):
    one = await make_caller(store)
    two = await make_caller(store, sha256="other")
    await use(store, one)
    clock.advance(METER_SLOT_S + METER_REST_S)
    await taken(store, "meter")
    clock.at = NOON
    await use(store, two)
    assert await counts(store, two.account.id) == {0: 1}


# upkeep


@pytest.mark.parametrize("kind", MESSAGES_KEPT_MAX)
@pytest.mark.parametrize("sent", [True, False])
async def test_a_message_that_is_past_all_work_is_kept_for_its_time(
    store: Store, clock: Clock, kind: Any, sent: bool
):
    account_id = (await make_caller(store)).account.id
    await post(store, account_id, kind=kind)
    [message] = await taken(store, kind)
    await store.message_attempted(message, sent=sent, due_at=None)
    clock.at = NOON + MESSAGES_KEPT_MAX[kind] - INSTANT
    await store.apply_retention(RETENTION)
    assert not await post(store, account_id, kind=kind)
    clock.advance(0.000_001)
    await store.apply_retention({})
    assert await store.messages(kind, limit=10) == []
    assert await post(store, account_id, kind=kind)


async def test_a_message_that_waits_is_kept_however_old(store: Store, clock: Clock):
    account_id = (await make_caller(store)).account.id
    await post(store, account_id)
    clock.advance(days=1_000)
    await store.apply_retention(RETENTION)
    assert names(await taken(store)) == ["n"]
    await store.apply_retention(RETENTION)
    assert names(await store.messages("alert", limit=10)) == ["n"]
