"""A process that works on the lists of a database until it is killed: `python -m … URL SEED`.

It does what the service's worker does, without mail hosts: it claims chunks, answers their
addresses in parts, extends its leases, asks again what time may cure, and finishes lists.
"""

import json
import random
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import trio

from mailprobe.storage import open_store
from mailprobe.storage.base.lease_holders import new_holder
from mailprobe.storage.contract import StoreUnavailable
from mailprobe.storage.list_records import ChunkPart, ListClaim
from mailprobe.storage.records import UsageRow
from mailprobe.storage.store import Store
from tests.storage.fixed_clock import SECRET, granted

LEASE_S = 1.0
RESERVED_S = 5.0
PAUSE_S = 0.1  # between two claims, or two tries of a write


def answers_in(results: str) -> list[str]:
    return [status for line in results.splitlines() for status in json.loads(line)]


async def until_durable(write: Callable[[], Awaitable[object]]) -> None:
    while True:
        try:
            await write()
            return
        except StoreUnavailable:
            await trio.sleep(PAUSE_S)


async def finish(store: Store, claim: ListClaim) -> None:
    if await store.begin_pass(claim, await store.check()) is False:
        await store.change_list(claim.list.id, "done", before=["running"])


async def answer(store: Store, claim: ListClaim, rng: random.Random) -> None:
    """Answer the addresses of a chunk in parts; the first passing of each is cured by a pass."""
    id, place, fence = claim.list.id, claim.chunk.place, claim.fence
    left = claim.chunk.units - len(answers_in(claim.chunk.results))
    if not left:
        cured = {"unknown": -1, "deliverable": 1}
        part = ChunkPart(id, place, fence, "", cured, ends=True, passing=-1)
        await until_durable(lambda: store.record_part(part))
        return
    reserved: Any = await store.reserve(claim.caller, left, granted, lease_s=RESERVED_S)
    number = 0
    try:
        while left:
            taken = min(left, rng.randint(1, 3))
            left -= taken
            statuses = ["deliverable"] * (taken - 1) + ["deliverable" if left else "unknown"]
            rows = [
                UsageRow(await store.check(), "list", each, None, 1, True, 3) for each in statuses
            ]
            part = ChunkPart(
                id, place, fence, json.dumps(statuses) + "\n", Counter(statuses), ends=not left,
                passing=statuses.count("unknown"),
            )  # fmt: skip
            number += 1
            await store.settle(reserved, rows, part=number - 1, ends=not left, chunk=part)
            if await store.extend_chunks([claim], lease_s=LEASE_S) == [False]:
                break
    finally:
        await until_durable(lambda: store.settle(reserved, [], part=number))


async def work(url: str, seed: str) -> None:
    rng, holder = random.Random(seed), new_holder()
    async with open_store(url, secret_key=SECRET) as store, trio.open_nursery() as nursery:

        async def attempt(claim: ListClaim) -> None:
            if claim.is_last:
                await until_durable(lambda: finish(store, claim))
                return
            with suppress(StoreUnavailable):  # it is claimed again after its lease
                await answer(store, claim, rng)

        while True:
            with suppress(StoreUnavailable):
                for claim in await store.claim_chunks(
                    limit=3, lease_s=LEASE_S, each_max=6, shares={}, after="", holder=holder
                ):
                    nursery.start_soon(attempt, claim)
            await trio.sleep(PAUSE_S)


if __name__ == "__main__":
    trio.run(work, sys.argv[1], sys.argv[2])
