"""One recipient to ask a mail host about, and the outcome. Values and records; no I/O.

A `Probe` is one address in layer 4. It is settled exactly once, by the first of: a
reply, a failure with nothing left to try, its deadline, or its caller abandoning it.
Later events do not change a settled probe.

The probe itself is the question, which never changes. Its state is in its parts: its clock, its
target, its attempts, the objections to it, and its result.
"""

from collections.abc import Callable, Iterable
from typing import Any, Protocol

import msgspec

from ..dns.messages import MailExchange
from ..evidence import (
    CONVERSATION_LINES_MAX,
    ConnectionAttempt,
    ConversationLine,
    shown,
)
from ..verdict import Outcome
from .replies.rules import ReplyMeaning
from .tolerance.limits import Kind

ADDRESSES_MAX = 5  # of exchanges, tried for one probe
CONVERSATIONS_MAX = 2  # a greeting of 4xx or 5xx counts as one
NO_EGRESS_RULE = "egress.none"  # of an address that no egress may ask about now
EGRESS_FAMILY_RULE = "egress.family"  # or the host has no address of its egress' family
EGRESS_FAILED_RULE = "egress.failed"  # or its egress cannot connect, and no other may
EGRESS_OUT_RULE = "egress.out"  # or its egress was paused or quarantined before it was asked
OBJECTIONS_MAX = 4  # times a recipient is sent again because a limit may have refused it


class Cause(msgspec.Struct, frozen=True):
    """Why a conversation failed."""

    outcome: Outcome  # TIMED_OUT, CONVERSATION_FAILED, REFUSED_BY_POLICY, RESOLVER_FAILED
    rule: str
    words: str  # for the evidence
    about_us: bool = False  # the host refused because of us: back off
    hung_up: bool = False  # the connection was closed or reset
    replied: bool = False  # counts as a conversation, not only as an address tried
    temporary: bool = False  # a greeting of 4yz: perhaps one connection too many
    greeting: bool = False  # the host refuses us by its greeting


# Of a probe that waits until an egress has addresses of its day again.
AWAITS_EGRESS = Cause(
    Outcome.NO_EGRESS, NO_EGRESS_RULE, "no egress had addresses of the day left for it in time"
)


class RecordedSession(Protocol):
    """The conversation that a probe's notes record."""

    def unanswered(self, recipient: str) -> Iterable[tuple[float, bool, str]]:
        """The lines sent for this recipient, or for all, that have no reply yet."""


class ProbeNotes(msgspec.Struct, eq=False):
    """Evidence for a probe that is to be explained. Times are trio's clock."""

    tried: list[ConnectionAttempt] = msgspec.field(default_factory=list)
    lines: list[tuple[float, bool, str]] = msgspec.field(
        default_factory=list
    )  # (time, sent by us, text)
    cut: bool = False  # lines were cut or left out
    cached: list[str] = msgspec.field(default_factory=list)
    lookup_took: bool = False  # the look-up was made for this probe
    session: RecordedSession | None = None  # the latest conversation
    session_lines: int = 0  # of its preamble, so many lines are in `lines`
    awaited: str = ""  # the recipient, as long as `session` has not replied to it

    def follow(self, session: RecordedSession, recipient: str, lines: int) -> None:
        """Record this conversation from now on; so many lines of its preamble are here already."""
        self.session, self.session_lines, self.awaited = session, lines, recipient

    def note_answered(self) -> None:
        """The conversation has replied to the recipient."""
        self.awaited = ""

    def add_line(self, at: float, by_us: bool, text: str) -> None:
        """Add a line, as far as the limits of evidence allow."""
        if len(self.lines) >= CONVERSATION_LINES_MAX:
            self.cut = True
            return
        kept = shown(text)
        self.cut = self.cut or len(kept) < len(text)
        self.lines.append((at, by_us, kept))

    def record_unanswered(self) -> None:
        """Add what was sent in the latest conversation and not answered."""
        if self.awaited and self.session is not None:
            for line in self.session.unanswered(self.awaited):
                self.add_line(*line)
        self.awaited = ""

    def lines_since(self, began: float) -> list[ConversationLine]:
        """Return the lines by time, in ms since `began`; lines of one write stay together."""
        in_order = sorted(self.lines, key=lambda line: line[0])
        return [
            ConversationLine(round((at - began) * 1000, 1), "client" if by_us else "server", text)
            for at, by_us, text in in_order
        ]


