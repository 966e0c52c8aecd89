"""The queues of the store: what is due in each, for how long, and what was last sent."""

from datetime import timedelta

from mailprobe.storage.store import Store
from tests.storage.fixed_clock import NOON, Clock, make_caller


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
