"""Request bodies on their way: how many may be awaited, whose they are, and what they hold.

A body is awaited from its request's head to its last octet. Until a key was
recognised it belongs to the client's address, afterwards to the key. Of each only so
many are awaited: one more, and the one that has been awaited longest is refused, for
a body that is being sent is there in a moment.

All bodies together hold at most `octets_max`, from their first octet until their
request is over. Beyond it the youngest without a key is refused; where all have one,
the youngest of the key that holds most. Bodies that come in pieces leave a share free
for requests that come in one: else large ones that wait for a slow store would hold the
bound to its last octet, and the smallest request would be refused.
"""

from collections.abc import Callable
from contextvars import ContextVar
from typing import Literal

OCTETS_MAX = 64 * 1024 * 1024
ONE_PIECE_SHARE = 1 / 16  # 4 MiB: 3,000 requests in flight of 1.4 KB; a single verify has 0.1
ADDRESS_BODIES_MAX = 100  # behind a proxy all clients have its address; whole bodies do not wait
KEY_BODIES_MAX = 200

Owner = tuple[Literal["address", "key"], str]


class BodyBudget:
    """All bodies of a process; its listeners share one."""

    def __init__(
        self,
        octets_max: int = OCTETS_MAX,
        address_bodies_max: int = ADDRESS_BODIES_MAX,
        key_bodies_max: int = KEY_BODIES_MAX,
    ) -> None:
        self.octets = 0  # of all bodies
        self._octets_max = octets_max
        self._in_pieces = 0  # of those, the octets of bodies that come in pieces
        self._in_pieces_max = octets_max - int(octets_max * ONE_PIECE_SHARE)
        self._awaited_max = {"address": address_bodies_max, "key": key_bodies_max}
        self._awaited: dict[
            Owner, dict[ArrivingBody, None]
        ] = {}  # those awaited longest come first
        self._holding: dict[ArrivingBody, None] = {}  # the oldest come first

    def try_acquire(self, octets: int) -> bool:
        """Count a body that came in one piece; False where there is no room for it."""
        if self.octets + octets > self._octets_max:
            return False
        self.octets += octets
        return True

    def release(self, octets: int) -> None:
        self.octets -= octets

    def await_body(self, arrival: "ArrivingBody") -> None:
        """Of the owner's that are awaited, this is the last one."""
        awaited = self._awaited.setdefault(arrival.owner, {})
        awaited[arrival] = None
        if len(awaited) > self._awaited_max[arrival.owner[0]]:
            next(iter(awaited)).refuse()

    def await_no_more(self, arrival: "ArrivingBody") -> None:
        awaited = self._awaited.get(arrival.owner, {})
        awaited.pop(arrival, None)
        if not awaited:
            self._awaited.pop(arrival.owner, None)

    def acquire(self, arrival: "ArrivingBody", octets: int) -> None:
        self.octets += octets
        self._in_pieces += octets
        self._holding[arrival] = None
        while self._holding and self._is_exceeded:
            self._victim().refuse()

    @property
    def _is_exceeded(self) -> bool:
        return self.octets > self._octets_max or self._in_pieces > self._in_pieces_max

    def refund(self, arrival: "ArrivingBody") -> None:
        if self._holding.pop(arrival, self) is None:
            self.octets -= arrival.octets
            self._in_pieces -= arrival.octets

    def _victim(self) -> "ArrivingBody":
        held: dict[Owner, int] = {}
        for arrival in reversed(self._holding):
            if arrival.owner[0] == "address":
                return arrival
            held[arrival.owner] = held.get(arrival.owner, 0) + arrival.octets
        greediest = max(held, key=lambda owner: held[owner])
        return next(each for each in reversed(self._holding) if each.owner == greediest)


class ArrivingBody:
    """One request's body, from its head until the request is over."""

    __slots__ = ("_intake", "_refuse", "is_awaited", "is_refused", "octets", "owner")

    def __init__(self, intake: BodyBudget, address: str, refuse: Callable[[], None]) -> None:
        self._intake = intake
        self._refuse = refuse
        self.owner: Owner = ("address", address)
        self.octets = 0
        self.is_awaited = True
        self.is_refused = False
        intake.await_body(self)

    def identify(self, key: str) -> None:
        """It belongs to this key."""
        if self.is_awaited and self.owner[0] == "address":
            self._intake.await_no_more(self)
            self.owner = ("key", key)
            self._intake.await_body(self)
        else:
            self.owner = ("key", key)

    def acquire(self, octets: int) -> None:
        """So many more have come; `is_refused` tells whether they may be kept."""
        if not self.is_refused:
            self.octets += octets
            self._intake.acquire(self, octets)

    def refuse(self) -> None:
        """Give back what it holds, and have the request refused."""
        self.is_refused = True
        self.end()
        self._refuse()

    def complete(self) -> None:
        """Its last octet is here."""
        if self.is_awaited:
            self.is_awaited = False
            self._intake.await_no_more(self)

    def end(self) -> None:
        """The request is over; said again, nothing."""
        self.complete()
        self._intake.refund(self)
        self.octets = 0


_present: ContextVar[ArrivingBody | None] = ContextVar("arrival", default=None)


def arriving(arrival: ArrivingBody) -> None:
    """The running task's request has this body."""
    _present.set(arrival)


def identified(key: str) -> None:
    """The running task's request has this key."""
    arrival = _present.get()
    if arrival is not None:
        arrival.identify(key)
