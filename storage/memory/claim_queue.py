"""Things that are worked on one claim at a time: the jobs' queue and the outbox's.

An entry is due at an instant, is claimed for a while, and every claim of it has
a higher fence than those before. A claim is spent once its outcome is put; one
whose lease has ended stands until another follows it. Nothing here awaits.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from operator import itemgetter
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class QueueEntry(Generic[T]):
    """A thing and its place in the queue; `due_at` is None for one that is past all work."""

    thing: T
    due_at: datetime | None
    lease_until: datetime | None = None  # None: nobody has it, or whoever had it is done
    fence: int = 0

    def is_held(self, now: datetime) -> bool:
        return self.lease_until is not None and self.lease_until > now


class ClaimQueue(Generic[T]):
    """The entries by their name."""

    def __init__(self) -> None:
        self.entries: dict[str, QueueEntry[T]] = {}

    def push(self, name: str, thing: T, due_at: datetime | None) -> None:
        """A new entry, or another state of one: its claim ends, its fence stays."""
        before = self.entries.get(name)
        self.entries[name] = QueueEntry(thing, due_at, None, before.fence if before else 0)

    def of_claim(self, name: str, fence: int) -> T | None:
        """The thing, where the claim of this fence is its last and is not spent."""
        entry = self.entries.get(name)
        if entry is None or entry.fence != fence or entry.lease_until is None:
            return None
        return entry.thing

    def fence_of(self, name: str) -> int:
        """0: there is none, or nobody ever had it."""
        return self.entries[name].fence if name in self.entries else 0

    def raise_fence(self, name: str) -> None:
        self.entries[name] = replace(self.entries[name], fence=self.entries[name].fence + 1)

    def claim(
        self,
        now: datetime,
        *,
        limit: int,
        lease_s: float,
        who: Callable[[T], bool],
    ) -> list[tuple[T, int]]:
        """Things with their new fences, those due longest first; of one instant the first put."""
        return [
            self.claim_next(name, now, lease_s)
            for _, name in self.waiting(now, who)[: max(0, limit)]
        ]

    def waiting(self, now: datetime, who: Callable[[T], bool]) -> list[tuple[datetime, str]]:
        """Instants and names of those that are due and that nobody has; of one instant as put."""
        found = [
            (entry.due_at, name)
            for name, entry in self.entries.items()
            if entry.due_at and entry.due_at <= now and not entry.is_held(now) and who(entry.thing)
        ]
        return sorted(found, key=itemgetter(0))

    def held(self, now: datetime, who: Callable[[T], bool]) -> list[T]:
        return [e.thing for e in self.entries.values() if e.is_held(now) and who(e.thing)]

    def claim_next(self, name: str, now: datetime, lease_s: float) -> tuple[T, int]:
        """Claim it: the thing with its new fence."""
        entry, until = self.entries[name], now + timedelta(seconds=lease_s)
        self.entries[name] = replace(entry, lease_until=until, fence=entry.fence + 1)
        return entry.thing, entry.fence + 1

    def reclaim(self, due_max: Callable[[T], datetime], lease_max: datetime) -> None:
        """Leases end, and what waits is due, at these instants at the latest."""
        for name, entry in self.entries.items():
            lease, due_at = entry.lease_until, entry.due_at
            if lease is not None:
                lease = min(lease, lease_max)
            if due_at is not None:
                due_at = min(due_at, due_max(entry.thing))
            self.entries[name] = replace(entry, due_at=due_at, lease_until=lease)

    def extend(self, name: str, fence: int, now: datetime, lease_s: float) -> bool:
        entry = self.entries.get(name)
        if entry is None or entry.fence != fence or not entry.is_held(now):
            return False
        self.entries[name] = replace(entry, lease_until=now + timedelta(seconds=lease_s))
        return True
