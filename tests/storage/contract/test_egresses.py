"""What a fleet knows of its egresses: blocks of a day, rests, trials and replies."""

from datetime import timedelta
from typing import Any

from mailprobe.storage.egresses import (
    EGRESS_KEPT,
    TRIAL_EVERY,
    BlockRequest,
    DayUse,
    EgressBoard,
    EgressCount,
    EgressReport,
    EgressRest,
    LatestReply,
    ReplyCount,
)
from mailprobe.storage.records import COMMAND_LINE
from mailprobe.storage.store import Store
from tests.storage.fixed_clock import RETENTION, Clock

DAY = Clock()().date()
TOMORROW = DAY + timedelta(days=1)


async def block(store: Store, egress: str, wanted: int, limit: int = 500, day: Any = DAY) -> int:
    report = EgressReport(day, blocks=[BlockRequest(egress, wanted, limit)])
    return (await store.report_egresses(report)).blocks[egress]


async def test_blocks_of_a_day_never_exceed_its_limit(store: Store) -> None:
    assert [await block(store, "a", 200) for _ in range(4)] == [200, 200, 100, 0]
    assert await block(store, "b", 200) == 200
    assert await block(store, "a", -50) == -50
    assert [await block(store, "a", 40) for _ in range(2)] == [40, 10]
    assert await block(store, "a", 40, day=TOMORROW) == 40
    assert (await store.egresses(DAY)).uses == {"a": DayUse(500, 0), "b": DayUse(200, 0)}


async def test_a_limit_that_was_lowered_grants_nothing_more(store: Store) -> None:
    assert await block(store, "a", 400) == 400
    assert await block(store, "a", 10, limit=300) == 0
    assert await block(store, "a", -1000) == -400  # never below nothing


async def test_addresses_add_up_by_day_and_egress(store: Store) -> None:
    for _ in range(2):
        await store.report_egresses(
            EgressReport(DAY, [EgressCount("b", TOMORROW, 1), EgressCount("a", DAY, 7)])
        )
    assert (await store.egresses(DAY)).uses == {"a": DayUse(0, 14)}
    assert (await store.egresses(TOMORROW)).uses == {"b": DayUse(0, 2)}


async def test_replies_count_their_last_day_alone(store: Store, clock: Clock) -> None:
    async def replied(day: Any, times: int) -> None:
        count = ReplyCount("a", "google", "blocked_us", day, times)
        await store.report_egresses(EgressReport(day, replies=[count]))

    began = clock()
    await replied(DAY, 2)
    await replied(DAY, 3)
    kind = ("a", "google", "blocked_us")
    assert await store.egress_replies() == [LatestReply(*kind, DAY, 5, began)]
    clock.advance(days=1)
    await replied(TOMORROW, 1)
    await replied(DAY, 9)  # of a process that was late
    assert await store.egress_replies() == [LatestReply(*kind, TOMORROW, 1, clock())]
    clock.advance(days=EGRESS_KEPT.days + 1)
    await store.report_egresses(EgressReport(DAY, [EgressCount("a", DAY, 7)]))
    await store.apply_retention(RETENTION)
    assert await store.egress_replies() == []
    assert await store.egresses(DAY) == EgressBoard()


async def test_one_process_at_a_time_tries_a_quarantined_egress(store: Store, clock: Clock) -> None:
    wants = EgressReport(DAY, trials={"a", "b"})
    quarantined_at = clock()
    assert (await store.report_egresses(wants)).trials == set()
    first = await store.report_egresses(EgressReport(DAY, quarantined={"a": "refused"}))
    assert first.board.rests == {
        "a": EgressRest(None, quarantined_at, "refused", quarantined_at + TRIAL_EVERY)
    }
    assert (await store.report_egresses(wants)).trials == set()
    clock.advance(TRIAL_EVERY.total_seconds())
    assert [(await store.report_egresses(wants)).trials for _ in range(2)] == [{"a"}, set()]
    again = await store.report_egresses(EgressReport(DAY, quarantined={"a": "again"}))
    assert again.board.rests["a"].quarantined_at == quarantined_at
    released = await store.report_egresses(EgressReport(DAY, released={"a"}))
    assert released.board == EgressBoard()


async def test_a_trial_that_a_fast_clock_set_is_not_waited_for(store: Store, clock: Clock) -> None:
    began = clock()
    clock.advance(days=30)
    await store.report_egresses(EgressReport(DAY, quarantined={"a": "refused"}))
    clock.at = began
    assert (await store.report_egresses(EgressReport(DAY, trials={"a"}))).trials == {"a"}


async def test_a_pause_ends_by_the_operator_alone_and_is_recorded(
    store: Store, clock: Clock
) -> None:
    account = await store.create_account("ann@shop.test", "own")
    by = COMMAND_LINE
    assert await store.pause_egress("a", account_id=account.id, by=by)
    assert not await store.pause_egress("a", account_id=account.id, by=by)
    both = EgressReport(DAY, quarantined={"a": "refused"})
    await store.report_egresses(both)
    await store.report_egresses(EgressReport(DAY, released={"a"}))
    assert (await store.egresses(DAY)).rests == {"a": EgressRest(clock())}
    clock.advance(TRIAL_EVERY.total_seconds())
    await store.report_egresses(both)
    clock.advance(TRIAL_EVERY.total_seconds())
    assert (await store.report_egresses(EgressReport(DAY, trials={"a"}))).trials == set()
    assert await store.resume_egress("a", account_id=account.id, by=by)
    assert not await store.resume_egress("a", account_id=account.id, by=by)
    assert (await store.egresses(DAY)).rests == {}
    acts = [(entry.act.kind, entry.act.subject) for entry in await store.audit(account.id)][:2]
    assert sorted(acts) == [("egress_paused", "a"), ("egress_resumed", "a")]
