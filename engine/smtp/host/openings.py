"""Attempts to connect to one mail host: those under way, and what others have shown. Time is an argument."""

from collections.abc import Sequence

from msgspec import Struct, field

from ..backoff import NEVER

AVOID_S = 5.0  # an address that failed is avoided for so long
OPENING_S_LEAST = 0.1  # what a new connection costs even to a near host
RELEASE_S = 0.2  # for which a host may still count a connection that is closed or closing
HEDGE_S = 0.25  # without a greeting, then the next exchange is connected to as well


class Openings(Struct, eq=False):
    """The connection attempts of one host."""

    _attempts: int = 0  # under way
    _dialled: set[str] = field(default_factory=set)  # addresses that they wait for, or found silent
    _turn: int = 0  # which address is next
    failed_at: dict[str, float] = field(default_factory=dict)  # by address, on trio's clock
    greeted: int = 0  # connections so far
    greeted_s: float = 0.0  # from the dial to the latest greeting
    opening_s: float = OPENING_S_LEAST  # the same, or more where the host is near
    has_enough: bool = False  # one was refused since the latest greeting: open one at a time
    slow_greeting: bool = False  # a greeting takes long,
    hedged: bool = False  # so long that the next exchange was connected to

    # -- attempts --------------------------------------------------------------------------------

    def begin(self) -> None:
        self._attempts += 1

    def end(self) -> None:
        self._attempts -= 1
        if not self._attempts:
            self._dialled.clear()
            self.hedged = False
        self.slow_greeting = False

    @property
    def is_only(self) -> bool:
        """Is no other attempt under way beside this one?"""
        return self._attempts == 1

    def from_next_turn(self, addresses: Sequence[str]) -> list[str]:
        """The addresses from another one on each time."""
        start = self._turn % len(addresses)
        self._turn += 1
        return [*addresses[start:], *addresses[:start]]

    def be_slow(self) -> None:
        self.slow_greeting = True

    def hedge(self) -> None:
        self.hedged = True

    # -- addresses -------------------------------------------------------------------------------

    def is_dialled(self, address: str) -> bool:
        """Does an attempt wait for this address, or has one found it silent?"""
        return address in self._dialled

    def dial(self, address: str) -> None:
        self._dialled.add(address)

    def replied(self, address: str) -> None:
        """The address has greeted or refused a connection."""
        self._dialled.discard(address)

    def succeeded(self, address: str, greeted_s: float) -> None:
        self.greeted += 1
        self.has_enough = False
        self.greeted_s = greeted_s
        self.opening_s = max(OPENING_S_LEAST, greeted_s)
        self.failed_at.pop(address, None)

    def failed(self, address: str, now: float) -> None:
        self.failed_at[address] = now

    def open_singly(self) -> None:
        """A connection was refused, perhaps as one too many."""
        self.has_enough = True

    def failed_of(self, addresses: Sequence[str], now: float) -> list[str]:
        """Those that have failed a moment ago."""
        return [each for each in addresses if now - self.failed_at.get(each, NEVER) < AVOID_S]

    def good_of(self, addresses: Sequence[str], now: float) -> Sequence[str]:
        """Those of them that have not just failed, or all."""
        return [each for each in addresses if now - self.failed_at.get(each, NEVER) >= AVOID_S] or (
            addresses
        )

    def has_failed_since(self, since: float) -> bool:
        return max(self.failed_at.values(), default=NEVER) >= since
