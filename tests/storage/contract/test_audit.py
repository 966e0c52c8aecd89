"""Every store: an act and its entry in the audit log are one transaction."""

import sqlite3
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import trio
from msgspec.structs import replace

from mailprobe.storage import audit, open_store
from mailprobe.storage.accounts import NewKey
from mailprobe.storage.audit import AUDIT_KEPT, ActKind, EntryFilter
from mailprobe.storage.contract import KeyLimitReached
from mailprobe.storage.records import COMMAND_LINE, SERVICE, Actor, Caller
from mailprobe.storage.store import Store
from tests.storage.child_processes import child
from tests.storage.contract import list_calls
from tests.storage.fixed_clock import NOON, RETENTION, SECRET, Clock, make_caller

ANN = Actor("session", "the key's id", "sk_mgmt_abcd", "192.0.2.7")
BY_KEY = replace(ANN, kind="key")


async def new_key(store: Store, account_id: str, sha256: str, **more: Any) -> str:
    more = {"keys_max": None, "by": ANN, "label": "shop", **more}
    label = more.pop("label")
    key = await store.create_key(
        account_id, "standard", label, sha256=sha256, prefix="sk_live_abcd", **more
    )
    return key.id


async def kinds(store: Store, account_id: str) -> list[ActKind]:
    """Of all entries, oldest first."""
    return [entry.act.kind for entry in await store.audit(account_id)][::-1]


async def test_each_act_has_its_entry(store: Store, clock: Clock) -> None:
    id = (await store.create_account("ann@shop.test", "free", by=COMMAND_LINE)).id
    key_id = await new_key(store, id, "1")
    clock.advance(1)
    assert await store.revoke_key(id, key_id, by=BY_KEY)
    await store.change_account(id, tier="scale", hard_cap_micros=25_000_000, alerts=False, by=ANN)
    created, made, revoked, *changed = (await store.audit(id))[::-1]
    assert (created.act.kind, created.by) == ("account_created", COMMAND_LINE)
    assert created.act.changes == {"tier": (None, "free")}
    assert (made.at, made.by, made.act.subject, made.act.name) == (NOON, ANN, key_id, "shop")
    assert (revoked.at, revoked.by) == (NOON + timedelta(seconds=1), BY_KEY)
    assert (revoked.act.kind, revoked.act.prefix) == ("key_revoked", "sk_live_abcd")
    assert [(entry.act.kind, entry.act.changes) for entry in changed] == [
        ("plan_changed", {"tier": ("free", "scale")}),
        ("caps_changed", {"hard_cap_micros": (None, 25_000_000)}),
        ("alerts_changed", {"alerts": (True, False)}),
    ]


async def test_an_operators_act_is_in_both_logs_and_names_the_operator_in_one(store: Store) -> None:
    """Not twice, if it is done to the operator's own account; a deletion is there once too."""
    own, other = [await make_caller(store, sha256=name) for name in ("own", "other")]
    operator = replace(ANN, operator_id=own.account.id)
    theirs = {(entry.id) for entry in await store.audit(other.account.id)}
    ours = {(entry.id) for entry in await store.audit(own.account.id)}
    key_id = await new_key(store, other.account.id, "new", by=operator)
    await store.change_account(other.account.id, tier="scale", alerts=False, by=operator)
    await store.change_account(own.account.id, tier="scale", by=operator)
    assert await store.revoke_key(other.account.id, key_id, by=operator)
    found = [each for each in await store.audit(other.account.id) if each.id not in theirs]
    kinds = ["key_revoked", "alerts_changed", "plan_changed", "key_created"]
    assert [(each.act.kind, each.by, each.on_account) for each in found] == [
        (kind, Actor("session"), None) for kind in kinds
    ]
    assert found[0].act.name == "shop"
    await store.delete_account(other.account.id, by=operator)
    found = [each for each in await store.audit(own.account.id) if each.id not in ours]
    of_other = other.account.id
    assert [(each.act.kind, each.on_account) for each in found] == [
        ("account_deleted", of_other),
        ("key_revoked", of_other),
        ("plan_changed", None),
        *((kind, of_other) for kind in kinds[1:]),
    ]
    assert {each.by for each in found} == {ANN}
    assert (found[1].act.subject, found[1].act.name) == (key_id, None)
    assert [each.act.kind for each in await store.audit(of_other)] == ["account_deleted"]
    await store.delete_account(own.account.id, by=COMMAND_LINE)
    [left] = await store.audit(own.account.id)  # without what was done to others, and from where
    assert (left.act.kind, left.by, left.on_account) == ("account_deleted", COMMAND_LINE, None)


async def test_the_first_account_and_its_keys_have_entries(store: Store) -> None:
    keys = [NewKey("standard", "h1", "sk_live_abcd"), NewKey("provisioning", "h2", "sk_mgmt_abcd")]
    account = await store.create_first_account("ann@shop.test", "free", keys, by=ANN)
    assert account is not None
    assert await kinds(store, account.id) == ["account_created", "key_created", "key_created"]
    assert {entry.by for entry in await store.audit(account.id)} == {ANN}