# Two of the five parts cannot be in a reference cycle: without gc they are made in half the time.
class ProbeClock(msgspec.Struct, eq=False, gc=False):
    """The overall deadline of a probe, which stands still while its clock is stopped; see `turn`."""

    deadline: float = float("inf")  # trio's clock; infinite while it does not run
    stopped_at: float | None = None  # since then it is stopped
    left_s: float = 0.0  # when it was stopped
    # Seconds that do not count: it was stopped, or ran before it began anew.
    stopped_s: float = 0.0

    def start(self, now: float, overall_s: float) -> None:
        """It begins, or begins anew if it was stopped."""
        if self.stopped_at is not None:
            self.stopped_s += now - self.stopped_at + overall_s - self.left_s
            self.stopped_at = None
        self.deadline = now + overall_s

    def stop(self, now: float) -> None:
        """Stop it until start()."""
        self.left_s, self.deadline, self.stopped_at = self.deadline - now, float("inf"), now

    def end(self, now: float) -> None:
        """The probe is settled."""
        if self.stopped_at is not None:
            self.stopped_s += now - self.stopped_at
            self.deadline, self.stopped_at = now + self.left_s, None


class ProbeTarget(msgspec.Struct, eq=False):
    """Where a probe is tried: by which egress, at which exchange, host, and domain there."""

    exchanges: list[MailExchange]  # in the order to try them
    place: int = -1  # of the exchange being tried
    egress: Any = None  # that asks: its mail hosts (egress.hosts.EgressHosts)
    egresses_tried: tuple[str, ...] = ()  # they were refused, or could not connect
    # The egress whose host refused or deferred it, and has accepted no recipient of that egress.
    doubted: str = ""
    host: Any = None  # at which it waits or is sent (host.Host); None: at none now
    domain: Any = None  # its domain at the latest host (catchall.DomainAcceptance)

    @property
    def exchange(self) -> MailExchange:
        """The exchange being tried, or else the first."""
        return self.exchanges[max(0, self.place)]

    @property
    def next_exchange(self) -> MailExchange | None:
        """The exchange to try if the present one fails."""
        place = self.place + 1
        return self.exchanges[place] if place < len(self.exchanges) else None

    def try_exchange(self, place: int) -> None:
        """Try this exchange."""
        self.place = place

    def prefer_next_exchange(self) -> None:
        """Try the next exchange first, and the present one after it."""
        place = self.place
        self.exchanges = self.exchanges.copy()  # it is shared
        self.exchanges[place : place + 2] = self.exchanges[place + 1], self.exchanges[place]

    def wait_at(self, host: object, domain: object) -> None:
        """It waits or is sent at this host."""
        self.host, self.domain = host, domain

    def leave_host(self) -> None:
        """Leave the host at which it waits or is sent, if there is one."""
        if self.host is not None:
            self.host.load.leave()
            self.host = None

    def belong_to(self, egress: object) -> None:
        """This egress asks."""
        self.egress = egress


class ProbeAttempts(msgspec.Struct, eq=False, gc=False):
    """How often a probe was tried, which second tries it has had, and why the latest one failed."""

    addresses: int = 0
    conversations: int = 0
    retried: bool = False  # once, after a reused connection failed
    rerouted: bool = False  # its reply was late while others waited; it is sent once more
    unproven: bool = False  # its reply was not proven to be its own; it is sent once more
    cause: Cause | None = None  # of the last failure

    @property
    def exhausted(self) -> bool:
        """True if it may try no further address or conversation."""
        return self.addresses >= ADDRESSES_MAX or self.conversations >= CONVERSATIONS_MAX

    def begin(self) -> None:
        """It is sent on a connection."""
        self.conversations += 1
        self.addresses += 1

    def begin_conversation(self) -> None:
        """A connection is used on its behalf, but the probe is not sent."""
        self.conversations += 1

    def undo(self) -> None:
        """Do not count the latest attempt: the probe did not cause its failure."""
        self.conversations -= 1
        self.addresses -= 1

    def retry(self) -> None:
        """A reused connection failed: it is sent on another one, once."""
        self.retried = True
        self.conversations -= 1

    def reroute(self) -> None:
        """Its reply was late while others waited: it is sent again, once."""
        self.rerouted = True
        self.undo()

    def doubt(self) -> None:
        """Its reply was not proven to be its own: it is sent again, once."""
        self.unproven = True

    def fail_connection(self, cause: Cause) -> None:
        """A connection for all that wait at its host has failed."""
        self.addresses += 1
        self.conversations += cause.replied
        self.cause = cause

    def note_cause(self, cause: Cause | None) -> None:
        """An exchange has failed with this cause; None: the probe waits no longer."""
        self.cause = cause


class Objections(msgspec.Struct, eq=False):
    """Refusals of a recipient that may have been for a limit, or for the sender, and not its own."""

    count: int = 0
    # The verdict by the latest of them, if that was not a limit.
    verdict: tuple[Outcome, ReplyMeaning] | None = None
    words: str = ""  # of that refusal (limits.alike())
    sender_refused_by: Any = None  # the host that refused one kind of sender for it

    def add(self) -> None:
        """Count a refusal that may be a limit."""
        self.count += 1

    def add_refusal(self, outcome: Outcome, reading: ReplyMeaning, words: str) -> None:
        """Count a refusal that seems to be a limit, with the verdict if it was not one."""
        self.count += 1
        self.verdict, self.words = (outcome, reading), words

    def refuse_sender(self, host: object) -> bool:
        """This host refused one kind of sender. False if it did so for this address before."""
        before, self.sender_refused_by = self.sender_refused_by, host
        return before is not host


