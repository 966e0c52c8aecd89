"""Limits of recipients that a mail host shows by the position of its refusals.

A host that judges the first recipients of a transaction and refuses all later ones alike has
reached a limit, whatever its words: `452 4.5.3`, `550 5.7.1`, or text of any language. If a
new transaction cures the refusal, the limit is the transaction's. If its first recipient is
refused alike, the limit is the connection's. If the first recipient of a new connection is
refused alike, there is no limit: the refusal is the recipient's own, and its words prove
nothing by position for `OWN_S`. A host that closes, or refuses a further transaction, after
it has judged recipients shows a limit of the connection in the same way. It is one of the refused
recipients alone, such as smtpd_hard_error_limit of Postfix, if the last one was refused, and the
words say so or another session ended after as many refused ones, and another number in all.

One observation may be chance: a burst of temporary failures, or a host that restarts. So a
limit holds for `FIRST_S` at first. It holds for `KEPT_S` if its words speak of a count of
recipients, or if it is observed again later at the same count. Pure: time is an argument.
"""

import re
from enum import Enum

from msgspec import Struct, field
from msgspec.structs import replace

from .replies.text import TEXT_MAX, Names

UNLIMITED = 100  # RFC 5321 4.5.3.1.8: every server must accept so many, and no more are sent
FIRST_S = 60.0  # after a first observation; a restart or a burst of failures is over by then
KEPT_S = 6 * 3600.0  # after a second one; as long as what is known of a domain
OWN_S = 3600.0  # for which words that proved to be a recipient's own are remembered
OWN_MAX = 16  # of these; beyond them, no position at this host proves anything

_OF_REFUSALS = re.compile(
    r"too many (?:\w+ ){0,2}(?:errors?|failures|mistakes)"
    r"|(?:unknown|invalid|failed|bad|wrong|rejected|nonexistent) (?:recipient|user|rcpt|address)"
)  # of hosts that end a session after so many, in words of alike()
_NUMBERED = re.compile(r"\S*\d\S*")  # counts and queue ids vary from one refusal to the next


def alike(code: int, text: str) -> str:
    """Return what two refusals have in common if they differ only in names, numbers and ids."""
    words = _NUMBERED.sub(" ", Names().remove_from(text[:TEXT_MAX]))
    return " ".join([str(code), *words.lower().split()])


class Scope(Enum):
    """What a limit of recipients holds for."""

    TRANSACTION = "transaction"
    CONNECTION = "connection"
    REFUSALS = "refused recipients of a connection"


class Observation(Struct, frozen=True):
    """All recipients behind the first ones were refused alike, or the host closed.

    `judged` of the first ones were accepted or refused as no mailbox, `accepted` were
    accepted; of a limit of refusals, both are the refused ones. `sent_at` is when the
    recipients were written, `at` when this was seen.
    """

    refusal: str  # see alike()
    judged: int
    accepted: int
    sent_at: float
    at: float
    certain: bool = False  # the words speak of a count of recipients
    closed: bool = False  # the host closed, or refused a further transaction


class Limit(Struct, frozen=True):
    """A limit as last observed, and until when it holds."""

    recipients_max: int
    seen: Observation
    until: float

    def after(self, seen: Observation, recipients_max: int) -> "Limit":
        """A further observation: confirms this limit, lowers it, or replaces it.

        What was sent before this limit was known confirms nothing.
        """
        before = self.seen
        same = seen.refusal == before.refusal and (
            seen.judged == before.judged or seen.accepted == before.accepted
        )
        confirmed = same and seen.sent_at > before.at and seen.at < before.at + KEPT_S
        until = seen.at + (KEPT_S if confirmed or seen.certain else FIRST_S)
        if seen.at < self.until and recipients_max >= self.recipients_max:
            return Limit(self.recipients_max, seen, max(until, self.until))
        return Limit(recipients_max, seen, until)


