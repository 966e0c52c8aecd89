"""Remembers whether a domain accepts any address at a mail host (catch-all).

The test sends RCPT for a random address that can't exist, of the shape of the address that was
accepted. Each domain and shape is tested once at a host, in six hours where it accepts all and
in seven days where it refuses, one test at a time. A result of one exchange is never used for
another: a backup that accepts everything says nothing about a primary that does not. A listed
address that is refused does not replace the test: catch-alls often refuse former staff.
An inconclusive result expires soon, so that a short failure does not affect a whole list. After
a 4xx or no answer the same random address is sent again, once in a pass: a host that greylists
knows it by then.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable
from enum import Enum
from typing import Protocol

from msgspec import Struct, field

from ..verdict import Outcome
from .backoff import NEVER, NO_SILENCE, Silence
from .probe import Cause, Probe
from .random_names import Shape, shape_of
from .random_names import random_local as new_local
from .wire import SmtpReply

INCONCLUSIVE_S = 60.0  # long enough for one list, short enough to test again soon
UNANSWERED_S = 240.0  # less than the time to a list's next pass: greylisting takes as long
UNASKED_S = 1.0  # the host may take one more refusal at any moment
SILENT_S = 5.0  # without a reply in time; a later question may find that the host is ready
REFUSES_KEPT_S = 7 * 86_400.0  # a domain that refuses a random name continues to do so
DOMAINS_MAX = 100_000


class Acceptance(Enum):
    """How a domain treated the random address, and an accepted recipient's outcome then."""

    ALL = "accepted", Outcome.CATCH_ALL
    SOME = "refused as unknown", Outcome.DELIVERABLE
    UNTOLD = "refused otherwise", Outcome.DELIVERABLE_UNTESTED
    UNANSWERED = "4xx or no answer", Outcome.DELIVERABLE_UNTESTED  # time may cure it
    UNASKED = "not asked", Outcome.DELIVERABLE_UNTESTED  # the host tolerates no more refusals
    ELSEWHERE = "asked by another process", Outcome.DELIVERABLE_UNTESTED  # its answer is shared

    outcome: Outcome

    def __init__(self, _: str, outcome: Outcome) -> None:
        self.outcome = outcome


KEPT_S = {
    Acceptance.UNTOLD: INCONCLUSIVE_S,
    Acceptance.UNANSWERED: UNANSWERED_S,
    Acceptance.UNASKED: UNASKED_S,
    Acceptance.ELSEWHERE: 0.0,
    Acceptance.SOME: REFUSES_KEPT_S,
}

Mint = Callable[[str, int], str]  # makes a local part: see random_names.random_local()

RANDOM_ACCEPTED = "catch-all.random-accepted"
RANDOM_UNANSWERED = "catch-all.random-unanswered"
RANDOM_UNASKED = "catch-all.random-unasked"
RULES = {
    Acceptance.ALL: RANDOM_ACCEPTED,
    Acceptance.UNANSWERED: RANDOM_UNANSWERED,
    Acceptance.UNASKED: RANDOM_UNASKED,
    Acceptance.ELSEWHERE: RANDOM_UNASKED,
}


def deciding_rule(acceptance: Acceptance, accepted_by: str) -> str:
    """Return the rule that decided an accepted address."""
    return RULES.get(acceptance, accepted_by)


class DomainAtHost(Struct, eq=False):
    """How one host treats the recipients of one domain, and how it refuses them."""

    name: str
    unknown_reply: SmtpReply | None = None  # the latest refusal of a listed address as unknown
    unknown_mailbox: str = ""  # which that reply was about
    cold: int = 0  # recipients in a row that were refused because of us
    unanswered_sessions: int = 0  # sessions in a row without a reply to its recipients
    silence: Silence = NO_SILENCE
    answered: bool = False  # a recipient was answered since answered_at was set
    answered_at: float = NEVER
    backoff_until: float = 0.0
    backoff_cause: Cause | None = None
    is_troubled: bool = True  # something is counted that an answer to a recipient ends

    def recipient_read(self, *, about_us: bool) -> None:
        """A recipient is answered, or refused because of us."""
        self.unanswered_sessions = 0
        self.silence = NO_SILENCE
        self.is_troubled = about_us
        if about_us:
            self.cold += 1
        else:
            self.cold, self.answered = 0, True

    def forget_cold(self) -> None:
        """Forget refusals because of us: they have led to a back-off."""
        self.cold = 0

    def note_session(self, now: float) -> None:
        """A session ended at one of its recipients without an answer to any recipient."""
        self.is_troubled = True
        if self.answered:
            self.answered, self.answered_at = False, now

    def count_unanswered(self, most: int) -> bool:
        """Count a session that was not silent. True, and counts anew, at so many in a row."""
        self.unanswered_sessions += 1
        if self.unanswered_sessions < most:
            return False
        self.unanswered_sessions = 0
        return True

    def note_silence(self, now: float) -> None:
        """Count a session that was silent."""
        self.silence = self.silence.after_session(now)

    def back_off(self, cause: Cause, until: float) -> None:
        """Do not ask about the domain's recipients until then."""
        self.backoff_cause, self.backoff_until = cause, until

    def forget_refusal(self) -> None:
        """Forget the refusal of a mailbox that is answered otherwise by now."""
        self.unknown_mailbox = ""