class ProbeResult(msgspec.Struct, eq=False):
    """What is known of a probe's outcome: set once, and before that what its host has accepted."""

    outcome: Outcome | None = None
    rule: str = ""
    accepted: bool = False  # by RCPT; only the catch-all test is pending
    # Its host accepted it and is watched: the outcome if no control is answered in time.
    unconfirmed: tuple[Outcome, str] | None = None
    # When it was accepted by a host that had refused more than ever before, and was not seen to
    # refuse since; inf: only its own session can show that.
    of_record: float | None = None
    # As what it was refused, by which host and when: the session ended before a control was answered.
    refused: tuple[Outcome, str] | None = None
    refused_by: Any = None
    refused_at: float = 0.0
    retry_s: float | None = None  # seconds from the verdict until the host may answer
    takes: int = 0  # refusals that it takes in ten minutes, if that is the cause
    successor: "Probe | None" = None  # by which another egress asks for the address

    def accept(self, rule: str) -> None:
        """RCPT was accepted; its domain is still to be tested."""
        self.accepted, self.rule = True, rule

    def wait_for_control(self, outcome: Outcome, rule: str) -> None:
        """It was accepted by a host that is watched."""
        self.unconfirmed = outcome, rule

    def wait_for_session(self, outcome: Outcome, rule: str, host: object, at: float) -> None:
        """It was refused in a session that ended: in the next one, an acceptance proves that."""
        self.refused, self.refused_by, self.refused_at = (outcome, rule), host, at

    def note_record(self, at: float | None) -> None:
        """Its host accepted it, and may accept everything by now; None: it was seen to judge."""
        self.of_record = at

    def retry_after(self, wait_s: float, takes: int = 0) -> None:
        """It gets no answer now: its host may answer after `wait_s`.

        `takes`: it waits because the host takes so many refusals in ten minutes.
        """
        self.retry_s, self.takes = wait_s, takes

    def settle(self, outcome: Outcome, rule: str) -> None:
        """The probe is settled: once."""
        self.outcome, self.rule = outcome, rule

    def pass_on(self, outcome: Outcome, rule: str, successor: "Probe") -> None:
        """Its successor is settled in its place."""
        self.outcome, self.rule, self.successor = outcome, rule, successor


class Probe(msgspec.Struct, frozen=True, eq=False):
    """One address that one account asks about. The question never changes; its state is in parts."""

    mailbox: str  # as sent in RCPT
    domain: str
    asker: str
    target: ProbeTarget
    on_settled: Callable[["Probe"], None]
    smtputf8: bool = False
    notes: ProbeNotes | None = None
    behind: int = 0  # how many more probes the caller holds back for the same exchange
    # Of a list: it is not hedged, and waits without a clock for a permit of its host and, once
    # accepted, for its domain's test.
    deferred_start: bool = False
    # Its deadline is longer, and that of each reply at a host that was slow: see patience.
    patient: bool = False
    patience_s: float = 0.0  # how long its list may still wait for its host's tolerance
    clock: ProbeClock = msgspec.field(default_factory=ProbeClock)
    attempts: ProbeAttempts = msgspec.field(default_factory=ProbeAttempts)
    objections: Objections = msgspec.field(default_factory=Objections)
    result: ProbeResult = msgspec.field(default_factory=ProbeResult)

    @property
    def settled(self) -> bool:
        return self.result.outcome is not None

    @property
    def has_patience(self) -> bool:
        """Is it of a list that may ask again later?"""
        return self.deferred_start and self.patience_s > 0

    @property
    def kind(self) -> Kind:
        """What it costs at its host; nothing if the host has accepted it before."""
        if self.result.accepted:
            return Kind.CONTROL
        return Kind.LIST if self.deferred_start else Kind.REQUEST

    @property
    def latest(self) -> "Probe":
        """The probe that is, or was, settled in the place of this one."""
        probe = self
        while probe.result.successor is not None:
            probe = probe.result.successor
        return probe

    def successor_by(self, tried: str, *, doubted: bool = False) -> "Probe":
        """A probe of the same address for another egress, which has conversations of its own.

        `doubted`: to see whether the host judges those who come by the egress that was tried.
        """
        target, clock = self.target, self.clock
        return Probe(
            self.mailbox,
            self.domain,
            self.asker,
            ProbeTarget(
                target.exchanges,
                egresses_tried=(*target.egresses_tried, tried),
                doubted=tried if doubted else target.doubted,
            ),
            self.on_settled,
            self.smtputf8,
            self.notes,
            deferred_start=self.deferred_start,
            patient=self.patient,
            patience_s=self.patience_s,
            clock=ProbeClock(clock.deadline, stopped_s=clock.stopped_s),
        )
