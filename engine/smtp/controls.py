"""Evidence of whether a mail host still judges: its own replies, and controls.

Some hosts turn after a number of refused recipients. From then on they refuse everybody as
unknown, or accept everything. Each single reply reads as usual, so only the sequence can
tell. An acceptance proves that the refusals before it were true, and a refusal as unknown
proves the same of the acceptances before it. Where no such reply comes by itself, a control
is sent: an address that this host accepted, or one that it refused. A reply that contradicts
the earlier one shows that the host has turned.

The host's record is the highest count of refusals within COUNTED_S after which it was seen to
judge. Up to its record it is trusted. Beyond it each verdict waits for a reply of the other
kind. A host that has accepted recipients of other egresses, and none of this one, is not
trusted from its first refusal: it may refuse all recipients of this egress. Likewise one that
has only refused recipients of others. At a host that has accepted no recipient yet, a list's
refusals wait for a proof that it judges at all.

Controls belong to the host, not to a session: a name goes out once in an hour, or sooner
where more of the tolerance is needed and no other address can show that the host judges.
Pure: time is an argument.
"""

from collections import OrderedDict, deque
from enum import Enum
from functools import partial
from math import inf
from typing import Any

from msgspec import Struct, field

from ..verdict import Outcome
from .backoff import NEVER
from .catchall import Acceptance, DomainAcceptance
from .limits import alike
from .probe import Probe
from .replies.rules import Meaning, ReplyMeaning
from .replies.text import TEXT_MAX
from .wire import SmtpReply

RECORD_FIRST = 2  # refusals within COUNTED_S after which all hosts that we know still judge
HOUR_S = 3600.0
COUNTED_S = 6 * HOUR_S  # most hosts count by the hour; those that count for longer turn later
CHANGED_S = 3600.0  # after a contradiction, unless the host is seen to answer truly before
KNOWN_MAX = 64  # addresses of each kind that are kept for controls
KNOWN_S_MAX = 6 * HOUR_S  # mailboxes that were accepted longer ago may have gone
SAMPLED_FROM, SAMPLE_S = 16, 1.0  # with so many that may be sent: the time between two more
ASKED_AGAIN_S = HOUR_S  # the same name does not go out twice within it
ASKED_MAX = 1_000  # names of controls remembered at one host
PROOF_AGAIN_S = 60.0  # after a proof of growth that came to nothing
UNCONFIRMED_FROM = 3  # refusals of a host that has accepted none, from which a list waits
UNCONFIRMED_S = HOUR_S  # then the host is asked once more, and that answer counts
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


class Known(Struct, frozen=True):
    """A mailbox, how the host treated it, and when."""

    mailbox: str
    domain: DomainAcceptance
    at: float


class SharedControls(Struct, frozen=True):
    """How each exchange treated the egresses of an engine, for comparison. Bounded.

    By the exchange's name: the owner of a domain may name addresses of any other host.
    """

    # By treatment: the latest address that got it, by exchange and egress.
    seen: dict[Treatment, OrderedDict[str, dict[str, Known]]] = field(
        default_factory=lambda: {treatment: OrderedDict() for treatment in Treatment}
    )
    # How a host treats all recipients since a contradiction, and since when, by exchange.
    changed: OrderedDict[str, tuple[Treatment, float]] = field(default_factory=OrderedDict)


def _keep_latest(table: OrderedDict[str, Any], exchange: str) -> None:
    table.move_to_end(exchange)
    if len(table) > EXCHANGES_MAX:
        table.popitem(last=False)


