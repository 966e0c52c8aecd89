"""What hosts said to lists: kept for a day, limited by account and in all, deleted with its list."""

from datetime import timedelta

import pytest

from mailprobe.storage.list_jobs import conversations
from mailprobe.storage.list_jobs.conversations import CONVERSATIONS_KEPT, Conversations
from mailprobe.storage.store import Store
from tests.storage.contract.list_calls import running
from tests.storage.fixed_clock import Clock, make_caller


def said(packed: bytes, place: int = 0, answers: int = 100, id: str = "list-1") -> Conversations:
    return Conversations(id, place, answers, packed)


async def kept(store: Store, id: str = "list-1", place: int = 0) -> list[bytes]:
    return [packed for _, packed in await store.conversations_at(id, place)]


async def test_conversations_are_kept_for_a_day_the_newest_first(
    store: Store, clock: Clock
) -> None:
    await running(store, await make_caller(store), 1, 1)
    at = clock()
    await store.keep_conversations([said(b"a"), said(b"b"), said(b"c", place=1)])
    assert await store.conversations_at("list-1", 0) == [(at, b"b"), (at, b"a")]
    assert await kept(store, place=1) == [b"c"]
    assert await kept(store, "another") == []
    clock.advance(CONVERSATIONS_KEPT.total_seconds())
    assert await kept(store) == []
    await store.keep_conversations([said(b"d")])
    await store.apply_retention({"scale": 90})
    clock.advance(-timedelta(hours=1).total_seconds())
    assert await kept(store) == [b"d"]


async def test_those_of_a_list_that_is_gone_are_not_kept(store: Store) -> None:
    await store.keep_conversations([said(b"a", id="no list")])
    assert await kept(store, "no list") == []


@pytest.mark.parametrize(
    ("bound", "value"), [("ANSWERS_MAX", 300), ("OCTETS_MAX", 30)], ids=["answers", "octets"]
)
async def test_an_account_has_a_number_of_answers_and_octets(
    bound: str, value: int, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conversations, bound, value)
    await running(store, await make_caller(store), 1)
    other = await make_caller(store, sha256="another")
    await running(store, other, 1, id="list-2")
    await store.keep_conversations([said(b"first".ljust(10), id="list-2")])
    for number in range(5):
        await store.keep_conversations([said(b"%d" % number * 10)])
    assert [packed[:1] for packed in await kept(store)] == [b"4", b"3", b"2"]
    assert len(await kept(store, "list-2")) == 1


async def test_all_accounts_have_a_number_of_rows(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conversations, "ROWS_MAX", 2)
    await running(store, await make_caller(store), 1)
    await store.keep_conversations([said(b"%d" % number) for number in range(5)])
    await store.apply_retention({"scale": 90})
    assert await kept(store) == [b"4", b"3"]


async def test_they_go_with_their_list_and_their_account(store: Store) -> None:
    caller = await make_caller(store)
    for id in ("list-1", "list-2"):
        await running(store, caller, 1, id=id)
        await store.keep_conversations([said(b"a", id=id)])
    await store.delete_list("list-1")
    assert await store.stored_list("list-1") is None
    assert await kept(store, "list-1") == []
    assert await kept(store, "list-2") == [b"a"]
    await store.delete_account(caller.account.id)
    assert await store.stored_list("list-2") is None
