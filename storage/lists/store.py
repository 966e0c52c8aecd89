"""The part of the store that keeps lists."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from mailprobe.storage.base.checks import at_most
from mailprobe.storage.base.lease_holders import own_holder
from mailprobe.storage.contract import LISTED_MAX
from mailprobe.storage.list_records import (
    ChunkPart,
    HostWait,
    ListBounds,
    ListChunk,
    ListClaim,
    ListOrder,
    ListShare,
    ListState,
    ListWaits,
    StoredList,
)
from mailprobe.storage.lists import commands
from mailprobe.storage.lists.commands import LoadedList
from mailprobe.storage.records import SERVICE, Actor, Answered, Caller, IdempotencyRecord
from mailprobe.storage.store_part import StorePart, list_context, with_secret

CHUNKS_READ_MAX = 50  # in one call: some 10,000 rows
PLACES_SEARCHED_MAX = 200  # in one call: some milliseconds, at 20 KB each
WAITING_HOSTS_MAX = 10  # of a list: those at which most wait
MARKS_READ_MAX = 10_000  # places in one call: a million addresses, some 10 ms


class ListStore(StorePart):
    """Lists and their chunks."""

    async def create_list(self, caller: Caller, order: ListOrder, bounds: ListBounds) -> StoredList:
        """Store a list that is loading. Raises ListLimitReached, ListRateExceeded.

        What is refused does not count for the rate; a list that cannot be read does. The lists of
        the account whose rows a process stored that has ended for certain are given up.
        """
        secret = order.secret and self._cipher.close(order.secret.encode(), list_context(order.id))
        return await self._execute(
            commands.CreateList(
                caller, replace(order, secret=None), secret or None, bounds, own_holder()
            )
        )

    async def add_chunks(
        self, list_id: str, chunks: Sequence[ListChunk], *, octets_max: int
    ) -> bool:
        """Store chunks of a list that is loading; False if it is not, for instance deleted.

        Raises ListRoomExceeded, and stores nothing, if the account's lists, whatever their state,
        would have more than `octets_max`: rows, names of columns and results together.
        """
        return await self._execute(commands.AddChunks(list_id, chunks, octets_max))

    async def change_list(
        self,
        list_id: str,
        state: ListState,
        *,
        before: Sequence[ListState],
        cause: str | None = None,
        loaded: LoadedList | None = None,
        key_id: str | None = None,
        idempotency: IdempotencyRecord | None = None,
        answer: Callable[[StoredList], Answered] | None = None,
    ) -> StoredList | None:
        """Change a list's state; None, and nothing is changed, if it is not in one of `before`.

        With `key_id` it goes on by the limits of this key. A list of a revoked key does not run:
        it is paused, with KEY_REVOKED as its cause. With `idempotency`, the answer that `answer`
        makes of the list is stored in the same transaction: like `first` in `settle`.
        """
        first = self._encrypting(idempotency, answer)
        return await self._execute(
            commands.ChangeList(
                list_id, state, before, cause=cause, loaded=loaded, key_id=key_id,
                idempotency=idempotency, answer=first,
            )
        )  # fmt: skip

    async def stored_list(self, list_id: str) -> StoredList | None:
        """Return the list, or None if there is none with this id."""
        return await self._execute(commands.FindList(list_id))

    async def lists(
        self, account_id: str, *, limit: int, is_test: bool | None = None
    ) -> list[StoredList]:
        """Return the account's lists, newest first, at most LISTED_MAX; None: of both kinds."""
        most = at_most(LISTED_MAX, limit)
        return await self._execute(commands.ListLists(account_id, most, is_test))

    async def claim_chunks(
        self,
        *,
        limit: int,
        lease_s: float,
        each_max: int,
        shares: Mapping[str, ListShare],
        after: str,
        holder: str | None,
    ) -> list[ListClaim]:
        """Claim due chunks of running lists; return them by list and place.

        Accounts take turns: first those of which the caller holds the fewest, then the one
        `after` the account whose turn was last. An account has at most its share's `most`, or
        `each_max`, with those that the caller holds already: each process takes as many, so that
        more processes end a list sooner. A claim whose lease has ended still counts if no other
        claim followed it. Claims of a `holder` whose process has ended for certain are ended
        first (see `lease_holders`).
        """
        command = commands.ClaimChunks(limit, lease_s, each_max, shares, after, holder)
        claimed = await self._execute(command)
        return [
            with_secret(self._cipher, claim, secret, list_context(claim.list.id))
            for claim, secret in claimed
        ]

    async def extend_chunks(
        self, claims: Sequence[ListClaim], *, lease_s: float
    ) -> list[bool | None]:
        """Let the claims end `lease_s` from now; False for each that has ended, or whose list does not run.

        None for one whose chunk another transaction has locked for long: its lease stays as it is.
        """
        return await self._execute(commands.ExtendChunks(claims, lease_s))

    async def release_chunk(
        self,
        claim: ListClaim,
        due_at: datetime,
        *,
        waits: Sequence[HostWait] | None = None,
    ) -> bool:
        """End the claim, so that the chunk is due at `due_at`; False if another claim followed.

        `waits` are the addresses of the chunk that wait for mail hosts, in the place of those
        before; None: those stay. The first of them begin the chunk's wait.
        """
        return await self._execute(commands.ReleaseChunk(claim, due_at, waits))

    async def list_waits(
        self, list_ids: Sequence[str], *, hosts_max: int = WAITING_HOSTS_MAX
    ) -> dict[str, ListWaits]:
        """Return what waits of each of these lists, at most LISTED_MAX, for its mail hosts."""
        return await self._execute(commands.ReadWaits(list_ids[:LISTED_MAX], hosts_max))

    async def begin_pass(self, claim: ListClaim, due_at: datetime) -> bool | None:
        """Make the chunks due again that have answers which time may cure; end the claim.

        False, and nothing is changed, if no pass is left or no chunk has any: the list is finished.
        None if the claim has ended or the list does not run: another claim finishes it.
        """
        step: commands.PassStep | None = commands.PassStep(False, 0)
        while step is not None and step.next_place is not None:
            # in small transactions: a list may have 200,000 chunks
            step = await self._execute(commands.BeginPass(claim, due_at, step.next_place))
        return None if step is None else step.is_due

    async def record_part(self, part: ChunkPart) -> bool:
        """Store results of a claimed chunk that are not counted; False if another claim followed."""
        return await self._execute(commands.RecordPart(part))

    async def chunks(self, list_id: str, *, first: int, limit: int) -> list[ListChunk]:
        """Return chunks with addresses in order, from the place `first`, with their results."""
        most = min(limit, CHUNKS_READ_MAX)
        return await self._execute(commands.ReadChunks(list_id, first, most))

    async def list_results(self, list_id: str, places: Sequence[int]) -> list[tuple[int, str]]:
        """Return the results of the chunks at these places, at most CHUNKS_READ_MAX, with the places."""
        return await self._execute(commands.ReadResults(list_id, places[:CHUNKS_READ_MAX]))

    async def chunks_at(self, list_id: str, places: Sequence[int]) -> list[ListChunk]:
        """Return the chunks at these places, at most CHUNKS_READ_MAX, in order."""
        return await self._execute(commands.ReadPlaces(list_id, places[:CHUNKS_READ_MAX]))

    async def find_places(self, list_id: str, pattern: str, *, first: int) -> list[int]:
        """Return the places whose rows are like the pattern, of PLACES_SEARCHED_MAX from `first`."""
        return await self._execute(
            commands.FindPlaces(list_id, pattern, max(0, first), PLACES_SEARCHED_MAX)
        )

    async def list_marks(self, list_id: str, *, first: int) -> list[tuple[int, str]]:
        """Return MARKS_READ_MAX places from `first` that have marks, each with a character for
        each of its addresses: "." where there is no answer. Those at the end may be missing.
        """
        return await self._execute(commands.ReadMarks(list_id, first, MARKS_READ_MAX))

    async def keep_marks(self, list_id: str, marks: Mapping[int, Mapping[int, str]]) -> None:
        """Keep marks at places that have none: of results that an earlier version has stored."""
        await self._execute(commands.KeepMarks(list_id, marks))

    async def note_wait(self, list_id: str, until: datetime, cause: str) -> None:
        """Keep until when a limit lets a list wait, and the code of its error."""
        await self._execute(commands.NoteWait(list_id, until, cause))

    async def list_columns(self, list_id: str) -> tuple[str, ...]:
        """Return the names of a list's columns; none if it is loading or there is no such list."""
        return await self._execute(commands.ReadColumns(list_id))

    async def delete_list(self, list_id: str, *, by: Actor = SERVICE) -> None:
        """Delete a list with all its rows, in small transactions; the last one writes the entry.

        A list whose upload has failed was never there: it gets none.
        """
        while not await self._execute(commands.DeleteList(list_id, by)):
            pass

    async def drop_upload(self, list_id: str) -> None:
        """Delete a list whose upload has failed; one that was stored stays."""
        while await self._execute(commands.DropUpload(list_id)):
            pass