class EgressControls(Struct, eq=False):
    """The view of one egress, at one of its hosts, on the controls that all egresses share."""

    _egress: str
    _of_all: SharedControls
    _exchange: str = ""  # of the recipient that was answered last

    def answered_at(self, exchange: str) -> None:
        """A recipient that was sent to this exchange is answered."""
        self._exchange = exchange

    def note_seen(self, treatment: Treatment, known: Known) -> None:
        """Record how an address of this egress was treated."""
        seen = self._of_all.seen[treatment]
        seen.setdefault(self._exchange, {})[self._egress] = known
        _keep_latest(seen, self._exchange)

    def seen_elsewhere(self, treatment: Treatment, now: float) -> list[Known]:
        """Addresses of other egresses that got this treatment."""
        return [
            known
            for egress, known in self._of_all.seen[treatment].get(self._exchange, {}).items()
            if egress != self._egress
            and now - known.at < KNOWN_S_MAX
            # A domain that accepts all proves nothing by it.
            and (treatment is _REFUSED or known.domain.acceptance is not Acceptance.ALL)
        ]

    def note_changed(self, treatment: Treatment, now: float) -> None:
        """The host treats all this way since a contradiction, perhaps at other egresses, too."""
        self._of_all.changed[self._exchange] = treatment, now
        _keep_latest(self._of_all.changed, self._exchange)

    def changed_at(self, treatment: Treatment) -> float:
        """When the host began to treat all this way, at any egress; NEVER if it did not."""
        changed, at = self._of_all.changed.get(self._exchange, (None, NEVER))
        return at if changed is treatment else NEVER


class KnownAddresses(Struct, eq=False):
    """The addresses of one host that may be controls, and which of them were sent."""

    _shared: EgressControls | None = None  # what others have seen; None if there is one egress
    kept: dict[Treatment, deque[Known]] = field(
        default_factory=lambda: {each: deque(maxlen=KNOWN_MAX) for each in Treatment}
    )
    next_sample_at: float = NEVER
    _asked_at: OrderedDict[str, float] = field(default_factory=OrderedDict)  # controls, by name
    _postmaster_refused_at: float = NEVER
    _proof_tried_at: float = NEVER
    proving_until: float = NEVER  # until then a proof of growth is under way

    # -- which are known -----------------------------------------------------------------------

    def add(self, treatment: Treatment, known: Known) -> None:
        """Keep an address that got this treatment."""
        self.kept[treatment].append(known)
        if self._shared is not None:
            self._shared.note_seen(treatment, known)

    def sample(self, mailbox: str, domain: DomainAcceptance, now: float) -> None:
        """Keep an accepted address. If many may be sent: one now and then, by `next_sample_at`."""
        self.add(_ACCEPTED, Known(mailbox, domain, now))
        self.next_sample_at = now + SAMPLE_S * (
            # so many at least were not sent
            len(self.kept[_ACCEPTED]) - len(self._asked_at) >= SAMPLED_FROM
        )

    def drop(self, control: Known) -> None:
        """Drop an address that was answered otherwise than before: its mailbox may be gone."""
        for known in self.kept.values():
            if control in known:
                known.remove(control)
        self.next_sample_at = NEVER

    def seen_elsewhere(self, treatment: Treatment, now: float) -> list[Known]:
        """Addresses of other egresses that got this treatment."""
        return [] if self._shared is None else self._shared.seen_elsewhere(treatment, now)

    # -- which is sent -------------------------------------------------------------------------

    def find(self, treatment: Treatment, domain: DomainAcceptance, now: float) -> Known | None:
        """Return an address that got this treatment before, if possible one of this domain.

        Those that were sent within the hour are left out.
        """
        usable = [each for each in self.kept[treatment] if self._may_ask(each, now)]
        if not usable:
            elsewhere = self.seen_elsewhere(treatment, now)
            usable = [each for each in elsewhere if self._may_ask(each, now)]
        own = [each for each in usable if each.domain.name == domain.name]
        return next(reversed(own or usable), None)

    def _may_ask(self, known: Known, now: float) -> bool:
        asked_at = self._asked_at.get(known.mailbox, NEVER)
        return now - known.at < KNOWN_S_MAX and now - asked_at >= ASKED_AGAIN_S

    def acceptance_free_s(self, now: float) -> float | None:
        """Seconds until an accepted address may be sent again; None if none is known."""
        free_at = [
            max(now, self._asked_at.get(each.mailbox, NEVER) + ASKED_AGAIN_S)
            for each in self.kept[_ACCEPTED]
            if now - each.at < KNOWN_S_MAX
        ]
        return min(free_at) - now if free_at else None

    def postmaster(self, domain: DomainAcceptance, now: float) -> Known | None:
        """The one address that a domain must accept (RFC 5321 4.5.1), unless it was sent or refused."""
        known = Known(f"postmaster@{domain.name}", domain, now)
        refused = now - self._postmaster_refused_at < KNOWN_S_MAX
        return None if refused or not self._may_ask(known, now) else known

    def asks(self, mailbox: str, now: float) -> None:
        """This name is sent as a control."""
        self._asked_at.pop(mailbox, None)
        self._asked_at[mailbox] = now
        self.next_sample_at = NEVER
        if len(self._asked_at) > ASKED_MAX:
            self._asked_at.popitem(last=False)

    def may_prove(self, domain: DomainAcceptance, now: float) -> bool:
        """Can a control show that the host still judges?"""
        was_tried = now - self._proof_tried_at < PROOF_AGAIN_S
        return not was_tried and self.find_proof(domain, now) is not None

    def find_proof(self, domain: DomainAcceptance, now: float) -> tuple[Known, bool] | None:
        """Return an address whose acceptance would show that the host still judges.

        True with it if it is the domain's postmaster, which is sent where no address was accepted:
        it may be refused. If each was sent within the hour, the one sent first is sent again: an
        acceptance costs nothing, and each growth takes one.
        """
        if (known := self.find(_ACCEPTED, domain, now)) is not None:
            return known, False
        again = [each for each in self.kept[_ACCEPTED] if now - each.at < KNOWN_S_MAX]
        if again:
            return min(again, key=lambda each: self._asked_at.get(each.mailbox, NEVER)), False
        known = self.postmaster(domain, now)
        return None if known is None else (known, True)

    def proves(self, now: float, within_s: float) -> None:
        """A control is under way that may show it."""
        self.proving_until = now + within_s
        self._proof_tried_at = now

    def proof_answered(self, *, accepted: bool) -> None:
        self.proving_until = NEVER
        if accepted:
            self._proof_tried_at = NEVER

    def note_postmaster_refused(self, now: float) -> None:
        self._postmaster_refused_at = now
        self._proof_tried_at = NEVER  # an address that is accepted from now on may prove it


