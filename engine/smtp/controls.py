"""Does a mail host still judge? Evidence from its own replies, and controls.

Some hosts turn after a number of refused recipients. From then on they refuse everybody as
unknown, or accept everybody. Each single reply reads as usual, so only the sequence can
tell. An acceptance proves that the refusals before it were true, and a refusal as unknown
proves the same of the acceptances before it. Where no such reply comes by itself, a control
is sent: an address that this host accepted, or one that it refused. A reply that contradicts
the earlier one shows that the host has turned.

Up to the highest count of refusals within COUNTED_S after which the host was seen to judge it is
trusted: it went on after so many. At a new record each verdict waits for a reply of the other
kind. A host that has accepted recipients of other egresses, and none of this one, is not
trusted from its first refusal: it may refuse everybody who comes this way. Likewise one that
has refused recipients of others alone. At a host that has accepted nobody yet, a list's
refusals wait for a proof that it judges at all.

Controls belong to the host, not to a session: a name goes out once in an hour, or sooner
where more of the tolerance is needed and no other address can show that the host judges.
Pure: time is an argument.
"""

from collections import OrderedDict, deque
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import Any

from ..verdict import Outcome
from .backoff import NEVER
from .catchall import Acceptance, DomainAcceptance
from .limits import alike
from .probe import Probe
from .replies.rules import Meaning, ReplyMeaning
from .replies.text import TEXT_MAX
from .wire import SmtpReply

RECORD_FIRST = 2  # refusals within COUNTED_S that change nothing at any host that we know
HOUR_S = 3600.0
COUNTED_S = 6 * HOUR_S  # most hosts count by the hour; those that count for longer turn later
CHANGED_S = 3600.0  # after a contradiction, unless the host is seen to answer truly before
KNOWN_MAX = 64  # addresses of each kind that are kept for controls
KNOWN_S_MAX = 6 * HOUR_S  # mailboxes that were accepted longer ago may have gone
SAMPLED_FROM, SAMPLE_S = 16, 1.0  # with so many kept: the time between two more
ASKED_AGAIN_S = HOUR_S  # the same name does not go out twice within it
ASKED_MAX = 1_000  # names of controls remembered at one host
PROOF_AGAIN_S = 60.0  # after a proof of growth that came to nothing
SAME_PROOF_S = 5.0  # until the same address may prove it again
UNCONFIRMED_FROM = 3  # refusals of a host that has accepted nobody, from which a list waits
UNCONFIRMED_S = HOUR_S  # then it is asked once more, and what it says then is told
EXCHANGES_MAX = 10_000  # of which egresses compare; the longest unused is removed first
RECORD_MAX = 4_096  # refusals that are counted
LEARNED_MAX = 256  # domains whose tests are dropped when the host has changed
UNCONFIRMED_RULE = "host.accepts-nobody"  # of a refusal that waits for a proof
CHANGED_RULE = "host.changed"  # decides what came since the last reply that was as before


class Treatment(Enum):
    """How a recipient was treated, where a host that has changed treats all alike."""

    ACCEPTED = "accepted"
    REFUSED = "refused"

    __hash__ = object.__hash__  # that of Enum takes longer, and each recipient needs seven

    @property
    def opposite(self) -> "Treatment":
        return Treatment.REFUSED if self is Treatment.ACCEPTED else Treatment.ACCEPTED


TREATMENT = {
    Outcome.DELIVERABLE: Treatment.ACCEPTED,
    Outcome.DELIVERABLE_UNTESTED: Treatment.ACCEPTED,
    Outcome.CATCH_ALL: Treatment.ACCEPTED,
    Outcome.UNDELIVERABLE: Treatment.REFUSED,
}
_ACCEPTED, _REFUSED = Treatment.ACCEPTED, Treatment.REFUSED


@dataclass(frozen=True, slots=True)
class Known:
    """A mailbox, how the host treated it, and when."""

    mailbox: str
    domain: DomainAcceptance
    at: float


