"""Whether a mail host still answers truly: evidence from its own replies, and controls.

Some hosts change after a few refused recipients. From then on they refuse everybody as
unknown, or accept everybody. Each single reply reads as usual, so only the sequence can
tell. An acceptance proves that the refusals before it were true, and a refusal as unknown
proves the same of the acceptances before it. Where no such reply comes by itself, a control
is sent: an address that this host accepted, or a random one that it refused. A reply that
contradicts the earlier one shows that the host has changed.

No known default defence acts before the third refused recipient (MDaemon's bans then), so
a host is watched only after `REFUSALS_TRUSTED` refusals within an hour; where its limit is known,
only when most of that is used up. A host that has accepted recipients of other egresses, and
none of this one, is watched from its first refusal: it may refuse everybody who comes this way.
Likewise one that has refused recipients of others alone.
Pure: time is an argument.
"""

from collections import OrderedDict, deque
from dataclasses import dataclass
from enum import Enum
from typing import Any

from mailprobe.engine.smtp.catchall import Acceptance, DomainAcceptance
from mailprobe.engine.smtp.limits import alike
from mailprobe.engine.smtp.probe import Probe
from mailprobe.engine.smtp.replies.rules import Meaning, ReplyMeaning
from mailprobe.engine.smtp.replies.text import TEXT_MAX
from mailprobe.engine.smtp.throttle import NEVER
from mailprobe.engine.smtp.wire import SmtpReply
from mailprobe.engine.verdict import Outcome

REFUSALS_TRUSTED = 3
WATCHED_S = 3600.0  # after the third latest refusal; hosts count by the hour
CHANGED_S = 3600.0  # after a contradiction, unless the host is seen to answer truly before
ACCEPTED_MAX = 4  # accepted addresses that are kept for controls
ACCEPTED_S_MAX = 6 * 3600.0  # mailboxes that were accepted longer ago may have gone
SAMPLE_S = 5.0  # between two accepted addresses that are kept
EXCHANGES_MAX = 10_000  # of which egresses compare; the longest unused is removed first
LEARNED_MAX = 256  # domains whose tests are dropped when the host has changed
CHANCE_MIN = 0.01  # a run of refusals less likely than this calls for a control at once
CHANGED_RULE = "host.changed"  # decides what came since the last reply that was as before


class Treatment(Enum):
    """How a recipient was treated, where a host that has changed treats all alike."""

    ACCEPTED = "accepted"
    REFUSED = "refused"

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
        self._refused_at: OrderedDict[str, deque[float]] = OrderedDict()
        self._watched_until: OrderedDict[str, float] = OrderedDict()

    def by(self, egress: str) -> "EgressControls":
        """What this egress shares, and what it may compare with."""
        return EgressControls(egress, self)

    def note_seen(self, treatment: Treatment, exchange: str, egress: str, known: Known) -> None:
        seen = self._seen[treatment]
        seen.setdefault(exchange, {})[egress] = known
        _keep_latest(seen, exchange)

    def seen(self, treatment: Treatment, exchange: str) -> dict[str, Known]:
        return self._seen[treatment].get(exchange, {})

    def note_refused(self, exchange: str, trusted: int, now: float) -> None:
        """It may count the refusals of all egresses together; `trusted` as in HostControls.trust()."""
        refused_at = self._refused_at.get(exchange)
        if refused_at is None or refused_at.maxlen != trusted:
            refused_at = self._refused_at[exchange] = deque(refused_at or (), maxlen=trusted)
            _keep_latest(self._refused_at, exchange)
        refused_at.append(now)
        if len(refused_at) == trusted:
            self.watch(exchange, refused_at[0] + WATCHED_S)

    def watch(self, exchange: str, until: float) -> None:
        """By every egress."""
        self._watched_until[exchange] = max(until, self.watched_until(exchange))
        _keep_latest(self._watched_until, exchange)

    def watched_until(self, exchange: str) -> float:
        return self._watched_until.get(exchange, NEVER)


def _keep_latest(table: OrderedDict[str, Any], exchange: str) -> None:
    table.move_to_end(exchange)
    if len(table) > EXCHANGES_MAX:
        table.popitem(last=False)


