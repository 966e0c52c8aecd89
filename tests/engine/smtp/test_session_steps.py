"""A session driven with octets and times alone: no trio, no socket, no clock."""

from dataclasses import dataclass, field
from math import inf

import pytest

from mailprobe.engine.dns.messages import MailExchange
from mailprobe.engine.fair_queue import FairQueue
from mailprobe.engine.smtp import wire
from mailprobe.engine.smtp.catchall import Acceptance, DomainAcceptance, DomainAtHost
from mailprobe.engine.smtp.controls import HostControls, Known, Treatment
from mailprobe.engine.smtp.host_policy import Terms, first_terms
from mailprobe.engine.smtp.pairing import QUIET_S, Renamings
from mailprobe.engine.smtp.patience import HostClocks
from mailprobe.engine.smtp.probe import Probe, ProbeTarget
from mailprobe.engine.smtp.replies.rules import ReplyMeaning, Step, standard_rules
from mailprobe.engine.smtp.session import effects as made
from mailprobe.engine.smtp.session.effects import (
    Barren,
    BecameLate,
    CaughtUp,
    ClockRestarted,
    Distrusted,
    Effect,
    Emit,
    FailedOver,
    HostChanged,
    Idle,
    Requeued,
    SessionFailed,
    Settled,
)
from mailprobe.engine.smtp.session.session import BY_TASK, NOW, SmtpSession
from mailprobe.engine.smtp.tolerance.host import Tolerance
from mailprobe.engine.smtp.tolerance.limits import RefusalLimits
from mailprobe.engine.smtp.wire import Conversation, SmtpReply
from mailprobe.engine.verdict import Outcome

READ_S = 1.0
MAIL_OK = b"250 2.1.0 Sender ok\r\n"  # not word for word as the next reply: see pairing
YES, NO = b"250 2.1.5 Ok\r\n", b"550 5.1.1 No such user\r\n"
MAIL = "MAIL FROM:<me@example.org>"
IN_STEP = "250 mx.shop.test"
PIPELINING = "250-mx.shop.test\r\n250 PIPELINING"

CLOCKS = HostClocks(False, READ_S, (3.0, 60.0))


@dataclass
class Times:
    """When it replies."""

    usual_s: float = 0.0
    gap_s: float = 0.0
    late_s: float = 0.15
    distrusted: bool = False
    slow_to_answer: bool = False
    refused_promptly_at: float = 0.0


@dataclass
class Identity:
    """Whose it is."""

    name: str = "mx.shop.test"


class Waiting(FairQueue[Probe]):
    """The probes that wait for the session."""

    behind = 0

    def any(self) -> bool:
        return self.count > 0

    def next(self, now: float, emit: Emit) -> Probe | None:
        return self.pop()


@dataclass(eq=False)
class Host:
    """What a session is told of its host: values that a test sets."""

    identity: Identity = field(default_factory=Identity)
    clocks: HostClocks = CLOCKS
    times: Times = field(default_factory=Times)
    refuses_too_late: bool = False
    terms: Terms = field(default_factory=lambda: first_terms("me@example.org"))
    tolerance: Tolerance = field(
        default_factory=lambda: Tolerance(RefusalLimits(session=8, tolerance=64))
    )
    controls: HostControls = field(default_factory=HostControls)
    renamings: Renamings = field(default_factory=Renamings)
    waiting: Waiting = field(default_factory=Waiting)
    domain: DomainAcceptance = field(
        default_factory=lambda: DomainAcceptance(
            DomainAtHost("shop.test"), mint=lambda _, variant: f"random{variant}"
        )
    )

    def read(self, step: Step, reply: SmtpReply) -> ReplyMeaning:
        return standard_rules().read(step, reply)

    def window(self) -> int:
        return 8

    def is_under_way(self, domain: DomainAcceptance) -> bool:
        return False

    def work_with_tests_s(self) -> float:
        return 0.0

    def is_needed_elsewhere(self, address: str) -> bool:
        return False


