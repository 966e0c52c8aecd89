"""Addresses of a chunk that are not answered now: what they wait for, and until when.

A domain is paused, or a mail host takes no more at the moment. They are not stored, not counted
and not billed; their chunk is released until they may be asked. Pure.
"""

from collections import Counter
from collections.abc import Sequence, Set
from datetime import datetime, timedelta

from msgspec import Struct, field
from msgspec.structs import replace

from mailprobe.engine import Answer
from mailprobe.engine.pauses import PAUSED_RULE
from mailprobe.storage.list_records import HostWait, ListClaim

PAUSED_S = 60.0  # until a chunk with paused addresses is claimed again
HOST_WAIT_S_MIN = 10.0  # until one whose mail hosts take no more is claimed again,
HOST_WAIT_S_MAX = 600.0  # and at most: what a host took of refusals no longer counts by then
# An address that was asked and is still unknown waits at least for this share of the time that its
# chunk has waited, and at most so long: so a mailbox is asked some 25 times in 4 hours, not 250.
ASKED_SHARE = 0.25
ASKED_WAIT_S_MAX = 900.0
TOGETHER = timedelta(seconds=5)  # what may be asked within it is asked now
TURN_S = 10  # in which as many chunks of an account come back as a process claims in passing
TURN_CHUNKS = 200  # so ten thousand that wait cost the store some 20 short claims a second


class Patience(Struct, frozen=True):
    """Of a chunk: since when it waits for its mail hosts, and until when it may."""

    since: datetime
    until: datetime

    def left_s(self, now: datetime) -> float:
        return max(0.0, (self.until - now).total_seconds())

    def wait_s(self, answer: Answer, now: datetime) -> float | None:
        """For how long an address with this answer waits; None if it does not."""
        left_s, wait_s = self.left_s(now), answer.retry_s
        if wait_s is None or not left_s or wait_s > left_s:
            return None
        if answer.cause.reason != "host_budget":  # then it was not asked
            waited_s = (now - self.since).total_seconds()
            # Not until the end: without any patience left an answer is less proven.
            wait_s = max(wait_s, min(waited_s * ASKED_SHARE, ASKED_WAIT_S_MAX, left_s / 2))
        return wait_s


def patience_of(claim: ListClaim, now: datetime) -> Patience:
    """It is counted from the chunk's first wait, and anew where the list was resumed since."""
    since = claim.chunk.waits_since or now
    if claim.list.ran_at is not None:
        since = max(since, claim.list.ran_at)
    return Patience(since, since + timedelta(seconds=claim.list.patience_s))


class SetAside(Struct):
    """The addresses of one claim that were set aside, by their numbers in the chunk."""

    patience: Patience
    paused: set[int] = field(default_factory=set)
    waiting: dict[int, HostWait] = field(default_factory=dict)  # each of one address

    def __bool__(self) -> bool:
        return bool(self.paused or self.waiting)

    def pause(self, numbers: Set[int]) -> None:
        """Set addresses aside whose domain is paused."""
        self.paused |= numbers

    def takes(self, number: int, answer: Answer, now: datetime) -> bool:
        """Set the address aside, if its answer says that it may be asked later. Else False."""
        if answer.cause.reason == PAUSED_RULE:
            self.paused.add(number)
            return True
        wait_s = self.patience.wait_s(answer, now)
        if wait_s is None:
            return False
        host = answer.verdict.mx_host or answer.verdict.email.rpartition("@")[2].lower()
        until = now + timedelta(seconds=wait_s)
        until = until.replace(microsecond=0) + timedelta(seconds=1)
        self.waiting[number] = HostWait(host, answer.cause.reason, answer.takes, 1, until)
        return True

    def hold_back(self, claim: ListClaim, addresses: dict[int, str], now: datetime) -> None:
        """Take out the addresses that are still to wait: asked early, they would cost refusals.

        Once the patience is over, all are asked a last time.
        """
        if not self.patience.left_s(now):
            return
        for wait in claim.chunk.waits:
            if wait.until <= now + TOGETHER:
                continue
            for number in wait.numbers:
                if addresses.pop(number, None) is not None:
                    self.waiting[number] = replace(wait, addresses=1, numbers=())

    def host_waits(self) -> Sequence[HostWait]:
        """What waits for mail hosts, together what waits for the same."""
        together: dict[HostWait, list[int]] = {}
        for number, wait in self.waiting.items():
            together.setdefault(wait, []).append(number)
        return [
            replace(wait, addresses=len(numbers), numbers=tuple(numbers))
            for wait, numbers in together.items()
        ]

    def due_at(self, now: datetime) -> datetime:
        """When the chunk is claimed again."""
        waits = [PAUSED_S] if self.paused else []
        if self.waiting:
            first = min(wait.until for wait in self.waiting.values())
            wait_s = min(max((first - now).total_seconds(), HOST_WAIT_S_MIN), HOST_WAIT_S_MAX)
            waits.append(min(wait_s, max(HOST_WAIT_S_MIN, self.patience.left_s(now))))
        return now + timedelta(seconds=min(waits))


class ReturnTurns:
    """How many chunks of each account come back in each TURN_S; one per process.

    An account with ten thousand chunks that wait delays its own, and no other's.
    """

    def __init__(self) -> None:
        self._coming: Counter[tuple[str, int]] = Counter()  # by account and number of the turn

    def reserve(self, account: str, due_at: datetime, now: datetime) -> datetime:
        """Return when a chunk that is due then is to come back: in the next turn with room."""
        present = int(now.timestamp() // TURN_S)
        for turn in [turn for turn in self._coming if turn[1] < present]:
            del self._coming[turn]
        first = number = int(due_at.timestamp() // TURN_S)
        last = max(first, present + int(HOST_WAIT_S_MAX // TURN_S))
        while self._coming[account, number] >= TURN_CHUNKS and number < last:
            number += 1
        self._coming[account, number] += 1
        return due_at + timedelta(seconds=(number - first) * TURN_S)