class DomainAcceptance(Struct, eq=False):
    """Which addresses of one shape one domain accepts at one host."""

    at: DomainAtHost
    shape: Shape = Shape.PLAIN
    host: Hashable = None
    listener: "AcceptanceListener | None" = None
    others: "Iterable[Domains]" = ()  # of other egresses
    acceptance: Acceptance | None = None
    known_until: float = 0.0  # trio's clock
    testing: bool = False
    accepts_most: bool = False  # it accepted a random address, and refused a listed one
    awaiting: list[Probe] = field(default_factory=list)  # accepted; they wait for the result
    random_local: str = ""  # of the test under way, or of one that was not answered
    other_local: str = ""  # of its second random address, of another shape
    mint: Mint = new_local

    @property
    def name(self) -> str:
        return self.at.name

    @property
    def key(self) -> str:
        """Its name among all domains and shapes at a host."""
        return _key_of(self.at.name, self.shape)

    def known(self, now: float) -> Acceptance | None:
        return self.acceptance if now < self.known_until else None

    def needs_test(self, now: float) -> bool:
        return not self.testing and self.known(now) is None

    def refused_as_unknown(self, mailbox: str, reply: SmtpReply) -> None:
        """A listed address was refused as unknown, so the domain does not accept all.

        If it accepted a random one before, it accepts most, and is tested again.
        """
        self.at.unknown_mailbox, self.at.unknown_reply = mailbox, reply
        if self.acceptance is Acceptance.ALL:
            self.accepts_most = True
            self.forget()

    def begin_test(self) -> None:
        """A random address is to be sent."""
        self.testing = True

    def withdraw_test(self) -> None:
        """No random address is to be sent now."""
        self.testing = False

    def random_mailbox(self, model: str, variant: int) -> str:
        """Return an address that can't be guessed, so that no such mailbox exists.

        It has the shape of the local part `model`, and is the same one until the test is
        answered. The second one, variant 1, is for hosts that may have judged the first's shape.
        """
        if variant:
            self.other_local = self.other_local or self.mint(model, variant)
            return f"{self.other_local}@{self.name}"
        self.random_local = self.random_local or self.mint(model, variant)
        return f"{self.random_local}@{self.name}"

    def fresh_mailbox(self, mailbox: str) -> str:
        """Return a new random address each time, for a test of its own."""
        return f"{self.mint(mailbox.rpartition('@')[0], 0)}@{self.name}"

    def learn_from(self, other: "DomainAcceptance") -> None:
        """Another egress has tested the domain at this host.

        Only what the domain accepts is copied, and no result that may come from how the host
        treats that egress.
        """
        if other.acceptance in (Acceptance.ALL, Acceptance.SOME):
            self.acceptance, self.known_until = other.acceptance, other.known_until
            self.accepts_most = other.accepts_most

    def believe(self, acceptance: Acceptance, until: float) -> None:
        """The domain was tested, by this engine or another one."""
        self.acceptance, self.known_until = acceptance, until

    def pop_awaiting(self) -> list[Probe]:
        awaiting, self.awaiting = self.awaiting, []
        return awaiting

    def pop_carrier(self) -> Probe | None:
        """Of the probes that await the test, remove and return one that may be sent again with it."""
        self.awaiting = [probe for probe in self.awaiting if not probe.settled]
        carrier = next(
            (each for each in self.awaiting if each.target.host and not each.attempts.exhausted),
            None,
        )
        if carrier is not None:
            self.awaiting.remove(carrier)
        return carrier

    def forget(self) -> None:
        """Drop the result of the test. The next accepted address needs a new one."""
        acceptance = self.acceptance
        self.drop_test()
        if acceptance is None:
            return
        for other in self.others:  # this one's among them
            other.drop_test(self, acceptance)
        if self.listener is not None:
            self.listener.forgotten(self, acceptance)

    def drop_test(self) -> None:
        """Drop the result because another engine has found that it is wrong by now."""
        self.acceptance = None
        self.known_until = 0.0
        self.other_local = ""  # the first name is asked again, too