class RefusalRecord(Struct, eq=False):
    """How many recipients one host has refused, and after how many it was seen to judge."""

    # When recipients were refused as unknown, within COUNTED_S.
    _times: deque[float] = field(default_factory=partial(deque, maxlen=RECORD_MAX))
    # The same of those that were not confirmed: it may have refused everybody then.
    _unbelieved: deque[float] = field(default_factory=partial(deque, maxlen=RECORD_MAX))
    _doubted_since: float = inf  # a refusal that was not confirmed, until a recipient is accepted
    # Most refusals within COUNTED_S after which it accepted somebody, and refused somebody.
    # For requests a refused control counts, too: else each one would need another.
    in_all: dict[Treatment, int] = field(
        default_factory=lambda: dict.fromkeys(Treatment, RECORD_FIRST)
    )
    # The same in one session.
    in_session: dict[Treatment, int] = field(
        default_factory=lambda: dict.fromkeys(Treatment, RECORD_FIRST)
    )
    _controlled: int = RECORD_FIRST
    _session_controlled: int = RECORD_FIRST

    def count(self, now: float) -> int:
        """Recipients refused as unknown within COUNTED_S."""
        for times in (self._times, self._unbelieved):
            while times and times[0] <= now - COUNTED_S:
                times.popleft()
        return len(self._times) + len(self._unbelieved)

    def _believed(self, now: float) -> int:
        """Those of them after which it may still have judged."""
        return self.count(now) - len(self._unbelieved)

    def doubt(self, since: float) -> None:
        """A refusal at that time was not confirmed: those since do not show how many it takes."""
        self._doubted_since = min(since, self._doubted_since)

    def add(self, refused_here: int, now: float) -> int:
        """A recipient was refused as unknown, after so many in its session. Returns the new count."""
        count = self.count(now)
        self.in_all[_REFUSED] = max(count, self.in_all[_REFUSED])  # it refuses after so many
        self.in_session[_REFUSED] = max(refused_here, self.in_session[_REFUSED])
        self._times.append(now)
        return count + 1

    # -- after how many it judges ----------------------------------------------------------------

    @property
    def took(self) -> int:
        """Most refusals within COUNTED_S after which it still judged."""
        return min(self.in_all.values())

    def trust(self, took: int) -> None:
        """Another process has seen that it still judged after so many."""
        for treatment, count in self.in_all.items():
            self.in_all[treatment] = max(count, took)

    def note_accepted(self, refused: int | None, refused_here: int, now: float) -> None:
        """A recipient was accepted after so many, and so many of its session; None: after all."""
        if self._doubted_since < inf:  # an acceptance after a rest proves nothing of those before
            self._unbelieved.extend(at for at in self._times if at >= self._doubted_since)
            while self._times and self._times[-1] >= self._doubted_since:
                self._times.pop()
            self._doubted_since = inf
        if refused is None and len(self._times) > self.in_all[_ACCEPTED]:
            refused = self._believed(now)
        self.in_all[_ACCEPTED] = max(min(refused or 0, len(self._times)), self.in_all[_ACCEPTED])
        self.in_session[_ACCEPTED] = max(refused_here, self.in_session[_ACCEPTED])

    def note_controlled(self, refused_here: int, now: float) -> None:
        """A control was refused, which makes so many in its session."""
        self._controlled = max(self._controlled, self.count(now))
        self._session_controlled = max(self._session_controlled, refused_here)

    # -- does it judge after this many? ----------------------------------------------------------

    def is_reached(self, now: float) -> bool:
        """Would the next refusal be more than it gave before an acceptance?"""
        least = self.in_all[_ACCEPTED]
        return len(self._times) + len(self._unbelieved) >= least and self.count(now) >= least

    def is_exceeded(self, treatment: Treatment, refused: int, now: float, *, of_list: bool) -> bool:
        """Were more refused, or `refused` of one session, than before a reply of the other kind?"""
        other = _REFUSED if treatment is _ACCEPTED else _ACCEPTED
        in_all, in_session = self.in_all[other], self.in_session[other]
        if other is _REFUSED and not of_list:
            in_all = max(in_all, self._controlled)
            in_session = max(in_session, self._session_controlled)
        if other is _REFUSED and self._unbelieved:
            return refused > in_session or self.count(now) > in_all
        return refused > in_session or (len(self._times) > in_all and self._believed(now) > in_all)

    def hour_limit(self, now: float) -> int:
        """How many refusals an hour it gives before it turns: it has turned now."""
        in_hour = sum(at > now - HOUR_S for at in self._times)
        return max(1, min(in_hour, self.took) - 1)