async def test_an_act_that_was_refused_has_no_entry(store: Store) -> None:
    ann, bob = [await make_caller(store, sha256=name) for name in ("ann", "bob")]
    id = ann.account.id
    before = await store.audit(id)
    assert not await store.revoke_key(bob.account.id, ann.key.id, by=ANN)
    assert await store.change_account(id, alerts=True, hard_cap_micros=None, by=ANN)
    with pytest.raises(KeyLimitReached):
        await new_key(store, id, "2", keys_max=1)
    with pytest.raises(ValueError, match="hash"):
        await new_key(store, id, "ann")
    await store.change_account(bob.account.id, customer_id="c")
    with pytest.raises(ValueError, match="customer_id"):
        await store.change_account(id, tier="free", customer_id="c", by=ANN)
    assert await store.audit(id) == before
    assert await store.revoke_key(id, ann.key.id)
    assert not await store.revoke_key(id, ann.key.id)
    assert (await kinds(store, id)).count("key_revoked") == 1


async def test_a_deleted_list_has_one_entry_and_a_failed_upload_none(store: Store) -> None:
    caller = await make_caller(store)
    made = await list_calls.running(store, caller, 1, 1, id="list-1")
    assert await store.create_list(caller, list_calls.order("failed"), list_calls.BOUNDS)
    for id in (made.id, made.id, "failed"):
        await store.delete_list(id, by=BY_KEY)
    entries = await store.audit(caller.account.id, EntryFilter("list_deleted"))
    assert [(entry.act.subject, entry.act.name, entry.by) for entry in entries] == [
        (made.id, made.name, BY_KEY)
    ]


async def test_failed_sign_ins_are_counted_by_the_minute(store: Store, clock: Clock) -> None:
    caller = await make_caller(store)
    id, prefix = caller.account.id, caller.key.prefix
    await store.revoke_key(id, caller.key.id)
    other = replace(ANN, address="192.0.2.8")
    for by in (ANN, ANN, other, ANN):
        await store.record_failed_sign_in("hash", None, by)  # of the revoked key
    await store.record_failed_sign_in("unknown", id, ANN)  # of a browser that was here before
    await store.record_failed_sign_in("unknown", None, ANN)  # a stranger
    await store.record_failed_sign_in("unknown", "no account", ANN)
    clock.advance(60)
    await store.record_failed_sign_in("hash", None, ANN)
    failed = await store.audit(id, EntryFilter("sign_in_failed"))
    found = [(each.by.address, each.act.prefix, each.times) for each in failed]
    assert found == [
        ("192.0.2.7", prefix, 1), ("192.0.2.7", None, 1),
        ("192.0.2.8", prefix, 1), ("192.0.2.7", prefix, 3),
    ]  # fmt: skip


async def test_an_account_reads_its_own_entries_alone(store: Store) -> None:
    ann, bob = [await make_caller(store, sha256=name) for name in ("ann", "bob")]
    theirs = await store.audit(bob.account.id)
    assert {entry.act.subject for entry in theirs} == {None, bob.key.id}
    assert await store.audit(ann.account.id, before=theirs[0].id) == []
    assert await store.audit("no account") == []
    assert await store.audit(ann.account.id, before="no entry") == []


async def test_entries_are_read_in_pages_by_kind_and_by_time(store: Store, clock: Clock) -> None:
    id = (await store.create_account("ann@shop.test", "free")).id
    for number in range(12):
        await store.change_account(id, hard_cap_micros=number)
        if number % 3 == 0:
            clock.advance(1)
            await new_key(store, id, f"{number}")
    every = await store.audit(id)
    assert (len(every), every) == (17, sorted(every, key=lambda each: each.at, reverse=True))
    for only, wanted in (
        (EntryFilter(), every),
        (EntryFilter("key_created"), [each for each in every if each.act.kind == "key_created"]),
        (EntryFilter(since=clock()), [each for each in every if each.at == clock()]),
        (EntryFilter(until=clock()), [each for each in every if each.at < clock()]),
    ):
        paged, last = [], None
        while page := await store.audit(id, only, before=last, limit=2):
            paged += page
            last = page[-1].id
        assert paged == wanted
    assert len(wanted) < 17


async def test_they_are_kept_for_their_time_whatever_the_tier(store: Store, clock: Clock) -> None:
    id = (await store.create_account("ann@shop.test", "free")).id
    clock.at = NOON + AUDIT_KEPT - timedelta(seconds=1)
    await store.change_account(id, tier="scale")
    await store.apply_retention(RETENTION)
    assert await kinds(store, id) == ["account_created", "plan_changed"]
    clock.advance(1)
    assert await kinds(store, id) == ["plan_changed"]
    await store.apply_retention(RETENTION)
    clock.advance(-2)
    assert await kinds(store, id) == ["plan_changed"]


async def test_an_entry_of_a_clock_that_was_ahead_is_corrected(store: Store, clock: Clock) -> None:
    clock.advance(days=900)
    id = (await store.create_account("ann@shop.test", "free")).id
    clock.at = NOON
    await store.apply_retention(RETENTION)
    assert [entry.at for entry in await store.audit(id)] == [NOON]


