"""Egresses: the ways by which probes leave this machine, each with a name and a reputation of its own.

An egress has a source address or a SOCKS5 proxy, an EHLO name and a sender, and limits: how
many addresses a day it may ask, more with time while mail hosts get to know it, and which
operators. Without a file there is one, made of the settings. Pure.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from datetime import date
from typing import Literal, NamedTuple, Protocol

from msgspec import Struct

DEFAULT_NAME = "default"  # of the only egress where no file names any
EGRESSES_MAX = 256  # an operator's /24; each keeps hosts and budgets of its own
NAME_CHARACTERS_MAX = 40  # it is a label of metrics

EgressState = Literal["active", "paused", "quarantined"]


class DailyLimit(NamedTuple):
    """From this day (UTC) on so many addresses may be asked a day."""

    since: date
    addresses: int


@dataclass(frozen=True, slots=True)
class Egress:
    """One way out. A name of None or "" means the setting for all."""

    name: str = DEFAULT_NAME
    source: str | None = None  # the IP address to connect from; None: the system chooses
    proxy: str | None = field(default=None, repr=False)  # socks5://[user:pass@]host:port
    helo_name: str | None = None
    mail_from: str | None = None
    weight: float = 1.0  # its part of the addresses, beside the others' weights
    daily: tuple[DailyLimit, ...] = ()  # by date; before the first, and without any, no limit
    only: frozenset[str] = frozenset()  # ids of operators; empty: all but `never`
    never: frozenset[str] = frozenset()

    def limit_on(self, day: date) -> int | None:
        """How many addresses it may ask on this day; None: as many as it can."""
        due = [limit.addresses for limit in self.daily if limit.since <= day]
        return due[-1] if due else None

    def may_ask(self, operator: str) -> bool:
        """May it ask hosts of this operator (an id of operators.toml, or "other")?"""
        return operator not in self.never and (not self.only or operator in self.only)


class Egresses(Struct, frozen=True):
    """All egresses of an installation."""

    rows: tuple[Egress, ...] = (Egress(),)
    # An egress is quarantined once this share of its latest answers was `blocked_us`.
    quarantine_share: float = 0.5

    @property
    def is_default(self) -> bool:
        """Is there no file of egresses? Then the only egress may ask all hosts without limits."""
        return self.rows == ONE_EGRESS.rows


ONE_EGRESS = Egresses()


class StateListeners:
    """Those that are notified of each change of a state."""

    def __init__(self) -> None:
        self._listeners: dict[Callable[[], None], None] = {}

    def notify(self) -> None:
        for listener in tuple(self._listeners):
            listener()

    @contextmanager
    def notifying(self, listener: Callable[[], None]) -> Iterator[None]:
        """Call `listener` after each change, as long as the block lasts."""
        self._listeners[listener] = None
        try:
            yield
        finally:
            del self._listeners[listener]


class EgressControl(Protocol):
    """What may leave by each egress now, over all processes. Synchronous; never waits.

    The engine asks it before it sends, and reports the results.
    """

    def state(self, egress: str) -> EgressState:
        """Whether it may be used. A quarantined one may only be tried: see `reserve_trial`."""
        ...

    def notifying(self, listener: Callable[[], None]) -> AbstractContextManager[None]:
        """Call `listener` when a state has changed, for the length of the block."""
        ...

    def reserve(self, egress: str, count: int) -> int:
        """Count addresses that are about to be asked today; return how many of them may be."""
        ...

    def awaits_more(self, egress: str) -> bool:
        """reserve() has granted less than was wanted: may more of today's follow in a moment?

        False if all of today are used up.
        """
        ...

    def reserve_trial(self, egress: str) -> bool:
        """May this process ask one address by a quarantined egress now, to see how it fares?"""
        ...

    def answered(self, egress: str, operator: str, host: str, reason: str) -> None:
        """A mail host has answered (see `reasons`); `blocked_us` counts against the egress."""
        ...

    def quarantine(self, egress: str, why: str) -> None:
        """Too many hosts refuse it: it rests, in every process."""
        ...

    def release(self, egress: str) -> None:
        """Its trial was answered as usual: it may be used again."""
        ...
