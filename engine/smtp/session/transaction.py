"""The mail transaction of a session: which recipients may share it, and when to open a new one.

Limits that the server announces (RFC 9422) are kept; the defaults are those of common servers.
"""

from collections.abc import Sequence

from msgspec import Struct, field

from .. import wire
from ..probe import Probe
from ..wire import Command, SmtpState, Stage
from .batch import CatchAllTest, PendingProbe, domain_here
from .host import SessionHost
from .recipient_limits import RECIPIENTS_MAX, SessionLimits

RESETS_MAX = 8  # Exim closes after 10 commands other than mail, RSET included


class Transaction(Struct, eq=False):
    """The transaction under way, and the count of those before it."""

    _state: SmtpState
    _host: SessionHost
    _limits: SessionLimits
    _count: int = 0  # transactions so far
    _domains: set[str] = field(default_factory=set)  # of its recipients, if the server limits them
    resets: int = 0  # of the session: RSET, NOOP and the like
    sender: str = ""
    smtputf8: bool = False

    @property
    def may_reset(self) -> bool:
        return self.resets < RESETS_MAX

    def count_reset(self) -> None:
        """RSET, NOOP or the like is sent."""
        self.resets += 1

    @property
    def recipients_max(self) -> int:
        """The server's limit, declared or learned."""
        declared = self._state.offer.recipients_max or RECIPIENTS_MAX
        learned = self._host.terms.limits.per_transaction
        return learned if learned < declared else declared

    @property
    def room(self) -> int:
        """Recipients of the next batch. In the last transaction, they must all fit into it."""
        most, offer = self.recipients_max, self._state.offer
        if offer.transactions_max is None or self._count < offer.transactions_max:
            return most
        return max(1, most - self._limits.in_transaction)

    def open(self, asked: Sequence[PendingProbe]) -> list[Command]:
        """Begin a new transaction for these. Returns RSET and MAIL as needed."""
        opening = []
        if self._state.stage is Stage.MAIL:
            self.resets += 1
            opening = [wire.RSET]
        self._count += 1
        self._limits.begin_transaction()
        self._domains = set()
        self.join(asked)
        self.smtputf8 = asked[0].smtputf8
        self.sender = self._host.terms.senders[0]
        return [*opening, wire.mail(self.sender, smtputf8=self.smtputf8)]

    def join(self, asked: Sequence[PendingProbe]) -> None:
        """These are sent in the transaction under way."""
        if self._state.offer.domains_max is not None:
            self._domains.update(domain_here(each).name for each in asked)

    def must_open(self, asked: Sequence[PendingProbe]) -> bool:
        """Do these need another transaction than the one under way?"""
        if (
            self._state.stage is not Stage.MAIL
            or (asked[0].smtputf8 and not self.smtputf8)  # `asked` are alike
            or self.sender != self._host.terms.senders[0]
        ):
            return True
        offer, count = self._state.offer, self._limits.in_transaction + len(asked)
        # recipients_max, written here to save a call for each batch
        if count > self._host.terms.limits.per_transaction or (
            count > (offer.recipients_max or RECIPIENTS_MAX)
        ):
            return True
        if offer.domains_max is None:
            return False
        return len(self._domains | {domain_here(each).name for each in asked}) > offer.domains_max

    def may_open(self, asked: Sequence[PendingProbe]) -> bool:
        """Is one more transaction left to this session? The last reset is kept for a test."""
        transactions_max = self._state.offer.transactions_max
        if transactions_max is not None and self._count >= transactions_max:
            return False
        if self._state.stage is not Stage.MAIL:
            return True
        return self.resets < RESETS_MAX - (not isinstance(asked[0], CatchAllTest))

    def may_share(self, asked: Sequence[PendingProbe], probe: PendingProbe) -> bool:
        """May the probe join these in one transaction? LIMITS and SMTPUTF8 decide."""
        if isinstance(probe, Probe) and probe.smtputf8 != asked[-1].smtputf8:  # `asked` are alike
            return False
        domains_max = self._state.offer.domains_max
        if domains_max is None:
            return True
        return len({domain_here(each).name for each in (*asked, probe)}) <= domains_max