class AcceptanceListener(Protocol):
    """Notified of what is learned, and reminded of what others have learned."""

    def learned(self, domain: DomainAcceptance, kept_s: float) -> None: ...
    def forgotten(self, domain: DomainAcceptance, acceptance: Acceptance) -> None: ...
    def recall(self, domain: DomainAcceptance) -> None:
        """Set what other engines know of a domain that is new here."""


class Domains:
    """The acceptance of each host's domains. Bounded; the longest unused is removed first."""

    def __init__(
        self, keep_s: float, mint: Callable[[int], str] | None, others: Iterable["Domains"] = ()
    ) -> None:
        """`mint` makes the local part of a random address, the first or the second, in tests.

        `others`: those of other egresses, whose certain results hold here as well.
        """
        self._keep_s = keep_s
        self._mint: Mint = new_local if mint is None else lambda _, variant: mint(variant)
        self._others = others
        self.records: OrderedDict[tuple[Hashable, str], DomainAcceptance] = OrderedDict()
        self._at: OrderedDict[tuple[Hashable, str], DomainAtHost] = OrderedDict()
        self._judging: OrderedDict[Hashable, float] = OrderedDict()  # hosts, and until when
        self._listener: AcceptanceListener | None = None

    def listen(self, listener: AcceptanceListener) -> None:
        """Notify this listener of domains that are new from now on."""
        self._listener = listener

    def find(self, host: Hashable, name: str, now: float, local: str = "") -> DomainAcceptance:
        """The record of a domain at a host, for addresses with the shape of this local part."""
        shape = shape_of(local)
        key = (host, _key_of(name, shape))
        domain = self.records.get(key)
        if domain is None:
            domain = self.records[key] = DomainAcceptance(
                self._at_host(host, name),
                shape,
                host,
                self._listener,
                self._others,
                mint=self._mint,
            )
            for other in self._others:
                tested = other.known(host, domain.key)
                if tested and (tested.acceptance is Acceptance.ALL or self.judges(host, now)):
                    domain.learn_from(tested)
        else:
            self.records.move_to_end(key)
        if self._listener is not None and domain.needs_test(now):
            self._listener.recall(domain)
        if len(self.records) > DOMAINS_MAX:
            idle = (key for key, each in self.records.items() if not each.testing)
            if (oldest := next(idle, None)) is not None:
                del self.records[oldest]
        return domain

    def _at_host(self, host: Hashable, name: str) -> DomainAtHost:
        at = self._at.get((host, name))
        if at is None:
            at = self._at[host, name] = DomainAtHost(name)
            if len(self._at) > DOMAINS_MAX:
                self._at.popitem(last=False)
        return at

    def note_refused(self, host: Hashable, now: float) -> None:
        """The host has refused a recipient of this egress as unknown."""
        self._judging[host] = now + self._keep_s
        self._judging.move_to_end(host)
        if len(self._judging) > DOMAINS_MAX:
            self._judging.popitem(last=False)

    def judges(self, host: Hashable, now: float) -> bool:
        """Has the host refused any recipient of this egress? Else it may accept them all.

        Only then does another egress' result, that a random address is refused, apply here.
        """
        return now < self._judging.get(host, NEVER)

    def refusal(self, host: Hashable, name: str, now: float) -> Cause | None:
        """Why we leave this domain alone now; None if it has no back-off."""
        domain = self._at.get((host, name))
        return domain.backoff_cause if domain and now < domain.backoff_until else None

    def known(self, host: Hashable, key: str) -> DomainAcceptance | None:
        """The record of a domain and shape, if there is one; it is not used by this."""
        return self.records.get((host, key))

    def drop_test(self, domain: DomainAcceptance, acceptance: Acceptance) -> None:
        """Drop the domain's result: another egress has found that it is wrong by now."""
        known = self.known(domain.host, domain.key)
        if known is not None and known.acceptance is acceptance:
            known.drop_test()

    def learn(
        self, domain: DomainAcceptance, acceptance: Acceptance, now: float, *, in_time: bool = True
    ) -> list[Probe]:
        """Store the test's result; return the probes that waited for it."""
        domain.testing = False
        kept_s = KEPT_S.get(acceptance, self._keep_s) if in_time else SILENT_S
        domain.believe(acceptance, now + kept_s)
        if acceptance is not Acceptance.ALL:
            domain.accepts_most = False
        if acceptance is Acceptance.SOME:
            self.note_refused(domain.host, now)
        if acceptance in (Acceptance.ALL, Acceptance.SOME, Acceptance.UNTOLD):
            domain.random_local = domain.other_local = ""
        if self._listener is not None:
            self._listener.learned(domain, domain.known_until - now)
        return domain.pop_awaiting()


def _key_of(name: str, shape: Shape) -> str:
    return name if shape is Shape.PLAIN else f"{name}/{shape.value}"
