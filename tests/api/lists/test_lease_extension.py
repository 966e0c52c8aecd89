"""The leases of all chunks of a process are extended by one call."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing
from msgspec import Struct

from mailprobe.api.lists.lease_extension import SHARED_S, LeaseExtension
from mailprobe.storage.contract import StoreUnavailable
from tests.api.lists.test_lists import LISTS, ended, many, open_list_shop, send


class Held(Struct, frozen=True):
    """What is needed of a claim."""

    name: str
    fence: int = 1

    @property
    def list(self) -> Any:
        return SimpleNamespace(id=self.name)


@dataclass
class Calls:
    """A store's answers, and what it was called with."""

    ended: set[str] = field(default_factory=set)
    locked: set[str] = field(default_factory=set)
    is_away: bool = False
    calls: list[list[str]] = field(default_factory=list)

    async def extend_all(self, claims: Sequence[Any]) -> list[bool | None]:
        self.calls.append([claim.name for claim in claims])
        await trio.sleep(0.1)
        if self.is_away:
            raise StoreUnavailable("away")
        return [
            None if each.name in self.locked else each.name not in self.ended for each in claims
        ]


CHUNKS: list[Any] = [Held(name) for name in "abc"]


async def extended(extension: LeaseExtension) -> dict[str, bool | None]:
    """What each of the chunks gets, due at once; None: the store is unavailable."""
    found: dict[str, bool | None] = {}

    async def extend(claim: Any) -> None:
        try:
            found[claim.name] = await extension.extend(claim)
        except StoreUnavailable:
            found[claim.name] = None

    async with trio.open_nursery() as nursery:
        for claim in CHUNKS:
            nursery.start_soon(extend, claim)
    return found


@pytest.mark.parametrize(
    ("store", "expected"),
    [
        (Calls(ended={"b"}, locked={"c"}), {"a": True, "b": False, "c": None}),
        (Calls(is_away=True), {"a": None, "b": None, "c": None}),
    ],
)
async def test_those_that_are_due_together_share_a_call_and_its_failure(
    autojump_clock: trio.testing.MockClock, store: Calls, expected: dict[str, bool | None]
) -> None:
    extension = LeaseExtension(store.extend_all, lambda: CHUNKS)
    assert await extended(extension) == expected
    assert [sorted(names) for names in store.calls] == [["a", "b", "c"]]
    await trio.sleep(SHARED_S)
    assert await extended(extension) == expected
    assert len(store.calls) == 2


async def test_a_chunk_that_ends_during_the_call_leaves_it_to_the_next(
    autojump_clock: trio.testing.MockClock,
) -> None:
    store = Calls()
    extension = LeaseExtension(store.extend_all, lambda: CHUNKS)
    with trio.move_on_after(0.05):
        await extension.extend(CHUNKS[0])
    assert await extended(extension) == dict.fromkeys("abc", True)
    assert len(store.calls) == 2


async def test_a_pause_and_a_cancel_of_a_list_are_a_line_each(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Each of its chunks that were under way had a warning of its own."""
    caplog.set_level(logging.INFO)
    async with open_list_shop("builder") as shop:
        list_id = (await send(shop, many(1_000))).body["list_id"]
        for act in ("pause", "resume", "pause", "resume", "cancel"):
            await trio.sleep(20)
            await shop.request("POST", f"{LISTS}/{list_id}/{act}")
        await trio.sleep(20)
        assert (await ended(shop, list_id))["status"] == "cancelled"
    stopped = [each.getMessage() for each in caplog.records if each.name == "mailprobe.lists"]
    assert len(stopped) == 3
    assert all(f"work on a list stopped: list={list_id} chunks=" in each for each in stopped)
    assert [each for each in caplog.records if each.levelno >= logging.WARNING] == []