class Drive:
    """A greeted session, its host, and what it has sent and changed so far."""

    def __init__(
        self,
        *locals_: str,
        offer: str = IN_STEP,
        knows: Acceptance | None = None,
        refused_promptly_at: float = 0.0,
    ):
        self.host = Host(times=Times(refused_promptly_at=refused_promptly_at))
        if knows is not None:
            self.host.domain.believe(knows, inf)
        self.queue(*locals_)
        conversation = self.conversation = Conversation(READ_S)
        conversation.receive(b"220 mx.shop.test\r\n")
        conversation.next_exchange()
        conversation.send(wire.ehlo("probe.test"))
        conversation.receive(f"{offer}\r\n".encode())
        conversation.next_exchange()
        conversation.outgoing.clear()
        self.session = SmtpSession(self.host, conversation, "11.0.0.1", [])
        self.effects: list[Effect] = []
        self.until = self._follow(NOW)

    def queue(self, *locals_: str, patient: bool = False) -> None:
        for local in locals_:
            target = ProbeTarget([MailExchange("mx.shop.test", 10)], domain=self.host.domain)
            mailbox = f"{local}@shop.test"
            probe = Probe(mailbox, "shop.test", "me", target, lambda _: None, patient=patient)
            self.host.waiting.join("me", probe)

    def at(self, now: float, octets: bytes = b"") -> list[str]:
        """These come then, or the time is up; returns the lines that are sent."""
        if octets:
            self.conversation.receive(octets, now, now)
        else:
            self.conversation.pass_time(now)
        self.until = self._follow(self.session.react())
        return self.sent()

    def closed(self, now: float) -> None:
        self.conversation.end(now, "closed by the server")
        self.until = self._follow(self.session.react())

    def _follow(self, until: float) -> float:
        while True:
            changed, self.session.effects[:] = list(self.session.effects), []
            for effect in changed:
                self._apply(effect)
            self.effects += changed
            if until != NOW:
                return until
            until = self.session.react()

    def _apply(self, effect: Effect) -> None:
        match effect:
            case Settled(probe, outcome, rule) if not probe.settled:
                probe.result.settle(outcome, rule)
            case Requeued(probe):
                self.host.waiting.push_front("me", probe)
            case made.TestEnded(domain, Acceptance() as acceptance):
                domain.believe(acceptance, inf)
                for probe in domain.pop_awaiting():
                    self._apply(Settled(probe, acceptance.outcome, ""))
                    self.effects.append(Settled(probe, acceptance.outcome, ""))

    def sent(self) -> list[str]:
        lines = b"".join(self.conversation.outgoing).decode().splitlines()
        self.conversation.outgoing.clear()
        return lines

    def settled(self) -> dict[str, Outcome]:
        return {
            effect.probe.mailbox.partition("@")[0]: effect.outcome
            for effect in self.effects
            if isinstance(effect, Settled)
        }

    def has(self, kind: type[Effect]) -> bool:
        return any(isinstance(effect, kind) for effect in self.effects)


def rcpt(*locals_: str) -> list[str]:
    return [f"RCPT TO:<{local}@shop.test>" for local in locals_]


def test_in_lock_step_each_command_waits_for_the_reply_before():
    drive = Drive("ann", "bob", knows=Acceptance.SOME)
    assert drive.sent() == [MAIL]
    assert drive.until == READ_S
    assert drive.at(0.1, MAIL_OK) == rcpt("ann")
    assert drive.until == pytest.approx(0.1 + drive.host.times.late_s)
    assert drive.at(0.2, YES) == rcpt("bob")
    assert drive.settled() == {}  # nothing is proven yet
    assert drive.at(0.3, NO) == []
    assert drive.has(Idle)
    assert drive.until == pytest.approx(0.3 + QUIET_S)
    drive.at(drive.until)  # silence proves both
    assert drive.settled() == {"ann": Outcome.DELIVERABLE, "bob": Outcome.UNDELIVERABLE}