class HostControls(Struct, eq=False):
    """What is known of one host's earlier replies, for comparison with later ones."""

    _shared: EgressControls | None = None  # what others have seen; None if there is one egress
    known: KnownAddresses = field(default_factory=KnownAddresses)
    record: RefusalRecord = field(default_factory=RefusalRecord)
    row_takes: int = 0  # refusals within COUNTED_S that its row says it takes
    comparable: bool = False  # it has accepted a recipient
    _refused_listed: DomainAcceptance | None = None  # the latest of a refused listed one
    _learned: deque[DomainAcceptance] = field(default_factory=partial(deque, maxlen=LEARNED_MAX))
    # When a recipient was treated so, and that was believed.
    seen_at: dict[Treatment, float] = field(default_factory=lambda: dict.fromkeys(Treatment, NEVER))
    # It has refused UNCONFIRMED_FROM and accepted none, or more than its record and none since.
    _nobody_since: float | None = None
    changed: Treatment | None = None  # how the host treats all since a contradiction
    changed_at: float = NEVER
    _accepted_all_at: float = NEVER  # the latest contradiction by an acceptance
    _changed_until: float = NEVER

    def __post_init__(self) -> None:
        self.known = KnownAddresses(self._shared)

    def note_accepted(
        self,
        mailbox: str,
        domain: DomainAcceptance,
        now: float,
        refused_here: int = 0,
        *,
        of_all: bool = False,
        refused: int | None = None,
    ) -> None:
        """A recipient was accepted at `now`, after so many refusals of its session: it is believed.

        `of_all`: its domain accepts every address, so it proves nothing as a control. `refused`:
        the refusals before it, if there were more since.
        """
        self.seen_at[_ACCEPTED] = max(now, self.seen_at[_ACCEPTED])
        self.record.note_accepted(refused, refused_here, now)
        if now >= self.known.next_sample_at and not of_all:
            self.known.sample(mailbox, domain, now)
        self.comparable = True
        self._nobody_since = None

    def note_refused(self, now: float, refused_here: int = 0) -> None:
        """A recipient was refused as unknown, a listed or a random one, after so many of its session."""
        count = self.record.add(refused_here, now)
        self.seen_at[_REFUSED] = now
        if not self.comparable and self._nobody_since is None and count >= UNCONFIRMED_FROM:
            self._nobody_since = now

    def note_tested(
        self, domain: DomainAcceptance, mailbox: str, acceptance: Acceptance, now: float
    ) -> None:
        """A random address of this domain was treated this way."""
        self._learned.append(domain)
        if acceptance is Acceptance.SOME:
            self.known.add(_REFUSED, Known(mailbox, domain, now))

    def note_learned(self, domain: DomainAcceptance) -> None:
        """If the host changes, drop what tests of this domain have shown so far.

        That includes what other engines found, and the refusal of the first of two random names.
        """
        self._learned.append(domain)

    def note_listed_refused(self, domain: DomainAcceptance, now: float) -> None:
        """A listed address of this domain was refused as unknown, and that is believed."""
        self._refused_listed = domain
        self.known.add(_REFUSED, Known(domain.at.unknown_mailbox, domain, now))

    def rely(self, takes: int) -> None:
        """A row of the operators says that it judges after so many; no reply has shown it."""
        self.row_takes = max(self.row_takes, takes)

    # -- is a verdict believed? ------------------------------------------------------------------

    def must_confirm(self, probe: Probe, treatment: Treatment, refused: int, now: float) -> bool:
        """May the host treat all alike by now, so that this verdict must be confirmed?

        `refused`: recipients of this session, as unknown.
        """
        if self._shared is not None:
            self._shared.answered_at(probe.target.exchange.name)
        elif self.changed is None:  # the usual case
            return self.record.is_exceeded(treatment, refused, now, of_list=probe.deferred_start)
        return self.has_changed(now) or self.is_at_record(
            treatment, refused, now, of_list=probe.deferred_start
        )

    def may_be_due(self, now: float) -> bool:
        """May the next refusals have to be confirmed by a control?"""
        return self.record.is_reached(now) if self.comparable else self._shared is not None

    def is_at_record(
        self, treatment: Treatment, refused: int, now: float, *, of_list: bool
    ) -> bool:
        """The same for a random address, if the host has not changed."""
        other = treatment.opposite
        # It has treated recipients of other egresses the other way, and none of this one.
        treats_others_only = self.seen_at[other] == NEVER and self.known.seen_elsewhere(other, now)
        return (
            bool(treats_others_only)
            or self.is_doubted(treatment, now)
            or self.record.is_exceeded(treatment, refused, now, of_list=of_list)
        )

    def accepted_nobody(self) -> bool:
        """Has it refused several, and accepted none yet, or none since?"""
        return self._nobody_since is not None

    def note_unconfirmed(self, now: float) -> None:
        """It refused more than ever before an acceptance, and no control was left to confirm it."""
        if self._nobody_since is None or now - self._nobody_since >= KNOWN_S_MAX:
            self._nobody_since = now

    def unconfirmed_s(self, now: float) -> float:
        """Seconds until a list reports the refusals of a host that has accepted none; 0: now."""
        since = self._nobody_since
        return 0.0 if since is None else max(0.0, since + UNCONFIRMED_S - now)

    def note_seen(self, treatment: Treatment) -> None:
        """The host treated a recipient this way, so it no longer treats all the other way."""
        if self.changed is not None and self.changed is not treatment:
            self.changed = None

    def is_doubted(self, treatment: Treatment, now: float) -> bool:
        """Did the host begin to treat all this way, and was it not seen to judge since?"""
        at = self.changed_at if self.changed is treatment else NEVER
        if self._shared is not None:
            at = max(at, self._shared.changed_at(treatment))
        return now - at < KNOWN_S_MAX and self.seen_at[treatment.opposite] <= at

    def has_changed(self, now: float) -> bool:
        """True since a contradiction, until the host was seen to answer truly again."""
        return self.changed is not None and now < self._changed_until

    def accepted_all(self, now: float) -> bool:
        """Did it, within hours, accept what it had refused before, at whichever egress?"""
        at = self._accepted_all_at
        if self._shared is not None:
            at = max(at, self._shared.changed_at(_ACCEPTED))
        return now - at < KNOWN_S_MAX

    def contradict(self, control: Known, treatment: Treatment, now: float) -> int | None:
        """The control was treated this way, unlike before: drop what was learned.

        The control is dropped, too: its mailbox may be gone, or its domain accept all by now.
        Returns how many refusals an hour the host gives before it turns; None if it was not
        seen to judge since the contradiction before: a state that persists shows no limit.
        """
        goes_on = self.changed is treatment
        self.changed, self.changed_at = treatment, now
        if treatment is _ACCEPTED:
            self._accepted_all_at = now
        self.row_takes = 0
        if self._shared is not None:
            self._shared.note_changed(treatment, now)
        self._changed_until = now + CHANGED_S
        self.known.drop(control)
        for domain in self._learned:
            domain.forget()
        self._learned.clear()
        control.domain.forget()
        control.domain.at.forget_refusal()
        return None if goes_on else self.record.hour_limit(now)

    def is_own_refusal(
        self, domain: DomainAcceptance, mailbox: str, reply: SmtpReply, reading: ReplyMeaning
    ) -> bool:
        """Was a random address refused in the host's own words for an unknown user?

        These are the words in which it refused a listed address, of this domain or else the
        latest of another. If it has refused none, they must state that there is no such user.
        """
        if reply.code < 500 or reading.meaning not in (Meaning.NO_MAILBOX, Meaning.DISABLED):
            return False
        words = wording(reply, mailbox)
        if domain.at.unknown_mailbox:
            return words == _own_words(domain)
        latest = self._refused_listed
        is_own = latest is not None and words == _own_words(latest)
        return is_own or reading.rule in PLAIN_RULES


# -- the host's own words ----------------------------------------------------------------------

# Rules of replies that state in words that there is no such user. Others read a code, or words
# such as "invalid recipient", which a host that judges the shape of a name says as well.
PLAIN_RULES = frozenset(
    f"no-mailbox.{name}"
    for name in ("unknown", "unknown-noun", "absent", "none", "not-here", "edge-block")
)


def wording(reply: SmtpReply, mailbox: str) -> str:
    """The words of a reply to this recipient, without what varies between recipients."""
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