class SharedControls:
    """What the egresses of an engine saw of each exchange, to be compared with. Bounded.

    By the exchange's name: addresses overlap as the owner of a domain likes.
    """

    def __init__(self) -> None:
        # The latest address that was treated so, by exchange and egress.
        self._seen: dict[Treatment, OrderedDict[str, dict[str, Known]]] = {
            treatment: OrderedDict() for treatment in Treatment
        }
        self._changed: OrderedDict[str, tuple[Treatment, float]] = OrderedDict()  # by exchange

    def by(self, egress: str) -> "EgressControls":
        """What this egress shares, and what it may compare with."""
        return EgressControls(egress, self)

    def note_seen(self, treatment: Treatment, exchange: str, egress: str, known: Known) -> None:
        seen = self._seen[treatment]
        seen.setdefault(exchange, {})[egress] = known
        _keep_latest(seen, exchange)

    def seen(self, treatment: Treatment, exchange: str) -> dict[str, Known]:
        return self._seen[treatment].get(exchange, {})

    def note_changed(self, treatment: Treatment, exchange: str, now: float) -> None:
        """The host treats all so since a contradiction: it may know us by more than an address."""
        self._changed[exchange] = treatment, now
        _keep_latest(self._changed, exchange)

    def changed_at(self, treatment: Treatment, exchange: str) -> float:
        """When it began to do so; NEVER if it did not."""
        changed, at = self._changed.get(exchange, (None, NEVER))
        return at if changed is treatment else NEVER


def _keep_latest(table: OrderedDict[str, Any], exchange: str) -> None:
    table.move_to_end(exchange)
    if len(table) > EXCHANGES_MAX:
        table.popitem(last=False)


@dataclass(frozen=True, slots=True)
class EgressControls:
    """The part of one egress in what all of them share."""

    _egress: str
    of_all: SharedControls

    def note_seen(self, treatment: Treatment, exchange: str, known: Known) -> None:
        self.of_all.note_seen(treatment, exchange, self._egress, known)

    def seen_elsewhere(self, treatment: Treatment, exchange: str, now: float) -> list[Known]:
        """Addresses of other egresses that were treated so."""
        return [
            known
            for egress, known in self.of_all.seen(treatment, exchange).items()
            if egress != self._egress
            and now - known.at < KNOWN_S_MAX
            # A domain that accepts all proves nothing by it.
            and (treatment is _REFUSED or known.domain.acceptance is not Acceptance.ALL)
        ]


