"""Reports the engine's work: counts and times, never addresses, domains or hosts.

The engine measures nothing itself. It notifies the `Observer` that open_engine() is given;
without one, nothing is reported and no extra clock is read.
"""

from typing import Literal, Protocol

from msgspec import Struct

from .verdict import Outcome

Recalled = Literal["mx", "addresses"]


class Observer(Protocol):
    """Notified of each step when it is done. Methods must be quick, and must not block or raise.

    No method gets an address, a domain or a host. `began` is a time on trio's clock; an
    observer that needs a duration reads the clock.
    """

    def text_read(self, began: float) -> None:
        """Layers 1, 2 and 5 are done for a text that was submitted at `began`."""

    def route_read(self, began: float) -> None:
        """Layer 3 is done for an address that was submitted at `began`."""

    def probe_settled(self, began: float) -> None:
        """Layer 4 is done for an address that entered it at `began`."""

    def answer_emitted(self, outcome: Outcome, rule: str, addresses: int, operator: str) -> None:
        """This many addresses got this outcome by this rule, one of `deciding_rules()`.

        `operator`: of the mail host that was asked last; OTHERS if it is not known.
        """

    def probe_decided(self, egress: str, operator: str, outcome: Outcome, rule: str) -> None:
        """Layer 4 has decided an address by this egress, for a mail host of this operator.

        Also where another egress asks again because this one was refused, or cannot be used.
        """

    def recalled(self, what: Recalled) -> None:
        """A domain's exchanges, or an exchange's addresses, were in the cache."""

    def lookup_done(self, began: float, *, certain: bool) -> None:
        """A look-up is over: the resolvers gave a certain answer, or failed."""

    def connected(self, *, greeted: bool) -> None:
        """A connection to a mail host was tried; `greeted` if the host sent its banner."""

    def session_reused(self) -> None:
        """An idle session was used again."""

    def limit_lowered(self) -> None:
        """The limit of connections to a mail host was lowered."""

    def recipient_refused(self, operator: str) -> None:
        """A recipient was refused for good at a host of this operator or software."""

    def budget_lacking(self, operator: str, *, random: bool) -> None:
        """A host tolerates no more refusals from us, so an address, or a random one, was not sent."""

    def host_backed_off(self, *, refused: bool) -> None:
        """A mail host is in back-off: it refused us (`refused`), or could not be reached."""


class NoObserver:
    """Ignores everything; a base for observers that want some of it."""

    def text_read(self, began: float) -> None: ...
    def route_read(self, began: float) -> None: ...
    def probe_settled(self, began: float) -> None: ...
    def answer_emitted(
        self, outcome: Outcome, rule: str, addresses: int, operator: str
    ) -> None: ...
    def probe_decided(self, egress: str, operator: str, outcome: Outcome, rule: str) -> None: ...
    def recalled(self, what: Recalled) -> None: ...
    def lookup_done(self, began: float, *, certain: bool) -> None: ...
    def connected(self, *, greeted: bool) -> None: ...
    def session_reused(self) -> None: ...
    def limit_lowered(self) -> None: ...
    def recipient_refused(self, operator: str) -> None: ...
    def budget_lacking(self, operator: str, *, random: bool) -> None: ...
    def host_backed_off(self, *, refused: bool) -> None: ...


NO_OBSERVER: Observer = NoObserver()


class EngineStatistics(Struct, frozen=True):
    """What is under way in layer 4 at one moment."""

    probes: int  # admitted and not settled
    probes_in_flight: int  # that wait to be admitted because all places are taken
    probes_waiting: int  # admitted, and not on a connection yet
    connections: int  # open, being opened or being closed
    hosts: int  # that are known
    hosts_backing_off: int
    hosts_waiting: int  # that wait for a connection to an address they share with another host
