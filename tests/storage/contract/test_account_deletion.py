"""Every store: what is personal of a deleted account goes, what is money stays."""

import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mailprobe.storage import accounts, open_store
from mailprobe.storage.records import Attempt, Caller, IdempotencyRecord
from mailprobe.storage.store import Store
from tests.storage.contract import list_calls
from tests.storage.contract.calls import begin
from tests.storage.fixed_clock import (
    NOON,
    SECRET,
    Clock,
    another_key,
    claimed,
    delivering,
    make_caller,
    order,
    promise,
    row,
    use,
)


async def filled(store: Store, caller: Caller, name: str) -> Any:
    """An account with everything that may run; returns claims of a job and of a chunk."""
    id = caller.account.id
    await use(store, caller, NOON, 3, billable=True)
    (failed, ended, waits, *_) = await delivering(
        store, caller, *(order(f"{name}{n}", host=f"{name}.test") for n in range(3))
    )
    for claim in await claimed(store, "deliver"):
        if claim.job.id != waits.id:
            state: Any = "done" if claim.job.id == ended.id else "failed"
            tried = Attempt(1, NOON, 7, None, f"no answer of {name}.test")
            assert await store.job_attempted(claim, tried, state=state, due_at=None)
    await promise(store, caller, *(order(f"{name}-{n}") for n in range(3)))
    await list_calls.running(store, caller, 1, 1, id=f"list of {name}")
    for kind in ("alert", "meter"):
        await store.enqueue_message(kind, id, name, b"100 %", due_at=NOON)
    assert isinstance(await begin(store, id, name), IdempotencyRecord)
    (job,) = [
        claim
        for claim in await claimed(store, limit=1)
        if claim.job.account_id == id and claim.job.id != failed.id
    ]
    (chunk,) = await list_calls.claimed(store, limit=1)
    return job, chunk


@pytest.mark.parametrize("rows_each", [1, 100])
async def test_a_deleted_account_keeps_its_counts_alone(
    store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch, rows_each: int
) -> None:
    monkeypatch.setattr(accounts, "JOBS_TIDIED_MAX", rows_each)
    caller = await make_caller(store)
    id = caller.account.id
    await store.change_account(id, customer_id="cus_1", hard_cap_micros=9)
    job, chunk = await filled(store, caller, "ann")
    ledger = await store.ledger(caller)
    assert await store.delete_account(id)
    account = await store.account(id)
    assert account is not None
    assert (account.email, account.alerts, account.hard_cap_micros) == ("", False, None)
    assert account.customer_id == "cus_1"
    assert await store.caller("hash") is None
    assert await store.keys(id) == []
    assert await store.jobs(account_id=id, limit=99) == []
    assert await store.job(job.job.id) is None
    assert await store.stored_list(chunk.list.id) is None
    assert await store.messages("alert", account_id=id, limit=9) == []
    assert len(await store.messages("meter", account_id=id, limit=9)) == 1
    assert isinstance(await begin(store, id, "ann"), IdempotencyRecord)
    assert len(await store.usage(id, limit=99)) == 6
    assert await store.days(id, NOON.date(), NOON.date())
    after = await store.ledger(caller)
    assert (after.month_units, after.month_billable) == (6, ledger.month_billable)
    assert after.reserved == 0

    # what ran goes on without an effect
    assert not await store.job_verified(job, row(NOON), b"{}")
    await list_calls.answer(store, chunk, "deliverable")
    assert len(await store.usage(id, limit=99)) == 6
    assert (await claimed(store), await list_calls.claimed(store)) == ([], [])
    assert await store.delete_account(id)  # again, as after an interruption


async def test_other_accounts_stay_as_they_are(store: Store, clock: Clock) -> None:
    bob = await another_key(
        store, (await store.create_account("bob@shop.test", "builder")).id, "bob"
    )
    await filled(store, bob, "bob")
    before = await store.jobs(account_id=bob.account.id, limit=99)
    ledger = await store.ledger(bob)
    assert await store.delete_account((await make_caller(store)).account.id)
    assert await store.jobs(account_id=bob.account.id, limit=99) == before
    assert replace(await store.ledger(bob), window=ledger.window) == ledger
    assert await store.caller("bob") == bob
    assert len(await claimed(store)) == 2
    assert not await store.delete_account("nobody")


async def test_no_table_has_a_name_or_an_address_after(tmp_path: Path, clock: Clock) -> None:
    path = tmp_path / "mailprobe.db"
    async with open_store(path, secret_key=SECRET, now=clock) as store:
        caller = await make_caller(store)
        await filled(store, caller, "ann")
        await store.delete_account(caller.account.id)
    with sqlite3.connect(path) as db:
        dump = "\n".join(db.iterdump())
    db.close()
    for word in ("shop.test", "ann.test", "hooks.test", "list.csv", "rows 0"):
        assert word not in dump
