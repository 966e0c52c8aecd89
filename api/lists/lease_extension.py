"""Extends the leases of all chunks that a process holds by one call of the store.

A list that is paused, cancelled or deleted ends the claims of all its chunks: that is one line of the log.
"""

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from math import inf

import trio

from mailprobe.storage.contract import StoreUnavailable
from mailprobe.storage.list_records import ListClaim

# Chunks that are due for an extension within this time share one call: with 50 chunks a call each
# two seconds instead of twelve a second. A worker counts on a lease that is shorter by as much.
SHARED_S = 2.0


log = logging.getLogger("mailprobe.lists")


class LeaseExtension:
    """One per process. `extend_all` says of each claim whether it is still held; None: not known."""

    def __init__(
        self,
        extend_all: Callable[[Sequence[ListClaim]], Awaitable[Sequence[bool | None]]],
        held: Callable[[], Sequence[ListClaim]],
    ) -> None:
        self._extend_all = extend_all
        self._held = held
        self._turn = trio.Lock()  # those that are due together wait for the first one's call
        self._shared_until = -inf
        self._are_held: dict[tuple[str, int], bool | None] = {}  # of the last call
        self._failure: StoreUnavailable | None = None  # of the last call
        self._stopped: set[str] = set()  # lists of which claims had ended by the last call

    async def extend(self, claim: ListClaim) -> bool:
        """Extend this claim with all others, if the last call is old; False if it has ended.

        Raises StoreUnavailable, also to those that share the call, and for one that is locked.
        """
        async with self._turn:
            if trio.current_time() >= self._shared_until or _key(claim) not in self._are_held:
                await self._call(claim)
            if self._failure is not None:
                raise StoreUnavailable(*self._failure.args) from self._failure
            is_held = self._are_held[_key(claim)]
            if is_held is None:
                raise StoreUnavailable(f"{claim.name} is locked by another transaction")
            return is_held

    async def _call(self, claim: ListClaim) -> None:
        began_at = trio.current_time()
        claims = list({_key(each): each for each in [claim, *self._held()]}.values())
        failure: StoreUnavailable | None = None
        are_held: Sequence[bool | None]
        try:
            are_held = await self._extend_all(claims)
        except StoreUnavailable as error:
            are_held, failure = [False] * len(claims), error
        if failure is None:
            self._note_stopped(claims, are_held)
        self._are_held = dict(zip(map(_key, claims), are_held, strict=True))
        self._failure = failure
        self._shared_until = began_at + SHARED_S

    def _note_stopped(self, claims: Sequence[ListClaim], are_held: Sequence[bool | None]) -> None:
        ended = Counter(
            claim.list.id
            for claim, is_held in zip(claims, are_held, strict=True)
            if is_held is False
        )
        # Of some chunks it is known only after the next call.
        for list_id in ended.keys() - self._stopped:
            log.info(
                "work on a list stopped: list=%s chunks=%d why=%s",
                list_id, ended[list_id], "it does not run any more, or another process has them",
            )  # fmt: skip
        self._stopped = set(ended)


def _key(claim: ListClaim) -> tuple[str, int]:
    return claim.name, claim.fence
