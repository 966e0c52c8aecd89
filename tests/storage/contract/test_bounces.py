"""Every store: bounces by account, for a time, and without their addresses."""

import sqlite3
from datetime import timedelta
from pathlib import Path

import pytest

from mailprobe.storage import bounces, open_store
from mailprobe.storage.bounces import ASKED_MAX, BOUNCES_KEPT, Bounce
from mailprobe.storage.store import Store
from tests.storage.fixed_clock import NOON, RETENTION, SECRET, Clock


async def account_id(store: Store, name: str = "ann") -> str:
    return (await store.create_account(f"{name}@shop.test", "free")).id


async def test_a_bounce_is_kept_for_its_account_and_its_time(store: Store, clock: Clock) -> None:
    ann, bob = await account_id(store), await account_id(store, "bob")
    assert not await store.has_bounces(ann)
    await store.record_bounces(ann, ["Gone@Shop.test", "other@shop.test"], "ses")
    asked = ["gone@shop.TEST", "here@shop.test"]
    assert await store.bounces(ann, asked) == {"gone@shop.test": Bounce("ses", NOON)}
    assert (await store.bounces(bob, asked), await store.has_bounces(bob)) == ({}, False)
    clock.advance(days=80)
    await store.record_bounces(ann, ["gone@shop.test"], "report")  # again: its time begins anew
    clock.at = NOON + BOUNCES_KEPT
    for _ in range(2):
        again = Bounce("report", NOON + timedelta(days=80))
        assert await store.bounces(ann, [*asked, "other@shop.test"]) == {"gone@shop.test": again}
        await store.apply_retention(RETENTION)
    clock.advance(days=80)
    assert not await store.has_bounces(ann)
    assert await store.bounces(ann, asked) == {}


async def test_a_bounce_can_be_forgotten(store: Store) -> None:
    ann, bob = await account_id(store), await account_id(store, "bob")
    for account in (ann, bob):
        await store.record_bounces(account, ["gone@shop.test", "old@shop.test"], "ses")
    assert await store.forget_bounces(ann, ["Gone@Shop.test", "here@shop.test"]) == 1
    assert await store.forget_bounces(ann, ["gone@shop.test"]) == 0
    assert set(await store.bounces(ann, ["gone@shop.test", "old@shop.test"])) == {"old@shop.test"}
    assert set(await store.bounces(bob, ["gone@shop.test"])) == {"gone@shop.test"}
    assert await store.forget_bounces(ann, []) == 0


async def test_the_newest_of_many_are_kept(
    store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mailprobe.storage.bounces.BOUNCES_MAX", 2)
    ann = await account_id(store)
    for name in "abc":
        await store.record_bounces(ann, [name], "ses")
        clock.advance(1)
    assert set(await store.bounces(ann, "abc")) == {"b", "c"}


async def test_many_are_recorded_and_found_in_parts(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounces, "ASKED_MAX", 2)
    ann = await account_id(store)
    await store.record_bounces(ann, "abcde", "ses")
    assert set(await store.bounces(ann, "bdx")) == {"b", "d"}
    assert await store.forget_bounces(ann, "abx") == 2
    assert ASKED_MAX < 999  # what every SQLite takes in one statement
    with pytest.raises(KeyError):
        await store.record_bounces("nobody", "a", "ses")


async def test_they_go_with_their_account(store: Store) -> None:
    ann = await account_id(store)
    await store.record_bounces(ann, ["gone@shop.test"], "ses")
    assert await store.delete_account(ann)
    assert not await store.has_bounces(ann)


async def test_the_database_has_no_address(tmp_path: Path, clock: Clock) -> None:
    path = tmp_path / "mailprobe.db"
    async with open_store(path, secret_key=SECRET, now=clock) as store:
        await store.record_bounces(await account_id(store), ["gone@far.test"], "ses")
    with sqlite3.connect(path) as db:
        dump = "\n".join(db.iterdump())
    db.close()
    assert "far.test" not in dump
    assert 'INSERT INTO "bounces"' in dump
