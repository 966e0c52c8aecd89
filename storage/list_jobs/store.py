"""The part of the store that keeps lists."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime

from msgspec.structs import replace

from ..base.lease_holders import own_holder
from ..contract import StoreUnavailable
from ..database import StorePart, read, write
from ..idempotency import encrypting
from ..list_records import (
    ListBounds,
    ListClaim,
    ListOrder,
    ListShare,
    ListState,
    LoadedList,
    StoredList,
    list_context,
)
from ..records import SERVICE, Actor, Answered, Caller, IdempotencyRecord
from . import list_claims
from .list_claims import ClaimRequest
from .list_lines import (
    find_places,
    read_chunks,
    read_places,
    read_results,
)
from .list_results import keep_marks, read_marks, record_part
from .list_waits import note_wait, read_waiting_hosts, read_waits
from .lists import (
    PassStep,
    add_chunks,
    begin_pass_from,
    change_state,
    delete_step,
    drop_upload_step,
    insert_list,
    list_columns,
    list_lists,
    release_chunk,
    set_list_mail,
    stored_list,
)


class ListStore(StorePart):
    """The part of the store that keeps lists and their chunks."""

    add_chunks = write(add_chunks)
    stored_list = read(stored_list)
    lists = read(list_lists)
    set_list_mail = write(set_list_mail)
    release_chunk = write(release_chunk)
    list_waits = read(read_waits)
    waiting_hosts = read(read_waiting_hosts)
    record_part = write(record_part)
    chunks = read(read_chunks)
    list_results = read(read_results)
    chunks_at = read(read_places)
    find_places = read(find_places)
    list_marks = read(read_marks)
    keep_marks = write(keep_marks)
    note_wait = write(note_wait)
    list_columns = read(list_columns)

    async def create_list(self, caller: Caller, order: ListOrder, bounds: ListBounds) -> StoredList:
        """Store a list that is loading. Raises ListLimitReached, ListRateExceeded.

        What is refused does not count for the rate; a list that cannot be read does. The lists of
        the account whose rows a process stored that has ended for certain are given up.
        """
        secret = order.secret and self._cipher.close(order.secret.encode(), list_context(order.id))
        order = replace(order, secret=None)
        return await self.executor.write(
            insert_list, caller, order, secret or None, bounds, own_holder()
        )

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
        first = encrypting(self._cipher, idempotency, answer)
        return await self.executor.write(
            change_state, list_id, state, before, cause, loaded, key_id, first
        )

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
        request = ClaimRequest(limit, lease_s, each_max, shares, after, holder)
        if not await self.executor.read(list_claims.is_due, request):
            return []  # before the write: an idle worker must not take the lock
        claimed = await self.executor.write(list_claims.claim, request)
        return [
            self._with_secret(claim, secret, list_context(claim.list.id))
            for claim, secret in claimed
        ]

    async def extend_chunks(
        self, claims: Sequence[ListClaim], *, lease_s: float
    ) -> list[bool | None]:
        """Let the claims end `lease_s` from now; False for each that has ended, or whose list does not run.

        None for one whose chunk another transaction has locked for long: its lease stays as it is.
        """
        held = await self.executor.write(list_claims.extend, claims, lease_s)
        with suppress(StoreUnavailable):  # one is locked for long: the next call tries again
            for place, claim in enumerate(claims):
                if held[place] is None:
                    held[place] = await self.executor.write(
                        list_claims.extend_locked, claim, lease_s
                    )
        return held

    async def begin_pass(self, claim: ListClaim, due_at: datetime) -> bool | None:
        """Make the chunks due again that have answers which time may cure; end the claim.

        False, and nothing is changed, if no pass is left or no chunk has any: the list is finished.
        None if the claim has ended or the list does not run: another claim finishes it.
        """
        step: PassStep | None = PassStep(False, 0)
        while step is not None and step.next_place is not None:
            # in small transactions: a list may have 200,000 chunks
            step = await self.executor.write(begin_pass_from, claim, due_at, step.next_place)
        return None if step is None else step.is_due

    async def delete_list(self, list_id: str, *, by: Actor = SERVICE) -> None:
        """Delete a list with all its rows, in small transactions; the last one writes the entry.

        A list whose upload has failed was never there: it gets none.
        """
        while not await self.executor.write(delete_step, list_id, by):
            pass

    async def drop_upload(self, list_id: str) -> None:
        """Delete a list whose upload has failed; one that was stored stays."""
        while await self.executor.write(drop_upload_step, list_id):
            pass
