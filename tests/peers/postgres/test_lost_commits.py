"""A connection that breaks during a commit: the transaction is done exactly once."""

import os
import socket
import time
from typing import Any

import psycopg
import pytest

from mailprobe.storage.base import call_queue
from mailprobe.storage.contract import OutcomeUnknown
from mailprobe.storage.postgres.driver.server import TransactionConnection
from mailprobe.storage.records import Reservation
from mailprobe.storage.store import Store
from tests.storage.contract import list_calls as lists
from tests.storage.contract.calls import ANSWER, begin
from tests.storage.fixed_clock import (
    NOON,
    claimed,
    granted,
    make_caller,
    order,
    promise,
    row,
    use,
)


def cut_commits(monkeypatch: pytest.MonkeyPatch, *, committed: bool, times: int = 1) -> list[Any]:
    """Break the connection at the next `times` commits: after the commit, or before it was sent.

    Returns the sessions that were cut, a list that grows.
    """
    commit = TransactionConnection.commit
    cuts: list[Any] = []

    def commit_and_break(self: TransactionConnection) -> None:
        if len(cuts) >= times:
            commit(self)
            return
        cuts.append(self)
        self.committing = True
        if committed:
            self.db.execute("COMMIT")
            if self.db.info.pipeline_status:
                self.db.pgconn.pipeline_sync()
                self.db.pgconn.flush()
                time.sleep(0.3)  # the server commits; its reply is never read
        with socket.socket(fileno=os.dup(self.db.fileno())) as copy:
            copy.shutdown(socket.SHUT_RDWR)
        raise psycopg.OperationalError("the connection was cut")

    monkeypatch.setattr(TransactionConnection, "commit", commit_and_break)
    return cuts


@pytest.mark.parametrize("committed", [True, False])
async def test_a_commit_whose_answer_is_lost_is_done_once(
    store: Store, url: str, monkeypatch: pytest.MonkeyPatch, committed: bool
):
    caller = await make_caller(store)
    await use(store, caller, NOON)
    cuts = cut_commits(monkeypatch, committed=committed)
    reservation = await store.reserve(caller, 5, granted, lease_s=60)
    assert isinstance(reservation, Reservation)
    assert len(cuts) == 1
    assert (await store.ledger(caller)).reserved == 5
    cuts.clear()
    await store.settle(reservation, [row(NOON)] * 5, emit_meter_event=True)
    assert len(cuts) == 1
    assert (await store.ledger(caller)).month_billable == 6
    assert [message.count for message in await store.messages("meter", limit=9)] == [5]


@pytest.mark.parametrize("committed", [True, False])
async def test_a_request_that_began_in_a_commit_whose_answer_is_lost_goes_on(
    store: Store, monkeypatch: pytest.MonkeyPatch, committed: bool
):
    caller = await make_caller(store)
    cuts = cut_commits(monkeypatch, committed=committed)
    begun = await begin(store, caller.account.id)
    assert len(cuts) == 1
    await store.finish_idempotent(begun, ANSWER)
    assert await begin(store, caller.account.id) == ANSWER


async def test_an_outcome_that_stays_unknown_is_raised_as_such(
    store: Store, monkeypatch: pytest.MonkeyPatch
):
    caller = await make_caller(store)
    monkeypatch.setattr(call_queue, "ANSWER_S", 1.0)  # until then it is repeated
    cut_commits(monkeypatch, committed=False, times=10**6)
    with pytest.raises(OutcomeUnknown):
        await begin(store, caller.account.id)


@pytest.mark.parametrize("committed", [True, False])
async def test_a_jobs_outcome_whose_answer_is_lost_counts_once(
    store: Store, monkeypatch: pytest.MonkeyPatch, committed: bool
):
    caller = await make_caller(store)
    cuts = cut_commits(monkeypatch, committed=committed)
    await promise(store, caller, order())
    assert len(cuts) == 1
    [claim] = await claimed(store)
    cuts.clear()
    assert await store.job_verified(claim, row(NOON), b"{}", emit_meter_event=True)
    assert len(cuts) == 1
    ledger = await store.ledger(caller)
    assert (ledger.month_billable, ledger.reserved) == (1, 0)
    assert [message.count for message in await store.messages("meter", limit=9)] == [1]


@pytest.mark.parametrize("committed", [True, False])
async def test_results_of_a_list_whose_answer_is_lost_count_once(
    store: Store, monkeypatch: pytest.MonkeyPatch, committed: bool
):
    caller = await make_caller(store)
    await lists.running(store, caller, 2)
    [claim] = await lists.claimed(store)
    reservation = await store.reserve(caller, 2, granted, lease_s=60)
    assert isinstance(reservation, Reservation)
    cuts = cut_commits(monkeypatch, committed=committed)
    for part, status in enumerate(("deliverable", "unknown")):
        chunk = lists.part_of(claim, status, ends=part == 1)
        await store.settle(reservation, [row(NOON)], part=part, ends=part == 1, chunk=chunk)
        assert len(cuts) == 1
        cuts.clear()
    assert (await store.ledger(caller)).month_billable == 2
    found = await store.stored_list("list-1")
    assert found is not None
    assert (found.answered, found.counts) == (2, {"deliverable": 1, "unknown": 1})
    assert await store.list_results("list-1", [0]) == [(0, '["deliverable"]\n["unknown"]\n')]