class RecipientLimits(Struct, eq=False):
    """The limits of one host. The four numbers are read for each batch, so they are plain."""

    _declared: int = UNLIMITED  # per transaction, for this operator
    _limits: dict[Scope, Limit] = field(default_factory=dict)
    # refusals of recipients, and until when remembered
    _own: dict[str, float] = field(default_factory=dict)
    per_transaction: int = UNLIMITED
    per_connection: int = UNLIMITED
    refusals_per_connection: int = UNLIMITED
    width: int = UNLIMITED  # the least of both: recipients in one batch
    until: float = float("inf")  # when the first limit ends: then call update()

    @property
    def limits_connection(self) -> bool:
        """Is there a limit of recipients in one connection, so that a control may find no place?"""
        return self.per_connection < UNLIMITED

    def declare_one_each(self) -> None:
        """This operator's hosts accept one recipient per transaction."""
        self._declared = self.per_transaction = self.width = 1

    def observe_end(self, seen: Observation, *, after_refusal: bool) -> None:
        """The host closed, or refused a further transaction, after it had judged recipients."""
        refused, scope = seen.judged - seen.accepted, Scope.CONNECTION
        before = [each.seen for each in self._limits.values() if each.seen.refusal == seen.refusal]
        if after_refusal and (
            _OF_REFUSALS.search(seen.refusal)
            or any(
                each.judged != seen.judged and refused in (each.judged, each.judged - each.accepted)
                for each in before
            )
        ):
            scope, seen = Scope.REFUSALS, replace(seen, judged=refused, accepted=refused)
        self.observe(scope, seen)

    def observe(self, scope: Scope, seen: Observation) -> None:
        """A limit of this scope was met.

        Common servers count accepted recipients. In a connection, refused ones may count, too;
        but if the host closes, each recipient too many costs a connection.
        """
        counts_all = scope is Scope.CONNECTION and not seen.closed
        recipients_max = seen.judged if counts_all else seen.accepted
        self._limits[scope] = _observed(self._limits.get(scope), seen, recipients_max)
        self.update(seen.at)

    @property
    def in_force(self) -> bool:
        """Was a limit learned that holds now?"""
        return self.until != float("inf")

    def knows(self, refusal: str) -> bool:
        """Did this refusal show a limit before?"""
        return bool(self._shown_by(refusal))

    def is_of_connection(self, refusal: str) -> bool:
        """Did this refusal show a limit of the connection before, but not one of the transaction?"""
        shown = self._shown_by(refusal)
        return Scope.CONNECTION in shown and Scope.TRANSACTION not in shown

    def not_of_transaction(self, refusal: str, now: float) -> None:
        """A new transaction did not cure this refusal."""
        if Scope.TRANSACTION in self._shown_by(refusal):
            del self._limits[Scope.TRANSACTION]
            self.update(now)

    def _shown_by(self, refusal: str) -> list[Scope]:
        return [scope for scope, limit in self._limits.items() if limit.seen.refusal == refusal]

    def refute(self, refusal: str, now: float) -> None:
        """It came to the first recipient of a connection: it shows no limit.

        Not for words that speak of a count of recipients: the host may count those of several
        connections.
        """
        self._own = {each: until for each, until in self._own.items() if now < until}
        if len(self._own) < OWN_MAX:
            self._own[refusal] = now + OWN_S
        for scope in self._shown_by(refusal):
            del self._limits[scope]
        self.update(now)

    def is_own(self, refusal: str, now: float) -> bool:
        """Does this refusal speak of its recipient, whatever its position?"""
        return now < self._own.get(refusal, 0.0) or (
            len(self._own) >= OWN_MAX and all(now < until for until in self._own.values())
        )

    def update(self, now: float) -> None:
        """Set the numbers. A limit that has ended is remembered, to be confirmed later."""
        limits = {scope: limit for scope, limit in self._limits.items() if now < limit.until}
        most = {scope: limit.recipients_max for scope, limit in limits.items()}
        self.per_transaction = min(self._declared, most.get(Scope.TRANSACTION, UNLIMITED))
        self.per_connection = most.get(Scope.CONNECTION, UNLIMITED)
        self.refusals_per_connection = most.get(Scope.REFUSALS, UNLIMITED)
        self.until = min((limit.until for limit in limits.values()), default=float("inf"))
        self.width = min(self.per_transaction, self.per_connection)


def _observed(before: Limit | None, seen: Observation, recipients_max: int) -> Limit:
    recipients_max = max(1, recipients_max)
    if before is None:
        return Limit(recipients_max, seen, seen.at + (KEPT_S if seen.certain else FIRST_S))
    return before.after(seen, recipients_max)
