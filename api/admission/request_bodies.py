"""Bounds the memory and the number of request bodies that are arriving.

A body is awaited from the moment at which the application wants it and nothing of it is there to
read, to its last byte. Its owner is the client's address until the API key is known, then the
key's account. Each owner may have a limited number of
awaited bodies. Beyond that the one awaited longest is refused: a body that is really being
sent arrives within a moment.

All bodies together hold at most `octets_max` bytes, from their first byte until their
request is over. Beyond that the youngest without a key is refused; if all have a key, the
youngest of the account that holds most. Bodies of at most SMALL_SHARE are refused last: that frees
nothing, and would hit a single verification in the place of the megabytes beside it. Bodies
that arrive in pieces leave ONE_PIECE_SHARE free for requests in one piece. Otherwise large bodies that wait for a slow store would use up
the budget, and even the smallest request would be refused.
"""

from collections.abc import Callable
from typing import Literal

OCTETS_MAX = 64 * 1024 * 1024
ONE_PIECE_SHARE = 1 / 16  # 4 MiB: 3,000 requests in flight of 1.4 KB; a single verify has 0.1 KB
SMALL_SHARE = 1 / 4096  # 16 KiB
ADDRESS_BODIES_MAX = 100  # a proxy's clients share its address
ACCOUNT_BODIES_MAX = 200

Owner = tuple[Literal["address", "account"], str]


class BodyBudget:
    """The bodies of a process; its listeners share one budget."""

    def __init__(
        self,
        octets_max: int = OCTETS_MAX,
        address_bodies_max: int = ADDRESS_BODIES_MAX,
        account_bodies_max: int = ACCOUNT_BODIES_MAX,
    ) -> None:
        self.octets = 0  # held by all bodies
        self._octets_max = octets_max
        self._in_pieces = 0  # of those, held by bodies that came in pieces
        self._in_pieces_max = octets_max - int(octets_max * ONE_PIECE_SHARE)
        self._small = int(octets_max * SMALL_SHARE)
        self._awaited_max = {"address": address_bodies_max, "account": account_bodies_max}
        self.awaited: dict[Owner, dict[ArrivingBody, None]] = {}  # ordered: awaited longest first
        self._holding: dict[ArrivingBody, None] = {}  # ordered: oldest first

    def try_acquire(self, octets: int) -> bool:
        """Count a body that came in one piece; False if the budget is used up."""
        if self.octets + octets > self._octets_max:
            return False
        self.octets += octets
        return True

    def release(self, octets: int) -> None:
        """Free what `try_acquire` counted."""
        self.octets -= octets

    def await_body(self, arrival: "ArrivingBody") -> None:
        """Count an awaited body of its owner; may refuse the owner's oldest."""
        awaited = self.awaited.setdefault(arrival.owner, {})
        awaited[arrival] = None
        if len(awaited) > self._awaited_max[arrival.owner[0]]:
            next(iter(awaited)).refuse()

    def await_no_more(self, arrival: "ArrivingBody") -> None:
        """The body is complete or refused."""
        awaited = self.awaited.get(arrival.owner, {})
        awaited.pop(arrival, None)
        if not awaited:
            self.awaited.pop(arrival.owner, None)

    def acquire(self, arrival: "ArrivingBody", octets: int) -> None:
        """Count so many more octets of a body; may refuse it or others."""
        self.octets += octets
        self._in_pieces += octets
        self._holding[arrival] = None
        while self._holding and self._is_exceeded:
            self._victim().refuse()

    @property
    def _is_exceeded(self) -> bool:
        return self.octets > self._octets_max or self._in_pieces > self._in_pieces_max

    def free(self, octets: int) -> None:
        """Free octets of a body that is still arriving."""
        self.octets -= octets
        self._in_pieces -= octets

    def refund(self, arrival: "ArrivingBody") -> None:
        """Free all that the body holds."""
        if self._holding.pop(arrival, self) is None:
            self.octets -= arrival.octets
            self._in_pieces -= arrival.octets

    def _victim(self) -> "ArrivingBody":
        youngest_first = list(reversed(self._holding))
        large = [arrival for arrival in youngest_first if arrival.octets > self._small]
        held: dict[Owner, int] = {}
        for arrival in large or youngest_first:
            if arrival.owner[0] == "address":
                return arrival
            held[arrival.owner] = held.get(arrival.owner, 0) + arrival.octets
        largest = max(held, key=lambda owner: held[owner])
        return next(each for each in large or youngest_first if each.owner == largest)


class ArrivingBody:
    """One request's body, from its head until the request is over; `refuse` refuses the request."""

    __slots__ = ("_intake", "_is_over", "_refuse", "is_awaited", "is_refused", "octets", "owner")

    def __init__(self, intake: BodyBudget, address: str, refuse: Callable[[], None]) -> None:
        self._intake = intake
        self._refuse = refuse
        self.owner: Owner = ("address", address)
        self.octets = 0
        self.is_awaited = False
        self.is_refused = False
        self._is_over = False

    def wait(self) -> None:
        """The client has to send the rest; may refuse an older body of its owner."""
        if not (self.is_awaited or self._is_over):
            self.is_awaited = True
            self._intake.await_body(self)

    def identify(self, account_id: str) -> None:
        """The request has a key of this account, which owns the body from now on."""
        if self.is_awaited and self.owner[0] == "address":
            self._intake.await_no_more(self)
            self.owner = ("account", account_id)
            self._intake.await_body(self)
        else:
            self.owner = ("account", account_id)

    def acquire(self, octets: int) -> None:
        """Count so many more octets; if `is_refused` afterwards, they must be dropped."""
        if not self.is_refused:
            self.octets += octets
            self._intake.acquire(self, octets)

    def free(self, octets: int) -> None:
        """So many of its octets are on disk, and hold no memory any more."""
        octets = min(octets, self.octets)
        self._intake.free(octets)
        self.octets -= octets

    def refuse(self) -> None:
        """Free what the body holds, and refuse the request."""
        self.is_refused = True
        self.end()
        self._refuse()

    def complete(self) -> None:
        """Its last byte has arrived."""
        if self.is_awaited:
            self.is_awaited = False
            self._intake.await_no_more(self)

    def end(self) -> None:
        """The request is over; further calls do nothing."""
        self._is_over = True
        self.complete()
        self._intake.refund(self)
        self.octets = 0
