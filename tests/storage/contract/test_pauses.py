"""Pauses last until they are ended or their time is over; machines are known while they are seen."""

from datetime import timedelta

import pytest

from mailprobe.storage.pauses import MACHINES_KEPT, WHY_CHARACTERS_MAX, Pause, TooManyPauses
from mailprobe.storage.records import COMMAND_LINE
from mailprobe.storage.store import Store
from tests.storage.fixed_clock import Clock, make_caller


async def test_a_pause_lasts_until_it_is_ended_or_its_time_is_over(
    store: Store, clock: Clock
) -> None:
    assert await store.pauses() == []
    at = clock()
    first = await store.pause("operator", "google", for_s=60, why="incident 7")
    assert first == Pause("operator", "google", at, at + timedelta(seconds=60), "incident 7")
    other = await store.pause("domain", "shop.test")
    assert await store.pauses() == [other, first]
    clock.advance(60)
    assert await store.pauses() == [other]
    assert not await store.unpause("operator", "google")
    assert not await store.unpause("operator", "shop.test")
    assert await store.unpause("domain", "shop.test")
    assert not await store.unpause("domain", "shop.test")
    assert await store.pauses() == []


async def test_a_second_pause_replaces_the_first(store: Store, clock: Clock) -> None:
    await store.pause("domain", "shop.test", for_s=60, why="one")
    clock.advance(50)
    again = await store.pause("domain", "shop.test", why="two")
    clock.advance(50)
    assert await store.pauses() == [again]


async def test_an_accounts_pause_is_in_its_audit_log_and_goes_with_it(store: Store) -> None:
    account_id = (await make_caller(store)).account.id
    await store.pause("account", account_id, by=COMMAND_LINE)
    await store.pause("domain", "shop.test", by=COMMAND_LINE)
    await store.unpause("account", account_id, by=COMMAND_LINE)
    entries = await store.audit(account_id)
    kinds = [(entry.act.kind, entry.by) for entry in entries[:2]]
    assert kinds == [("lists_unpaused", COMMAND_LINE), ("lists_paused", COMMAND_LINE)]
    with pytest.raises(KeyError):
        await store.pause("account", "no such account")
    await store.pause("account", account_id)
    await store.delete_account(account_id)
    assert [each.kind for each in await store.pauses()] == ["domain"]


async def test_pauses_are_bounded(
    store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mailprobe.storage.pauses.PAUSES_MAX", 3)
    for name in "abc":
        await store.pause("domain", f"{name}.test", for_s=60)
    with pytest.raises(TooManyPauses):
        await store.pause("domain", "d.test")
    await store.pause("domain", "c.test", why="replaced")
    clock.advance(60)
    await store.pause("domain", "d.test")
    with pytest.raises(ValueError, match="characters"):
        await store.pause("domain", "d.test", why="w" * (WHY_CHARACTERS_MAX + 1))


async def test_a_machine_is_known_for_a_day_after_it_was_seen(store: Store, clock: Clock) -> None:
    await store.note_machine("a", "1.0")
    clock.advance(MACHINES_KEPT.total_seconds() / 2)
    await store.note_machine("b", "1.0")
    await store.note_machine("b", "1.1")
    found = [(each.name, each.version) for each in await store.machines()]
    assert found == [("a", "1.0"), ("b", "1.1")]
    clock.advance(MACHINES_KEPT.total_seconds() / 2 + 1)
    assert [each.name for each in await store.machines()] == ["b"]
    await store.note_machine("c", "1.1")