@dataclass(slots=True, eq=False)
class HostControls:
    """What one host's earlier replies allow to be compared with later ones."""

    _shared: EgressControls | None = None  # what others have seen; None if there is one egress
    _exchange: str = ""  # of the recipient that was answered last
    _known: dict[Treatment, deque[Known]] = field(
        default_factory=lambda: {each: deque(maxlen=KNOWN_MAX) for each in Treatment}
    )
    comparable: bool = False  # it has accepted a recipient
    _next_sample_at: float = NEVER
    _asked_at: OrderedDict[str, float] = field(default_factory=OrderedDict)  # controls, by name
    _postmaster_refused_at: float = NEVER
    _proof_tried_at: float = NEVER
    proving_until: float = NEVER  # until then a proof of growth is under way
    _refused_listed: DomainAcceptance | None = None  # the latest of a refused listed one
    _learned: deque[DomainAcceptance] = field(default_factory=partial(deque, maxlen=LEARNED_MAX))
    # When recipients were refused as unknown, within COUNTED_S.
    _refused_at: deque[float] = field(default_factory=partial(deque, maxlen=RECORD_MAX))
    # Most refusals within COUNTED_S after which it accepted somebody, and refused somebody.
    # For requests a control that was refused counts itself: else each one would need another.
    record: dict[Treatment, int] = field(
        default_factory=lambda: dict.fromkeys(Treatment, RECORD_FIRST)
    )
    session_record: dict[Treatment, int] = field(  # the same in one session
        default_factory=lambda: dict.fromkeys(Treatment, RECORD_FIRST)
    )
    controlled: int = RECORD_FIRST
    session_controlled: int = RECORD_FIRST
    row_takes: int = 0  # refusals within COUNTED_S that its row says it takes
    # When a recipient was treated so, and that was believed.
    seen_at: dict[Treatment, float] = field(default_factory=lambda: dict.fromkeys(Treatment, NEVER))
    # It has refused UNCONFIRMED_FROM and accepted nobody, or more than its record and nobody since.
    _nobody_since: float | None = None
    changed: Treatment | None = None  # how the host treats all since a contradiction
    changed_at: float = NEVER
    _changed_until: float = NEVER

    def count(self, now: float) -> int:
        """Recipients refused as unknown within COUNTED_S."""
        refused_at = self._refused_at
        while refused_at and refused_at[0] <= now - COUNTED_S:
            refused_at.popleft()
        return len(refused_at)

    @property
    def took(self) -> int:
        """Most refusals within COUNTED_S after which it went on judging."""
        return min(self.record.values())

    def trust(self, took: int) -> None:
        """It did so after so many, as another process has seen."""
        for treatment, count in self.record.items():
            self.record[treatment] = max(count, took)

    def rely(self, takes: int) -> None:
        """A row of the operators says that it judges after so many. Nothing has shown it."""
        self.row_takes = max(self.row_takes, takes)

    def note_accepted(
        self,
        mailbox: str,
        domain: DomainAcceptance,
        now: float,
        *,
        of_all: bool = False,
        refused: int | None = None,
    ) -> None:
        """A recipient was accepted at `now`, and that is believed.

        `of_all`: as everybody is at its domain, so that it proves nothing as a control. `refused`:
        the refusals before it, where there were more since.
        """
        self._see(_ACCEPTED, now, refused)
        if now >= self._next_sample_at and not of_all:
            known = self._known[_ACCEPTED]
            self._next_sample_at = now + SAMPLE_S * (len(known) >= SAMPLED_FROM)
            self._keep(_ACCEPTED, Known(mailbox, domain, now))
        self.comparable = True
        self._nobody_since = None

    def note_refused(self, now: float) -> None:
        """A recipient was refused as unknown: a listed one, or a random one."""
        count = self.count(now)
        if count > self.record[_REFUSED]:
            self.record[_REFUSED] = count  # it refuses after so many
        self.seen_at[_REFUSED] = now
        self._refused_at.append(now)
        if not self.comparable and self._nobody_since is None and count + 1 >= UNCONFIRMED_FROM:
            self._nobody_since = now

    def note_control_refused(self, now: float) -> None:
        """A control was refused as it was before: the host judges."""
        self.note_refused(now)
        self.controlled = max(self.controlled, self.count(now))

    def _see(self, treatment: Treatment, now: float, refused: int | None = None) -> None:
        self.seen_at[treatment] = max(now, self.seen_at[treatment])
        if refused is None:
            refused = self.count(now) if self._refused_at else 0
        if refused > self.record[treatment]:
            self.record[treatment] = refused

    def note_tested(
        self, domain: DomainAcceptance, mailbox: str, acceptance: Acceptance, now: float
    ) -> None:
        """A test of this domain was answered so."""
        self._learned.append(domain)
        if acceptance is Acceptance.SOME:
            self._keep(_REFUSED, Known(mailbox, domain, now))

    def note_learned(self, domain: DomainAcceptance) -> None:
        """What a test of this domain has shown so far is dropped when the host has changed.

        So is what another engine has found, and the refusal of the first of two random names.
        """
        self._learned.append(domain)

    def note_listed_refused(self, domain: DomainAcceptance, now: float) -> None:
        """A listed address of this domain was refused as unknown, and that is believed."""
        self._refused_listed = domain
        self._keep(_REFUSED, Known(domain.at.unknown_mailbox, domain, now))

    def _keep(self, treatment: Treatment, known: Known) -> None:
        self._known[treatment].append(known)
        if self._shared is not None:
            self._shared.note_seen(treatment, self._exchange, known)

    # -- is a verdict believed? ------------------------------------------------------------------

    def note_session(self, treatment: Treatment, refused: int) -> None:
        """A recipient was treated so in a session, after so many were refused in it."""
        if refused > self.session_record[treatment]:
            self.session_record[treatment] = refused

    def note_session_controlled(self, refused: int) -> None:
        """A control was refused in a session, the recipient of this number."""
        self.session_controlled = max(self.session_controlled, refused)

    def must_confirm(self, probe: Probe, treatment: Treatment, refused: int, now: float) -> bool:
        """May the host treat all alike by now, so that this verdict is to be confirmed?

        `refused`: recipients of this session, as unknown.
        """
        if self._shared is not None:
            self._exchange = probe.target.exchange.name
        of_list = probe.deferred_start
        return self.has_changed(now) or self.is_at_record(treatment, refused, now, of_list=of_list)

    def may_be_due(self, now: float) -> bool:
        """May the next refusals have to be confirmed by a control?"""
        if not self.comparable:
            return self._shared is not None
        return bool(self._refused_at) and self.count(now) >= self.record[_ACCEPTED]

    def is_at_record(
        self, treatment: Treatment, refused: int, now: float, *, of_list: bool
    ) -> bool:
        """The same of a random address, where the host has not changed."""
        if self._shared is not None and self.treats_others_only(treatment.opposite, now):
            return True
        if self.is_doubted(treatment, now):
            return True
        # Of an acceptance, the record is that of refusals after it, and the other way round.
        other = _REFUSED if treatment is _ACCEPTED else _ACCEPTED
        in_hour, in_session = self.record[other], self.session_record[other]
        if other is _REFUSED and not of_list:
            in_hour = max(in_hour, self.controlled)
            in_session = max(in_session, self.session_controlled)
        return self.count(now) > in_hour or refused > in_session

    def treats_others_only(self, treatment: Treatment, now: float) -> bool:
        """Has the host treated recipients of other egresses so, and none of this one?"""
        is_seen = self.seen_at[treatment] != NEVER
        return not is_seen and bool(self._seen_elsewhere(treatment, now))

    def _seen_elsewhere(self, treatment: Treatment, now: float) -> list[Known]:
        shared = self._shared
        return [] if shared is None else shared.seen_elsewhere(treatment, self._exchange, now)

    def accepted_nobody(self) -> bool:
        """Has it refused several, and accepted none yet, or none since?"""
        return self._nobody_since is not None

    def note_unconfirmed(self, now: float) -> None:
        """It refused more than ever before an acceptance, and nothing was left to compare with."""
        if self._nobody_since is None or now - self._nobody_since >= KNOWN_S_MAX:
            self._nobody_since = now

    def unconfirmed_s(self, now: float) -> float:
        """Seconds that a list waits until what a host that accepts nobody says is told; 0: no longer."""
        since = self._nobody_since
        return 0.0 if since is None else max(0.0, since + UNCONFIRMED_S - now)

    def note_seen(self, treatment: Treatment) -> None:
        """The host treated a recipient so: it does not treat all in the other way any more."""
        if self.changed is not None and self.changed is not treatment:
            self.changed = None

    def is_doubted(self, treatment: Treatment, now: float) -> bool:
        """Did the host begin to treat all so, and was it not seen to judge since?"""
        at = self.changed_at if self.changed is treatment else NEVER
        if self._shared is not None:
            at = max(at, self._shared.of_all.changed_at(treatment, self._exchange))
        return now - at < KNOWN_S_MAX and self.seen_at[treatment.opposite] <= at

    def has_changed(self, now: float) -> bool:
        """True since a contradiction, until the host was seen to answer truly again."""
        return self.changed is not None and now < self._changed_until

    def known(self) -> list[Known]:
        """The addresses that may be sent again as controls."""
        return [each for known in self._known.values() for each in known]

    # -- controls --------------------------------------------------------------------------------

    def find(self, treatment: Treatment, domain: DomainAcceptance, now: float) -> Known | None:
        """An address that was treated so before; of this domain, if one of its own is known.

        None of those that went out within the hour.
        """
        usable = [each for each in self._known[treatment] if self._may_ask(each, now)]
        if not usable:
            elsewhere = self._seen_elsewhere(treatment, now)
            usable = [each for each in elsewhere if self._may_ask(each, now)]
        own = [each for each in usable if each.domain.name == domain.name]
        return next(reversed(own or usable), None)

    def _may_ask(self, known: Known, now: float) -> bool:
        asked_at = self._asked_at.get(known.mailbox, NEVER)
        return now - known.at < KNOWN_S_MAX and now - asked_at >= ASKED_AGAIN_S

    def acceptance_free_s(self, now: float) -> float | None:
        """Seconds until an address that it accepted may go out again; None if it knows none."""
        free_at = [
            max(now, self._asked_at.get(each.mailbox, NEVER) + ASKED_AGAIN_S)
            for each in self._known[_ACCEPTED]
            if now - each.at < KNOWN_S_MAX
        ]
        return min(free_at) - now if free_at else None

    def postmaster(self, domain: DomainAcceptance, now: float) -> Known | None:
        """The one address that a domain must accept (RFC 5321 4.5.1), unless it was asked or refused."""
        known = Known(f"postmaster@{domain.name}", domain, now)
        refused = now - self._postmaster_refused_at < KNOWN_S_MAX
        return None if refused or not self._may_ask(known, now) else known

    def asks(self, mailbox: str, now: float) -> None:
        """This name goes out as a control."""
        self._asked_at.pop(mailbox, None)
        self._asked_at[mailbox] = now
        if len(self._asked_at) > ASKED_MAX:
            self._asked_at.popitem(last=False)

    def may_prove(self, domain: DomainAcceptance, now: float) -> bool:
        """Can a control show that the host still judges?"""
        if now - self._proof_tried_at < PROOF_AGAIN_S:
            return False
        return self.find_proof(domain, now) is not None

    def find_proof(self, domain: DomainAcceptance, now: float) -> tuple[Known, bool] | None:
        """The address whose acceptance shows that the host still judges, and is it a postmaster?

        Where each went out within the hour, the one that did so first goes out once more: an
        acceptance costs nothing, and without it a list would wait for the end of the hour.
        """
        if (known := self.find(_ACCEPTED, domain, now)) is not None:
            return known, False
        if (known := self.postmaster(domain, now)) is not None:
            return known, True
        asked_at = self._asked_at
        again = [
            each
            for each in self._known[_ACCEPTED]
            if now - each.at < KNOWN_S_MAX
            and now - asked_at.get(each.mailbox, NEVER) >= SAME_PROOF_S
        ]
        if not again:
            return None
        return min(again, key=lambda each: asked_at.get(each.mailbox, NEVER)), False

    def proves(self, now: float, within_s: float) -> None:
        """A control that shows it is under way."""
        self.proving_until = now + within_s
        self._proof_tried_at = now

    def proof_answered(self, *, accepted: bool) -> None:
        self.proving_until = NEVER
        if accepted:
            self._proof_tried_at = NEVER

    def note_postmaster_refused(self, now: float) -> None:
        self._postmaster_refused_at = now

    def contradict(self, control: Known, treatment: Treatment, now: float) -> int | None:
        """The control was treated so this time, unlike before: drop what was learned.

        The control is dropped, too: its mailbox may be gone, or its domain accept all by now.
        Returns how many refusals an hour the host takes without turning; None where it was not
        seen to judge since the contradiction before: that it goes on says nothing of a limit.
        """
        goes_on = self.changed is treatment
        self.changed, self.changed_at = treatment, now
        self.row_takes = 0
        if self._shared is not None:
            self._shared.of_all.note_changed(treatment, self._exchange, now)
        self._changed_until = now + CHANGED_S
        for known in self._known.values():
            if control in known:
                known.remove(control)
        self._next_sample_at = NEVER
        for domain in self._learned:
            domain.forget()
        self._learned.clear()
        control.domain.forget()
        control.domain.at.forget_refusal()
        if goes_on:
            return None
        in_hour = sum(at > now - HOUR_S for at in self._refused_at)
        return max(1, min(in_hour, *self.record.values()) - 1)

    def is_own_refusal(
        self, domain: DomainAcceptance, mailbox: str, reply: SmtpReply, reading: ReplyMeaning
    ) -> bool:
        """Was a random address refused in the host's own words for an unknown user?

        These are the words in which it refused a listed address, of this domain or else the
        latest of another. Where it has refused none, they must state that there is no such user.
        """
        if reply.code < 500 or reading.meaning not in (Meaning.NO_MAILBOX, Meaning.DISABLED):
            return False
        words = wording(reply, mailbox)
        if domain.at.unknown_mailbox:
            return words == _own_words(domain)
        if self._refused_listed is not None and words == _own_words(self._refused_listed):
            return True
        return reading.rule in PLAIN_RULES