async def test_no_number_of_acts_fills_the_log_or_removes_other_kinds(
    store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "ENTRIES_MAX", 3)
    id = (await store.create_account("ann@shop.test", "free")).id
    for number in range(9):
        await store.change_account(id, hard_cap_micros=number)
        clock.advance(number % 2)
    kept = await store.audit(id)
    assert [entry.act.changes.get("hard_cap_micros") for entry in kept] == [
        (7, 8), (6, 7), (5, 6), None,
    ]  # fmt: skip


async def test_they_go_with_their_account_but_for_its_deletion(store: Store) -> None:
    caller = await make_caller(store)
    id = caller.account.id
    bob = await make_caller(store, sha256="bob")
    before = await store.audit(bob.account.id)
    for _ in range(2):
        assert await store.delete_account(id, by=replace(COMMAND_LINE, address="192.0.2.7"))
    (entry,) = await store.audit(id)
    assert (entry.act.kind, entry.by) == ("account_deleted", COMMAND_LINE)
    await store.record_failed_sign_in("hash", id, ANN)
    assert await store.audit(id) == [entry]
    assert await store.audit(bob.account.id) == before


ACTS: dict[str, Callable[[Store, Caller], Any]] = {
    "revoke": lambda store, caller: store.revoke_key(None, caller.key.id),
    "key": lambda store, caller: new_key(store, caller.account.id, "2"),
    "change": lambda store, caller: store.change_account(caller.account.id, tier="scale"),
    "delete": lambda store, caller: store.delete_account(caller.account.id),
    "list": lambda store, caller: store.delete_list("list-1"),
    "sign out": lambda store, caller: store.end_sign_in("s", NOON, caller.account.id, SERVICE),
}


@pytest.mark.parametrize("act", ACTS)
async def test_an_act_whose_entry_fails_was_not_done(
    store: Store, act: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    caller = await make_caller(store)
    id = caller.account.id
    await list_calls.running(store, caller, 1)
    await store.change_list("list-1", "cancelled", before=["running"])
    before = await everything(store, caller)
    with monkeypatch.context() as patched:
        patched.setattr(audit, "INSERT", "INSERT INTO no_such_table VALUES (:account)")
        with pytest.raises(Exception, match="no_such_table"):
            await ACTS[act](store, caller)
    assert await everything(store, caller) == before
    entries = len(await store.audit(id))
    await ACTS[act](store, caller)
    assert await everything(store, caller) != before
    assert len(await store.audit(id)) == (1 if act == "delete" else entries + 1)


async def everything(store: Store, caller: Caller) -> list[Any]:
    id = caller.account.id
    known = [await store.account(id), await store.keys(id), await store.stored_list("list-1")]
    return [*known, await store.find_sign_in("s", id, caller.key.id)]


async def test_two_services_write_all_entries(store: Store, clock: Clock) -> None:
    caller = await make_caller(store)
    id = caller.account.id

    async def change(first: int) -> None:
        for number in range(first, first + 10):
            await store.change_account(id, hard_cap_micros=number)
            await store.record_failed_sign_in("hash", None, ANN)

    async with trio.open_nursery() as nursery:
        for each in range(4):
            nursery.start_soon(change, 100 * each)
    changed = await store.audit(id, EntryFilter("caps_changed"))
    values = [entry.act.changes["hard_cap_micros"] for entry in changed]
    assert len(values) == 40
    assert {before for before, _ in values} ^ {after for _, after in values} == {
        None,
        values[0][1],
    }
    [failed] = await store.audit(id, EntryFilter("sign_in_failed"))
    assert failed.times == 40


async def test_killed_between_an_act_and_its_entry_neither_is_there(
    tmp_path: Path, clock: Clock
) -> None:
    path = tmp_path / "mailprobe.db"
    async with open_store(path, secret_key=SECRET, now=clock) as store:
        caller = await make_caller(store)
        with child("die unrecorded", path, caller.key.id) as process:
            assert await trio.to_thread.run_sync(process.wait) == -9
        assert await store.keys(caller.account.id) == [caller.key]
        assert await kinds(store, caller.account.id) == ["account_created", "key_created"]


async def test_no_entry_has_a_secret_or_can_be_changed(tmp_path: Path, clock: Clock) -> None:
    path = tmp_path / "mailprobe.db"
    async with open_store(path, secret_key=SECRET, now=clock) as store:
        caller = await make_caller(store)
        await store.record_failed_sign_in("hash", None, ANN)
    with sqlite3.connect(path) as db:
        dump = [line for line in db.iterdump() if 'INSERT INTO "audit_entries"' in line]
        assert len(dump) == 3
        assert not any("'hash'" in line or "@shop.test" in line for line in dump)
        with pytest.raises(sqlite3.IntegrityError, match="never changes"):
            db.execute("UPDATE audit_entries SET address = NULL")
    db.close()
    assert caller.key.prefix in dump[1]
