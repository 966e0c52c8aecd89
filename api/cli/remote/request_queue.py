"""The next requests of a run over HTTP: the queue of addresses, and the account's rate limit.

Pure: the caller passes the time. A domain is in one request at a time and with few
addresses, because a request's clocks run from its start and a mail host accepts few
connections.
"""

import math
from collections import deque
from collections.abc import Sequence

from msgspec import Struct, field

from ...results.row_result import domain_of
from ..source import DOMAIN_RUN

WINDOW_S = 60.0  # of the service's rate limit


class RequestQueue(Struct):
    """The positions of unanswered texts, by domain."""

    waiting: dict[str, deque[int]] = field(default_factory=dict)
    size_max: dict[int, int] = field(default_factory=dict)  # of a request with this position
    ready: deque[str] = field(default_factory=deque)  # waiting domains without an open request

    def add(self, position: int, text: str) -> None:
        domain = domain_of(text)
        if domain not in self.waiting:
            self.waiting[domain] = deque()
            self.ready.append(domain)
        self.waiting[domain].append(position)

    def pop_batch(self, count_max: int) -> dict[str, list[int]]:
        """The next request's positions by domain. These domains wait until they are requeued."""
        taken: dict[str, list[int]] = {}
        count = 0
        while self.ready and count_max:
            domain = self.ready[0]
            positions = self.waiting[domain]
            run: list[int] = []
            while positions and len(run) < min(count_max, DOMAIN_RUN):
                room = self.size_max.get(positions[0], count_max + count) - count
                if room <= len(run):
                    break
                count_max = min(count_max, room)
                run.append(positions.popleft())
            if not run:  # it does not fit; it comes first in the next request
                break
            self.ready.popleft()
            taken[domain] = run
            count_max -= len(run)
            count += len(run)
        return taken

    def requeue(self, domain: str, unanswered: Sequence[int]) -> None:
        positions = self.waiting[domain]
        positions.extendleft(reversed(unanswered))
        if positions:
            self.ready.append(domain)
        else:
            del self.waiting[domain]


class Allowance(Struct):
    """What the account's rate limit leaves, estimated by the client."""

    limit: float | None = None  # units per minute; None until a response says it
    granted: deque[tuple[float, int]] = field(default_factory=deque)
    requested: int = 0  # by requests that have no answer yet

    def room(self, now: float) -> float:
        while self.granted and self.granted[0][0] + WINDOW_S <= now:
            self.granted.popleft()
        if self.limit is None:
            return 0 if self.requested else math.inf  # the first request learns it
        return self.limit - self.requested - sum(units for _, units in self.granted)

    def opens_at(self) -> float:
        return self.granted[0][0] + WINDOW_S if self.granted else math.inf
