"""Whom the engine tells what it does: how much and how long, never of whom.

The engine measures nothing itself. Whoever opens it may hand in a `Observer`;
without one the words go nowhere, and no clock is read for their sake.
"""

from dataclasses import dataclass
from typing import Literal, Protocol

from mailprobe.engine.smtp.replies.rules import ACCEPTED, NOT_UNDERSTOOD, Step
from mailprobe.engine.verdict import Outcome

Recalled = Literal["mx", "addresses"]

# The rules that are no rows of replies.toml.
OWN_RULES: tuple[str, ...] = (
    *("syntax", "disposable", "no_mx", "resolver", "smtp_blocked"),
    *("exchange.no-address", "exchange.not-public", "exchange.lookup-failed"),
    *("connect.failed", "clock.connect", "clock.overall"),
    *(f"{what}.{step.value}" for what in ("clock", "garbage", "closed") for step in Step),
    *("smtputf8.not-offered", "catch-all.random-accepted"),
    *(ACCEPTED.rule, NOT_UNDERSTOOD.rule),
)


class Observer(Protocol):
    """Told of each step as it is done. Every method is quick, waits for nothing and raises nothing.

    None is handed an address, a domain or a host. `began` is an instant of trio's
    clock: a watcher that wants to know how long something took reads the clock.
    """

    def text_read(self, began: float) -> None:
        """Layers 1, 2 and 5 are done with a text that was taken up then."""

    def route_read(self, began: float) -> None:
        """Layer 3 is done with an address that was taken up then."""

    def probe_settled(self, began: float) -> None:
        """Layer 4 is done with an address that entered it then."""

    def answer_emitted(self, outcome: Outcome, rule: str, addresses: int) -> None:
        """So many addresses got this outcome by this rule, one of `deciding_rules()`."""

    def recalled(self, what: Recalled) -> None:
        """A domain's exchanges, or an exchange's addresses, were known already."""

    def lookup_done(self, began: float, *, certain: bool) -> None:
        """A look-up that began then is over: the resolvers told the answer, or failed."""

    def connected(self, *, greeted: bool) -> None:
        """A connection to a mail host was tried: greeted, or it came to nothing."""

    def session_reused(self) -> None:
        """An idle session was woken for more questions."""

    def limit_lowered(self) -> None:
        """A mail host is found to bear fewer connections than it was given."""

    def host_backed_off(self, *, refused: bool) -> None:
        """A mail host is left alone from now on: it spoke against us, or could not be reached."""


class _NoObserver:
    def text_read(self, began: float) -> None: ...
    def route_read(self, began: float) -> None: ...
    def probe_settled(self, began: float) -> None: ...
    def answer_emitted(self, outcome: Outcome, rule: str, addresses: int) -> None: ...
    def recalled(self, what: Recalled) -> None: ...
    def lookup_done(self, began: float, *, certain: bool) -> None: ...
    def connected(self, *, greeted: bool) -> None: ...
    def session_reused(self) -> None: ...
    def limit_lowered(self) -> None: ...
    def host_backed_off(self, *, refused: bool) -> None: ...


NO_OBSERVER: Observer = _NoObserver()


@dataclass(frozen=True, slots=True)
class EngineStatistics:
    """What is under way in layer 4 at one moment."""

    probes: int  # admitted and not settled
    probes_in_flight: int  # that wait to be admitted: the desk is full
    probes_waiting: int  # admitted, and not on a connection yet
    connections: int  # open, being opened or parting
    hosts: int  # that are remembered
    hosts_backing_off: int
    hosts_waiting: int  # for a seat at an address that another host shares
