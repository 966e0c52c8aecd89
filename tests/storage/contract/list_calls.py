"""Lists and the answers of their chunks that several tests share."""

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from mailprobe.storage.list_records import (
    ChunkPart,
    ListBounds,
    ListChunk,
    ListClaim,
    ListOrder,
    ListShare,
    LoadedList,
    StoredList,
)
from mailprobe.storage.records import Caller
from mailprobe.storage.store import Store
from tests.storage.fixed_clock import LEASE_S, NOON, row

BOUNDS = ListBounds(active_max=10, kept_max=100, per_minute_max=1000)
OCTETS_MAX = 1000_000
SECRET = "whsec_c2VjcmV0"


def order(id: str = "list-1", **more: Any) -> ListOrder:
    return ListOrder(id, "list.csv", "https://hooks.test/", "a hooks.test", **more)


def chunks(*units: int) -> list[ListChunk]:
    """Chunks with so many addresses."""
    return [ListChunk(place, count, f'["rows {place}"]\n') for place, count in enumerate(units)]


async def running(
    store: Store, caller: Caller, *units: int, id: str = "list-1", **more: Any
) -> StoredList:
    assert await store.create_list(caller, order(id, **more), BOUNDS)
    assert await store.add_chunks(id, chunks(*units), octets_max=OCTETS_MAX)
    loaded = LoadedList(["name", "email"], sum(units) + 1, sum(units))
    made = await store.change_list(id, "running", before=["loading"], loaded=loaded)
    assert made is not None
    return made


async def claimed(
    store: Store,
    limit: int = 9,
    each_max: int = 9,
    shares: Mapping[str, ListShare] | None = None,
    holder: str | None = None,
    after: str = "",
) -> list[ListClaim]:
    return await store.claim_chunks(
        limit=limit, lease_s=LEASE_S, each_max=each_max, shares=shares or {}, after=after,
        holder=holder,
    )  # fmt: skip


def chunks_of(claims: list[ListClaim]) -> list[tuple[str, int]]:
    return [(claim.list.id, claim.chunk.place) for claim in claims]


def places(claims: list[ListClaim]) -> list[int]:
    return [claim.chunk.place for claim in claims]


def part_of(claim: ListClaim, *statuses: str, ends: bool = True) -> ChunkPart:
    lines = "".join(f'["{status}"]\n' for status in statuses)
    counts = {status: statuses.count(status) for status in statuses}
    return ChunkPart(claim.list.id, claim.chunk.place, claim.fence, lines, counts, ends)


async def answer(store: Store, claim: ListClaim, *statuses: str, ends: bool = True) -> None:
    reserved: Any = await store.reserve(claim.caller, len(statuses), lambda _: None, lease_s=30)
    rows = [row(NOON) for _ in statuses]
    await store.settle(reserved, rows, chunk=part_of(claim, *statuses, ends=ends))


async def answer_passing(store: Store, claim: ListClaim, passing: int, *statuses: str) -> None:
    """Answer a chunk; time may cure so many of its answers."""
    reserved: Any = await store.reserve(claim.caller, len(statuses), lambda _: None, lease_s=30)
    part = replace(part_of(claim, *statuses), passing=passing)
    await store.settle(reserved, [row(NOON) for _ in statuses], chunk=part)