class EgressControls:
    """The part of one egress in what all of them share."""

    __slots__ = ("_egress", "of_all")

    def __init__(self, egress: str, of_all: SharedControls) -> None:
        self._egress = egress
        self.of_all = of_all

    def note_seen(self, treatment: Treatment, exchange: str, known: Known) -> None:
        self.of_all.note_seen(treatment, exchange, self._egress, known)

    def seen_elsewhere(self, treatment: Treatment, exchange: str, now: float) -> list[Known]:
        """Addresses of other egresses that were treated so."""
        return [
            known
            for egress, known in self.of_all.seen(treatment, exchange).items()
            if egress != self._egress
            and now - known.at < ACCEPTED_S_MAX
            # A domain that accepts all proves nothing by it.
            and (treatment is _REFUSED or known.domain.acceptance is not Acceptance.ALL)
        ]


class HostControls:
    """What one host's earlier replies allow to be compared with later ones."""

    __slots__ = (
        "_accepted",
        "_accepted_count",
        "_changed_until",
        "_exchange",
        "_learned",
        "_next_sample_at",
        "_refused",
        "_refused_at",
        "_refused_count",
        "_refused_listed",
        "_shared",
        "changed",
        "changed_at",
        "comparable",
        "is_shared",
        "watched_until",
    )

    def __init__(self, shared: "EgressControls | None" = None) -> None:
        """`shared`: what other egresses have seen; None where there is only one."""
        self._shared = shared
        self.is_shared = shared is not None
        self._exchange = ""  # of the recipient that was answered last
        self._accepted: deque[Known] = deque(maxlen=ACCEPTED_MAX)
        self.comparable = False  # it has accepted a recipient: refusals are confirmed by controls
        self._next_sample_at = NEVER
        self._accepted_count = 0
        self._refused: DomainAcceptance | None = None  # the latest whose random address was refused
        self._refused_listed: DomainAcceptance | None = None  # the latest of a refused listed one
        self._learned: deque[DomainAcceptance] = deque(maxlen=LEARNED_MAX)
        self._refused_at: deque[float] = deque(maxlen=REFUSALS_TRUSTED)
        self._refused_count = 0
        self.watched_until = NEVER
        self.changed: Treatment | None = None  # how the host treats all since a contradiction
        self.changed_at = NEVER
        self._changed_until = NEVER

    def trust(self, refusals: int) -> None:
        """So many refusals within an hour are known to change nothing at this host."""
        if refusals > (self._refused_at.maxlen or 0):
            self._refused_at = deque(self._refused_at, maxlen=refusals)

    def note_accepted(self, mailbox: str, domain: DomainAcceptance, now: float) -> None:
        """A recipient was accepted, and that is believed."""
        self._accepted_count += 1
        if now >= self._next_sample_at:
            self._next_sample_at = now + SAMPLE_S * (len(self._accepted) >= ACCEPTED_MAX - 1)
            known = Known(mailbox, domain, now)
            self._accepted.append(known)
            if self.is_shared:
                self.share(_ACCEPTED, known)
            self.comparable = True

    def note_refused(self, now: float) -> None:
        """A recipient was refused as unknown: a listed one, or a random one."""
        self._refused_count += 1
        self._refused_at.append(now)
        if len(self._refused_at) == self._refused_at.maxlen:
            self.watched_until = max(self.watched_until, self._refused_at[0] + WATCHED_S)
        if self._shared is not None:
            trusted = self._refused_at.maxlen or REFUSALS_TRUSTED
            self._shared.of_all.note_refused(self._exchange, trusted, now)

    def note_tested(self, domain: DomainAcceptance, acceptance: Acceptance) -> None:
        """A test of this domain was answered so."""
        self._learned.append(domain)
        if acceptance is Acceptance.SOME:
            self._refused = domain

    def note_learned_elsewhere(self, domain: DomainAcceptance) -> None:
        """Another engine has tested this domain: that is dropped, too, when the host has changed."""
        self._learned.append(domain)

    def note_listed_refused(self, domain: DomainAcceptance, now: float) -> None:
        """A listed address of this domain was refused as unknown, and that is believed."""
        self._refused_listed = domain
        self.share(_REFUSED, Known(domain.unknown_mailbox, domain, now))

    def is_watched(self, probe: Probe, now: float) -> bool:
        """May the host treat all alike by now, so that verdicts are to be confirmed?"""
        if (shared := self._shared) is not None:
            self._exchange = probe.exchanges[max(0, probe.exchange_index)].name
            watched_until = shared.of_all.watched_until(self._exchange)
            self.watched_until = max(self.watched_until, watched_until)
        return now < self.watched_until

    def may_treat_all_alike(self, probe: Probe, treatment: Treatment, now: float) -> bool:
        """Is it watched, or has it treated recipients of other egresses alone in the other way?"""
        watched = self.is_watched(probe, now)
        return watched or self.treats_others_only(treatment.opposite, now)

    def treats_others_only(self, treatment: Treatment, now: float) -> bool:
        """Has the host treated recipients of other egresses so, and none of this one?"""
        is_seen = self.comparable if treatment is _ACCEPTED else self._refused_count
        return not is_seen and bool(self._seen_elsewhere(treatment, now))

    def _seen_elsewhere(self, treatment: Treatment, now: float) -> list[Known]:
        shared = self._shared
        return [] if shared is None else shared.seen_elsewhere(treatment, self._exchange, now)

    def wants_control(self, now: float) -> bool:
        """May refusals have to be confirmed by a control?"""
        if self.comparable:
            return now < self.watched_until
        return self.is_shared

    def share(self, treatment: Treatment, known: Known) -> None:
        """This address was treated so, and that is believed: other egresses may compare with it."""
        if self._shared is not None:
            self._shared.note_seen(treatment, self._exchange, known)

    def note_seen(self, treatment: Treatment) -> None:
        """The host treated a recipient so: it does not treat all in the other way any more."""
        if self.changed is not None and self.changed is not treatment:
            self.changed = None

    def has_changed(self, now: float) -> bool:
        """True since a contradiction, until the host was seen to answer truly again."""
        return self.changed is not None and now < self._changed_until

    def is_improbable(self, refusals_in_a_row: int) -> bool:
        """Is this run of refusals well above what the host has shown?"""
        earlier = max(0, self._refused_count - refusals_in_a_row)
        share = (earlier + 1) / (earlier + self._accepted_count + 2)
        return refusals_in_a_row > 1 and share**refusals_in_a_row < CHANCE_MIN

    def find(self, treatment: Treatment, domain: DomainAcceptance, now: float) -> Known | None:
        """An address that was treated so before; of this domain, if one of its own is known.

        A listed one that was refused goes before a random one, whose refusal proves no more.
        """
        if treatment is _REFUSED:
            for each in (domain, self._refused_listed):
                if each is not None and each.unknown_mailbox:
                    return Known(each.unknown_mailbox, each, now)
            for each in (domain, self._refused):
                if each is not None and each.refused_local:
                    return Known(f"{each.refused_local}@{each.name}", each, now)
            return next(iter(self._seen_elsewhere(_REFUSED, now)), None)
        usable = [each for each in self._accepted if now - each.at < ACCEPTED_S_MAX]
        if not usable:
            usable = self._seen_elsewhere(_ACCEPTED, now)
        own = [each for each in usable if each.domain.name == domain.name]
        return next(reversed(own or usable), None)

    def contradict(self, control: Known, treatment: Treatment, now: float) -> None:
        """The control was treated so this time, unlike before: drop what was learned.

        The control is dropped, too: its mailbox may be gone, or its domain accept all by now.
        """
        self.changed, self.changed_at = treatment, now
        self._changed_until = now + CHANGED_S
        self.watched_until = max(self.watched_until, self._changed_until)
        if self._shared is not None:
            self._shared.of_all.watch(self._exchange, self._changed_until)
        if control in self._accepted:
            self._accepted.remove(control)
        self._next_sample_at = NEVER
        for domain in self._learned:
            domain.forget()
        self._learned.clear()
        control.domain.forget()
        control.domain.refused_local = control.domain.unknown_mailbox = ""

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
        if domain.unknown_mailbox:
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
    if domain.unknown_reply is None or not domain.unknown_mailbox:
        return ""
    return wording(domain.unknown_reply, domain.unknown_mailbox)
