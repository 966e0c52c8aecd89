"""Links to the report of a list end by themselves, by hand, and with the list."""

import pytest

from mailprobe.storage.list_jobs.shared_reports import REPORTS_MAX, SharedReport, TooManyReports
from mailprobe.storage.store import Store
from tests.storage.contract.list_calls import running
from tests.storage.fixed_clock import Clock, make_caller


async def test_a_link_shows_its_list_until_its_end(store: Store, clock: Clock) -> None:
    await running(store, await make_caller(store), 1)
    made = await store.share_report("list-1", "hash", for_s=60)
    assert made == SharedReport(made.number, clock(), made.until)
    assert await store.list_of_report("hash") == ("list-1", made.until)
    assert await store.list_of_report("another") is None
    assert await store.shared_reports("list-1") == [made]
    clock.advance(60)
    assert await store.list_of_report("hash") is None
    assert await store.shared_reports("list-1") == []
    await store.apply_retention({"scale": 30})
    assert await store.share_report("list-1", "hash", for_s=60)


async def test_a_link_is_ended_by_its_list_alone(store: Store, clock: Clock) -> None:
    caller = await make_caller(store)
    await running(store, caller, 1)
    await running(store, caller, 1, id="list-2")
    made = await store.share_report("list-1", "hash", for_s=60)
    assert not await store.end_report("list-2", made.number)
    assert await store.end_report("list-1", made.number)
    assert not await store.end_report("list-1", made.number)
    assert await store.list_of_report("hash") is None


async def test_a_list_has_a_number_of_links(store: Store, clock: Clock) -> None:
    await running(store, await make_caller(store), 1)
    for number in range(REPORTS_MAX):
        await store.share_report("list-1", f"hash {number}", for_s=60)
    with pytest.raises(TooManyReports):
        await store.share_report("list-1", "one more", for_s=60)
    clock.advance(60)
    await store.share_report("list-1", "one more", for_s=60)
    with pytest.raises(KeyError):
        await store.share_report("no list", "hash", for_s=60)


async def test_links_go_with_their_list_and_their_account(store: Store, clock: Clock) -> None:
    caller = await make_caller(store)
    for id in ("list-1", "list-2"):
        await running(store, caller, 1, id=id)
        await store.share_report(id, id, for_s=60)
    await store.delete_list("list-1")
    assert await store.list_of_report("list-1") is None
    assert await store.list_of_report("list-2") is not None
    await store.delete_account(caller.account.id)
    assert await store.list_of_report("list-2") is None
