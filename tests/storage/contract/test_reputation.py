"""The reputation: counted by day, added up over all processes, kept for a year."""

from datetime import date, timedelta

from mailprobe.storage.reputation import KEPT_MAX, ReputationDay
from mailprobe.storage.store import Store

DAY = date(2026, 3, 14)


async def test_counts_of_a_day_add_up(store: Store) -> None:
    assert await store.reputation(DAY) == []
    await store.count_reputation(ReputationDay(DAY, 100, 3))
    await store.count_reputation(ReputationDay(DAY, 10, 0))
    await store.count_reputation(ReputationDay(DAY + timedelta(days=1), 5, 5))
    assert await store.reputation(DAY) == [
        ReputationDay(DAY, 110, 3),
        ReputationDay(DAY + timedelta(days=1), 5, 5),
    ]
    assert [each.day for each in await store.reputation(DAY + timedelta(days=1))] == [
        DAY + timedelta(days=1)
    ]


async def test_old_days_are_forgotten(store: Store) -> None:
    await store.count_reputation(ReputationDay(DAY, 1, 0))
    await store.count_reputation(ReputationDay(DAY + KEPT_MAX, 1, 0))
    assert len(await store.reputation(DAY)) == 2
    await store.count_reputation(ReputationDay(DAY + KEPT_MAX + timedelta(days=1), 1, 0))
    assert len(await store.reputation(DAY)) == 2