# -- the host's own words ----------------------------------------------------------------------

# Rules of replies that state in words that there is no such user. Others read a code, or words
# such as "invalid recipient", which a host that judges the shape of a name says as well.
PLAIN_RULES = frozenset(
    f"no-mailbox.{name}"
    for name in ("unknown", "unknown-noun", "absent", "none", "not-here", "edge-block")
)


def wording(reply: SmtpReply, mailbox: str) -> str:
    """The words of a reply to this recipient, without what varies from one to the next."""
    text = " ".join(reply.lines)[:TEXT_MAX].lower()
    return alike(reply.code, _without_name(text, mailbox.rpartition("@")[0].lower()))


def _without_name(text: str, local: str) -> str:
    """Put @ in the place of each `local` that is a word of its own and no part of an address.

    Without a pattern: each would be compiled for one recipient, which took 4 % of a cold list.
    """
    parts: list[str] = []
    copied = start = 0
    while local and (place := text.find(local, start)) >= 0:
        end = place + len(local)
        before, after = text[place - 1 : place], text[end : end + 1]
        start = place + 1
        if not _in_word(before) and not _in_word(after) and after != "@":
            parts += text[copied:place], "@"
            copied = start = end
    return "".join([*parts, text[copied:]])


def _in_word(character: str) -> bool:
    return character.isalnum() or character == "_"


def _own_words(domain: DomainAcceptance) -> str:
    """The words of its latest refusal of a listed address as unknown; empty if there is none."""
    at = domain.at
    if at.unknown_reply is None or not at.unknown_mailbox:
        return ""
    return wording(at.unknown_reply, at.unknown_mailbox)