def test_with_pipelining_a_batch_is_one_write():
    drive = Drive("ann", "bob", "cy", offer=PIPELINING, knows=Acceptance.SOME)
    assert len(drive.conversation.outgoing) == 1
    assert drive.sent() == [MAIL, *rcpt("ann", "bob", "cy")]
    assert drive.at(0.1, MAIL_OK + YES + NO[:9]) == []  # the rest of a reply may come later
    assert drive.at(0.12, NO[9:] + YES) == []
    drive.at(drive.until)
    yes, no = Outcome.DELIVERABLE, Outcome.UNDELIVERABLE
    assert drive.settled() == {"ann": yes, "bob": no, "cy": yes}


def test_octets_in_pieces_are_read_as_if_they_came_at_once():
    drive = Drive("ann", knows=Acceptance.SOME)
    drive.at(0.1, MAIL_OK)
    for place, octet in enumerate(NO):
        drive.at(0.1 + place / 1000, bytes([octet]))
    drive.at(drive.until)
    assert drive.settled() == {"ann": Outcome.UNDELIVERABLE}


def test_an_accepted_recipient_is_followed_by_its_domains_test():
    drive = Drive("ann")
    drive.at(0.1, MAIL_OK)
    assert drive.at(0.2, YES) == []  # what follows depends on the reply, so silence proves it first
    assert drive.at(drive.until) == rcpt("random0")
    drive.at(0.3, NO)
    drive.at(drive.until)
    assert drive.settled() == {"ann": Outcome.DELIVERABLE}


def test_a_first_random_name_refused_counts_no_more_when_the_host_has_changed():
    """Its refusal may have come of the change: both names are sent anew then."""
    drive = Drive("ann")
    domain = drive.host.domain
    drive.at(0.1, MAIL_OK)
    drive.at(0.2, YES)
    drive.at(drive.until)
    drive.at(0.3, b"550 5.1.1 Address rejected\r\n")  # perhaps because of its shape
    assert drive.at(drive.until) == rcpt("random1")
    assert domain.other_local
    known = Known("bob@shop.test", DomainAcceptance(DomainAtHost("other.test")), 0.1)
    drive.host.controls.contradict(known, Treatment.REFUSED, 1.0)
    assert not domain.other_local


@pytest.mark.parametrize("offer", [IN_STEP, PIPELINING])
def test_a_reply_too_many_settles_nothing(offer):
    """It is seen in the silence: then no verdict of the session is trusted."""
    drive = Drive("ann", "bob", offer=offer, knows=Acceptance.SOME)
    if offer is IN_STEP:
        drive.at(0.1, MAIL_OK)
        drive.at(0.2, NO)
        drive.at(0.3, YES + YES)
    else:
        drive.at(0.1, MAIL_OK + NO + YES + YES)
    assert drive.has(Distrusted)
    assert drive.settled() == {}
    assert drive.host.waiting.count == 2  # each is sent once more, on another connection
    assert drive.until == BY_TASK
    assert drive.session.is_over


def test_a_reply_that_names_another_recipient_settles_nothing():
    drive = Drive("ann", "bob", offer=PIPELINING, knows=Acceptance.SOME)
    drive.at(0.1, MAIL_OK + b"550 5.1.1 <bob@shop.test>: unknown\r\n250 2.1.5 Ok\r\n")
    assert drive.has(Distrusted)
    assert drive.settled() == {}


def test_421_in_the_middle_sends_the_others_elsewhere():
    drive = Drive("ann", "bob", "cy", offer=PIPELINING, knows=Acceptance.SOME)
    drive.at(0.1, MAIL_OK + YES)
    drive.at(0.11, b"421 4.3.2 Shutting down\r\n")
    drive.at(0.2)
    assert drive.settled() == {"ann": Outcome.DELIVERABLE}
    failed = [effect for effect in drive.effects if isinstance(effect, SessionFailed)]
    assert len(failed) == 1
    assert failed[0].at_recipient
    assert drive.host.waiting.count == 2
    assert drive.session.is_over


UNKNOWN = {name: f"550 5.1.1 <{name}@shop.test>: User unknown\r\n" for name in ("ann", "bob")}
CLOSES = "421 4.7.0 Too many errors\r\n"


