"""A queue whose entries are claimed under a lease: for jobs and for the outbox.

An entry is due at an instant and is claimed until its lease ends; every claim has
a higher fence than those before. A claim ends with its outcome; after the end of its
lease it stays valid until another claim follows. Nothing here awaits.
"""

from collections.abc import Callable
from datetime import datetime, timedelta
from operator import itemgetter
from typing import Generic, TypeVar

from msgspec import Struct
from msgspec.structs import replace

T = TypeVar("T")


class QueueEntry(Struct, Generic[T], frozen=True):
    """A thing with its due time and its claim; `due_at` is None if no work is left."""

    thing: T
    due_at: datetime | None
    lease_until: datetime | None = None  # None: not claimed, or the claim had its outcome
    fence: int = 0
    claimed_at: datetime | None = None  # when the latest claim began

    def is_held(self, now: datetime) -> bool:
        """Return whether an active claim holds it."""
        return self.lease_until is not None and self.lease_until > now


class ClaimQueue(Generic[T]):
    """Entries by name, in the order in which they were added."""

    def __init__(self) -> None:
        self.entries: dict[str, QueueEntry[T]] = {}

    def push(self, name: str, thing: T, due_at: datetime | None) -> None:
        """Add an entry, or replace its state: its claim ends, its fence stays."""
        before = self.entries.get(name)
        self.entries[name] = QueueEntry(thing, due_at, None, before.fence if before else 0)

    def of_claim(self, name: str, fence: int) -> T | None:
        """Return the thing if the claim with this fence is its last and had no outcome yet."""
        entry = self.entries.get(name)
        if entry is None or entry.fence != fence or entry.lease_until is None:
            return None
        return entry.thing

    def fence_of(self, name: str) -> int:
        """Return the last claim's fence; 0 if there is no such entry or it was never claimed."""
        return self.entries[name].fence if name in self.entries else 0

    def raise_fence(self, name: str) -> None:
        """Make the outcome of the current claim invalid."""
        self.entries[name] = replace(self.entries[name], fence=self.entries[name].fence + 1)

    def claim(
        self,
        now: datetime,
        *,
        limit: int,
        lease_s: float,
        matches: Callable[[T], bool],
    ) -> list[tuple[T, int]]:
        """Claim matching things, those due longest first, then the oldest; returns each with its fence."""
        return [
            self.claim_next(name, now, lease_s)
            for _, name in self.waiting(now, matches)[: max(0, limit)]
        ]

    def waiting(self, now: datetime, matches: Callable[[T], bool]) -> list[tuple[datetime, str]]:
        """Return instant and name of due, unclaimed things, those due longest first, then the oldest."""
        found = [
            (entry.due_at, name)
            for name, entry in self.entries.items()
            if entry.due_at
            and entry.due_at <= now
            and not entry.is_held(now)
            and matches(entry.thing)
        ]
        return sorted(found, key=itemgetter(0))

    def held(self, now: datetime, matches: Callable[[T], bool]) -> list[tuple[T, datetime]]:
        """Return the matching things that an active claim holds, and when it began."""
        return [
            (e.thing, e.claimed_at or now)
            for e in self.entries.values()
            if e.is_held(now) and matches(e.thing)
        ]

    def claim_next(self, name: str, now: datetime, lease_s: float) -> tuple[T, int]:
        """Claim this entry; returns the thing with its new fence."""
        entry, until = self.entries[name], now + timedelta(seconds=lease_s)
        self.entries[name] = replace(
            entry, lease_until=until, fence=entry.fence + 1, claimed_at=now
        )
        return entry.thing, entry.fence + 1

    def reclaim(self, due_max: Callable[[T], datetime], lease_max: datetime) -> None:
        """Limit the ends of leases and the due times to these instants."""
        for name, entry in self.entries.items():
            lease, due_at = entry.lease_until, entry.due_at
            if lease is not None:
                lease = min(lease, lease_max)
            if due_at is not None:
                due_at = min(due_at, due_max(entry.thing))
            self.entries[name] = replace(entry, due_at=due_at, lease_until=lease)

    def extend(self, name: str, fence: int, now: datetime, lease_s: float) -> bool:
        """Let the claim end `lease_s` from now; False if it has ended or is not the last."""
        entry = self.entries.get(name)
        if entry is None or entry.fence != fence or not entry.is_held(now):
            return False
        self.entries[name] = replace(entry, lease_until=now + timedelta(seconds=lease_s))
        return True
