"""Conversations with mail hosts about the newest answers of lists, for the rows of its pages.

A process packs what has come and writes it each second, all lists together. Nothing depends on it:
what is not written in time, or when the process ends, is lost, and a row offers to ask again.
"""

import zlib
from collections import deque
from collections.abc import Mapping, Sequence
from datetime import datetime

import msgspec
import trio

from mailprobe.engine.evidence import Evidence, EvidenceBudget
from mailprobe.storage.contract import StoreUnavailable
from mailprobe.storage.list_jobs.conversations import Conversations
from mailprobe.storage.store import Store

WRITE_EVERY_S = 1.0
WAITING_MAX = 500  # parts of chunks, of some 100 answers at most; the oldest are given up
PART_OCTETS_MAX = 512 * 1024  # before it is compressed, to a tenth
WRITTEN_MAX = 50  # parts in one transaction
LEVEL = 1  # of zlib: quick

_decode = msgspec.json.Decoder(dict[int, Evidence]).decode

Part = tuple[str, int, Mapping[int, Evidence]]  # a list, a chunk's place, by the address's number


class ConversationLog:
    """The conversations of a process that are not written yet."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._waiting: deque[Part] = deque(maxlen=WAITING_MAX)

    def note(self, list_id: str, place: int, found: Mapping[int, Evidence | None]) -> None:
        """Keep those of these addresses that had a conversation."""
        spoken = {number: each for number, each in found.items() if each and each.conversation}
        if spoken:
            self._waiting.append((list_id, place, spoken))

    async def write(self) -> None:
        """Write what is noted, each second. Runs until cancelled."""
        while True:
            await trio.sleep(WRITE_EVERY_S)
            while self._waiting:
                parts = [
                    self._waiting.popleft() for _ in range(min(WRITTEN_MAX, len(self._waiting)))
                ]
                kept = await trio.to_thread.run_sync(_packed, parts)
                try:
                    await self._store.keep_conversations(kept)
                except StoreUnavailable:
                    break


def _packed(parts: Sequence[Part]) -> list[Conversations]:
    return [
        Conversations(list_id, place, len(found), packed(found)) for list_id, place, found in parts
    ]


def packed(found: Mapping[int, Evidence]) -> bytes:
    """Compress the evidence of some addresses, cut to PART_OCTETS_MAX."""
    budget = EvidenceBudget(PART_OCTETS_MAX)
    return zlib.compress(
        msgspec.json.encode({each: budget.fit(found[each]) for each in found}), LEVEL
    )


async def conversation_of(
    store: Store, list_id: str, place: int, number: int
) -> tuple[datetime, Evidence] | None:
    """What was said about an address of a chunk, and when; None if that is not kept any more."""
    for at, octets in await store.conversations_at(list_id, place):
        found = await trio.to_thread.run_sync(_unpacked, octets)
        if number in found:
            return at, found[number]
    return None


def _unpacked(octets: bytes) -> dict[int, Evidence]:
    return _decode(zlib.decompress(octets))