@pytest.mark.parametrize("offer", [IN_STEP, PIPELINING])
@pytest.mark.parametrize(
    "octets",
    [
        UNKNOWN["ann"] + CLOSES,
        CLOSES + UNKNOWN["ann"],
        UNKNOWN["ann"] + "421",  # its rest never comes
        UNKNOWN["ann"] * 2,
        UNKNOWN["ann"] + "what?\r\n",
        UNKNOWN["ann"] + "221 Bye\r\n",
    ],
)
def test_a_reply_that_names_its_recipient_counts_whatever_surrounds_it(offer, octets):
    drive = Drive("ann", offer=offer, knows=Acceptance.SOME)
    if offer is IN_STEP:
        drive.at(0.1, MAIL_OK)
        drive.at(0.2, octets.encode())
    else:
        drive.at(0.2, MAIL_OK + octets.encode())
    assert drive.settled() == {"ann": Outcome.UNDELIVERABLE}
    assert not drive.has(Distrusted)
    assert drive.session.is_over
    assert drive.sent() == []


@pytest.mark.parametrize("refused_promptly_at", [0.0, -1000.0])
@pytest.mark.parametrize("between", ["", CLOSES])
def test_two_replies_and_then_421_settle_both(refused_promptly_at, between):
    """Where the host was slow to refuse, NOOP follows them, and 421 answers it."""
    drive = Drive(
        *("ann", "bob"),
        offer=PIPELINING,
        knows=Acceptance.SOME,
        refused_promptly_at=refused_promptly_at,
    )
    assert ("NOOP" in drive.sent()) == (refused_promptly_at < 0)
    octets = MAIL_OK.decode() + UNKNOWN["ann"] + between + UNKNOWN["bob"] + CLOSES
    drive.at(0.1, octets.encode())
    undeliverable = Outcome.UNDELIVERABLE
    assert drive.settled() == {"ann": undeliverable, "bob": undeliverable}
    assert not drive.has(Distrusted)
    assert drive.session.is_over


@pytest.mark.parametrize("offer", [IN_STEP, PIPELINING])
def test_a_recipient_is_sent_again_if_421_follows_a_reply_without_a_name(offer):
    """It may be an earlier command's, and the 421 the recipient's own."""
    drive = Drive("ann", offer=offer, knows=Acceptance.SOME)
    octets = NO + CLOSES.encode()
    if offer is IN_STEP:
        drive.at(0.1, MAIL_OK)
        drive.at(0.2, octets)
    else:
        drive.at(0.1, MAIL_OK + octets)
    assert drive.settled() == {}
    assert drive.host.waiting.count == 1
    assert not drive.has(Distrusted)  # the host is in step: it closes
    failed = [effect.cause for effect in drive.effects if isinstance(effect, SessionFailed)]
    assert [cause.rule for cause in failed] == ["closed.rcpt"]
    assert "421" in failed[0].words
    assert drive.session.is_over


@pytest.mark.parametrize("offer", [IN_STEP, PIPELINING])
def test_a_named_reply_proves_those_before_it_although_421_follows(offer):
    drive = Drive("ann", "bob", offer=offer, knows=Acceptance.SOME)
    last = (UNKNOWN["bob"] + CLOSES).encode()
    if offer is IN_STEP:
        drive.at(0.1, MAIL_OK)
        drive.at(0.2, YES)
        drive.at(0.3, last)
    else:
        drive.at(0.1, MAIL_OK + YES + last)
    assert drive.settled() == {"ann": Outcome.DELIVERABLE, "bob": Outcome.UNDELIVERABLE}


def test_verdicts_held_are_not_proven_by_an_unasked_421():
    drive = Drive("ann", "bob", knows=Acceptance.SOME)
    drive.at(0.1, MAIL_OK)
    drive.at(0.2, YES)
    drive.at(0.21, NO + CLOSES.encode())
    assert drive.settled() == {}
    assert drive.host.waiting.count == 2


def test_421_then_the_reply_of_another_recipient_settles_neither_wrongly():
    drive = Drive("ann", "bob", offer=PIPELINING, knows=Acceptance.SOME)
    drive.at(0.1, MAIL_OK + (CLOSES + UNKNOWN["bob"]).encode())
    assert drive.settled() in ({}, {"bob": Outcome.UNDELIVERABLE})
    assert drive.session.is_over


