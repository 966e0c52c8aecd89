"""What the operator sees: reputation by day and operator, accounts, the first one, and queues."""

from datetime import date, timedelta

from mailprobe.storage.egresses import REPUTATION_KEPT, ReputationDay
from mailprobe.storage.store import Store
from tests.storage.fixed_clock import NOON, Clock, make_caller

DAY = date(2026, 3, 14)


async def test_counts_of_a_day_add_up_by_operator(store: Store) -> None:
    assert await store.reputation(DAY) == []
    await store.count_reputation(
        [ReputationDay(DAY, "google", 100, 3), ReputationDay(DAY, "other", 7, 0)]
    )
    await store.count_reputation([ReputationDay(DAY, "google", 10, 0)])
    await store.count_reputation([ReputationDay(DAY + timedelta(days=1), "google", 5, 5)])
    assert await store.reputation(DAY) == [
        ReputationDay(DAY, "google", 110, 3),
        ReputationDay(DAY, "other", 7, 0),
        ReputationDay(DAY + timedelta(days=1), "google", 5, 5),
    ]
    assert [each.day for each in await store.reputation(DAY + timedelta(days=1))] == [
        DAY + timedelta(days=1)
    ]


async def test_old_days_are_forgotten(store: Store) -> None:
    for after in (timedelta(), REPUTATION_KEPT, REPUTATION_KEPT + timedelta(days=1)):
        await store.count_reputation([ReputationDay(DAY + after, "other", 1, 0)])
        assert len(await store.reputation(DAY)) == (1 if after == timedelta() else 2)


async def test_accounts_are_found_by_address_and_id_newest_first(store: Store) -> None:
    made = [
        await store.create_account(f"{name}@shop.test", "free") for name in ("Ann", "bob", "eve")
    ]
    await store.delete_account(made[2].id)
    found = {
        text: [each.id for each in await store.find_accounts(text, limit=10)]
        for text in ("", "ANN@", "%", made[1].id)
    }
    ann, bob = made[0].id, made[1].id
    assert found == {"": [bob, ann], "ANN@": [ann], "%": [], bob: [bob]}
    assert [each.id for each in await store.find_accounts(skip=1, limit=1)] == [ann]


async def test_the_first_account_stays_the_first(store: Store) -> None:
    assert await store.first_account_id() is None
    first = (await make_caller(store)).account
    await make_caller(store, sha256="other")
    assert await store.first_account_id() == first.id
    await store.delete_account(first.id)
    assert await store.first_account_id() == first.id


async def test_an_empty_store_has_empty_queues(store: Store) -> None:
    states = await store.queues()
    assert {each.name for each in states} == {"lists", "jobs", "callbacks", "alert", "meter"}
    assert {(each.due, each.oldest_s, each.last_sent_at) for each in states} == {(0, 0.0, None)}


async def test_a_message_is_due_until_it_is_claimed_and_its_sending_is_known(
    store: Store, clock: Clock
) -> None:
    caller = await make_caller(store)
    await store.enqueue_message("alert", caller.account.id, "a", b"", due_at=NOON)
    clock.advance(90)
    states = {each.name: each for each in await store.queues()}
    assert (states["alert"].due, states["alert"].oldest_s) == (1, 90.0)
    assert (states["meter"].due, states["jobs"].due) == (0, 0)
    [message] = await store.claim_messages("alert", limit=5, lease_s=60)
    states = {each.name: each for each in await store.queues()}
    assert (states["alert"].due, states["alert"].last_sent_at) == (0, None)
    await store.message_attempted(message, sent=True, due_at=None)
    states = {each.name: each for each in await store.queues()}
    assert states["alert"].last_sent_at == NOON + timedelta(seconds=90)