def test_a_server_that_closes_before_any_reply_fails_the_host():
    drive = Drive("ann", knows=Acceptance.SOME)
    drive.closed(0.1)
    assert drive.has(FailedOver)
    assert drive.settled() == {}
    assert drive.session.is_over


def test_garbage_instead_of_a_reply_ends_the_session():
    drive = Drive("ann", knows=Acceptance.SOME)
    drive.at(0.1, MAIL_OK)
    drive.at(0.2, b"what?\r\n")
    assert drive.has(Barren)
    assert drive.session.is_over


def test_a_late_reply_counts_when_it_comes_and_a_missing_one_times_out():
    drive = Drive("ann", "bob", knows=Acceptance.SOME)
    drive.at(0.1, MAIL_OK)
    drive.at(drive.until)
    assert drive.has(BecameLate)
    drive.at(0.7, YES)
    assert drive.has(CaughtUp)
    assert drive.sent() == []  # the host may owe a reply: the order is proven first
    drive.at(0.8, b"250 2.0.0 NOOP\r\n")
    drive.at(drive.until)
    assert drive.settled() == {"ann": Outcome.DELIVERABLE}
    silent = Drive("cy", knows=Acceptance.SOME)
    silent.at(0.1, MAIL_OK)
    silent.at(0.4)
    silent.at(0.1 + READ_S)
    assert silent.settled() == {"cy": Outcome.TIMED_OUT}
    assert silent.session.is_over


def test_a_host_that_turns_is_found_by_a_control():
    """After three refusals it is watched; refusals wait for one that it accepted before."""
    drive = Drive("good", knows=Acceptance.SOME)
    drive.at(0.1, MAIL_OK)
    drive.at(0.2, YES)
    drive.at(drive.until)
    for _ in range(3):
        drive.host.controls.note_refused(0.3)
    drive.queue("ann")
    drive.session.idle.wake()
    assert drive.at(0.4) == rcpt("ann")
    drive.at(0.5, NO)
    assert drive.at(drive.until) == rcpt("good")  # nothing else is to be sent
    drive.at(0.6, NO)
    drive.at(drive.until)
    assert drive.has(HostChanged)
    assert drive.settled() == {"good": Outcome.DELIVERABLE, "ann": Outcome.HOST_CHANGED}


def test_a_refusal_that_is_a_limit_sends_its_recipient_again():
    many = b"452 4.5.3 Too many recipients\r\n"
    drive = Drive("ann", "bob", "cy", offer=PIPELINING, knows=Acceptance.SOME)
    drive.at(0.1, MAIL_OK + YES + many + many)
    sent = [*drive.sent()]
    while not sent and not drive.session.is_over and drive.until < READ_S:
        sent += drive.at(drive.until)
    assert sent == ["RSET"] or sent[:2] == ["RSET", MAIL]
    assert drive.settled() == {"ann": Outcome.DELIVERABLE}


def test_tls_is_started_by_the_task_as_soon_as_nothing_is_unanswered():
    drive = Drive("ann", offer="250-mx\r\n250 STARTTLS", knows=Acceptance.SOME)
    drive.at(0.1, b"530 5.7.0 Must issue a STARTTLS command first\r\n")
    assert drive.until == BY_TASK
    assert not drive.session.is_over
    assert [asked.mailbox for asked in drive.session.begin_tls().unanswered] == ["ann@shop.test"]


@pytest.mark.parametrize(("patient", "clock_s"), [(False, 3.0), (True, 60.0)])
def test_a_clock_that_is_stopped_begins_anew_when_its_recipient_is_sent(patient, clock_s):
    """The wait for its reply ends with its own clock, not with the host's kind of it."""
    drive = Drive(knows=Acceptance.SOME)
    drive.queue("ann", patient=patient)
    [probe] = drive.host.waiting
    probe.clock.stop(0.0)
    drive.session.idle.wake()
    drive.at(0.5)
    assert drive.has(ClockRestarted)
    assert drive.session.exchange.batch.until == 0.5 + clock_s
