"""Replies to recipients: verdicts, catch-all tests, terms and limits that follow from them."""

import re

from msgspec import Struct

from ...verdict import Outcome
from ..catchall import Acceptance, DomainAcceptance, deciding_rule
from ..controls import HostControls, Treatment
from ..probe import Cause, Probe
from ..replies.rules import ACCEPTED, CONDEMNS, Meaning, ReplyMeaning, Step
from ..wire import CommandReply, Conversation, SmtpReply
from .batch import BatchRefusal, CatchAllTest, PendingProbe, ProbeVerdict, RecipientBatch
from .confirmation import Confirmation
from .due_tests import DueTests
from .effects import (
    ClockSuspended,
    Emit,
    HostBlocked,
    RecipientRead,
    RecipientRefused,
    TestEnded,
)
from .failure_causes import refusal_outcome, requeue_uncounted
from .host import SessionHost
from .next_batch import Tenure, Unsent
from .recipient_limits import BY_CODE, SessionLimits
from .recorder import SessionRecorder
from .sent_controls import Control
from .transaction import Transaction

_NO_MAILBOX = Meaning.NO_MAILBOX  # to look each up takes 0.12 µs in Python 3.11
_TLS_DEMANDED = Meaning.TLS_DEMANDED
_SENDER_REFUSED = Meaning.SENDER_REFUSED
_RATE_LIMITED = Meaning.RATE_LIMITED
_UNDELIVERABLE = Outcome.UNDELIVERABLE
_SOME = Acceptance.SOME
# Words of hosts that count refused recipients, in a reply about us.
_OF_REFUSALS = re.compile(
    r"too many|harvest|(?:unknown|invalid|failed|bad|nonexistent) (?:recipient|user|rcpt)",
    re.IGNORECASE,
)


class RecipientReplies(Struct, eq=False):
    """Applies proven replies to recipients; one for each session."""

    _host: SessionHost
    _conversation: Conversation
    _limits: SessionLimits
    _transaction: Transaction
    _tests: DueTests
    _unsent: Unsent
    _tenure: Tenure
    _confirmation: Confirmation
    _recorder: SessionRecorder
    _emit: Emit
    fruitful: bool = False  # a recipient was answered, and not with 421
    tls_wanted: bool = False  # a reply demanded it
    tls_of_all: bool = False  # and that was the reply to MAIL

    # -- one reply to a recipient --------------------------------------------------------------

    def usual(
        self, probe: PendingProbe, turn: CommandReply, batch: RecipientBatch
    ) -> ProbeVerdict | None:
        """Count the reply and return its verdict, if nothing but a verdict follows from it.

        None if more follows; then nothing has been changed, and process() is to do it.
        """
        if not isinstance(probe, Probe) or probe.result.outcome is not None:
            return None
        reply, now, limits = turn.reply, self._conversation.received_at, self._limits
        code = reply.code
        if code < 300:
            reading = ACCEPTED
            domain: DomainAcceptance = probe.target.domain
            if domain.acceptance in (None, Acceptance.UNASKED) or now >= domain.known_until:
                return None
            outcome = domain.acceptance.outcome
            rule = reading.rule
            if domain.acceptance is not _SOME:
                rule = deciding_rule(domain.acceptance, rule)
            limits.count_answer(now, accepted=True)
        elif code < 400 or code == 421:
            return None
        else:
            reading = self._host.read(Step.RCPT, reply)
            meaning = reading.meaning
            outcome, rule = refusal_outcome(reply, reading), reading.rule
            if meaning is not _NO_MAILBOX and (
                meaning is _SENDER_REFUSED
                or meaning is _TLS_DEMANDED
                or meaning is _RATE_LIMITED
                or _speaks_of_refusals(reply, reading)
            ):
                return None
            in_words = outcome is _UNDELIVERABLE and rule not in BY_CODE
            if not in_words and limits.may_be_limit(probe, reply, reading, outcome, now):
                return None
            limits.count_refusal(reply, reading, outcome, now)
            self._emit(RecipientRefused(now, not batch.late, code >= 500))
            if meaning is _NO_MAILBOX and code >= 500:
                probe.target.domain.refused_as_unknown(probe.mailbox, reply)
        if probe.notes is not None:
            self._recorder.record_exchange(probe, turn)
            if code < 300:
                probe.notes.cached.append("catch_all")
        self.fruitful = True
        self._emit(RecipientRead(probe.target.domain, reply, reading))
        return probe, outcome, rule

    def process(self, asked: PendingProbe, turn: CommandReply, batch: RecipientBatch) -> None:
        """Process the reply to the oldest unanswered recipient, if more than a verdict follows."""
        reply, positive = turn.reply, turn.reply.positive
        reading = ACCEPTED if positive else self._host.read(Step.RCPT, reply)
        now, limits = self._conversation.received_at, self._limits
        if positive:
            limits.count_answer(now, accepted=True)
        else:
            limits.count_refusal(reply, reading, refusal_outcome(reply, reading), now)
            self._emit(RecipientRefused(now, not batch.late, reply.code >= 500))
        # A 421 may count those of this session alone, as Postfix does: the next one shows a ban.
        if (reply.code != 421 or limits.refusals == 1) and _speaks_of_refusals(reply, reading):
            self._emit(HostBlocked(f"RCPT refused: {reply.code} {reply.text[:80]}"))
        if reply.code == 421:
            cause = Cause(
                Outcome.CONVERSATION_FAILED,
                reading.rule,
                f"the server closes: 421 {reply.text[:80]}",
                about_us=reading.about_us,
                replied=True,
            )
            batch.refuse(BatchRefusal(cause, is_closing=True))
            if isinstance(asked, Probe):
                self._confirmation.note_rate(asked, reading, now)
                self._recorder.record_exchange(asked, turn)
            return
        self.fruitful = True
        batch.answer_oldest()
        if isinstance(asked, Control):
            self._confirmation.control_answered(asked, reply, reading, now)
            return
        again = not positive and self.objects_to_terms(asked, reading, to_all=False)
        if again:
            self._unsent.send_again(asked)
        elif not positive:
            again = limits.hold(asked, reply, reading, batch.elsewhere, self._conversation.now)
        if isinstance(asked, CatchAllTest):
            for probe in asked.domain.awaiting:
                self._recorder.record_exchange(probe, turn)
        elif asked.notes is not None:
            self._recorder.record_exchange(asked, turn)
        if not again:
            self._own_answer(asked, reply, reading)

    def settle_limited(self, batch: RecipientBatch) -> None:
        """Settle the held refusals that were not a limit.

        Recipients refused by a limit are sent again: on another connection if it is this one's.
        """
        released = self._limits.release(batch.began, self._conversation.now)
        for held in reversed(released.again):
            asked = held.asked
            if isinstance(asked, Probe):
                asked.objections.add_refusal(held.outcome, held.reading, held.refusal)
                requeue_uncounted(self._emit, asked)
            else:
                asked.objections.add()  # a limit may have refused it
                self._tests.send_again(asked)
        for held in released.own:
            self._own_answer(held.asked, held.reply, held.reading)
        if released.of_connection:
            self._tenure.leave()

    def objects_to_terms(self, asked: PendingProbe, reading: ReplyMeaning, *, to_all: bool) -> bool:
        """Did the host refuse the terms, and may this recipient be sent again on others?

        Each kind of sender is offered once for each probe and host; TLS is started once on a
        connection that offers it. A demand in reply to MAIL is made `to_all`; one in reply to
        RCPT may be one domain's.
        """
        terms = self._host.terms
        if reading.meaning is _TLS_DEMANDED and self._conversation.state.offer.starttls:
            self.tls_wanted, self.tls_of_all = True, self.tls_of_all or to_all
            terms.demand_tls(of_all=to_all)
            return True
        if reading.meaning is not _SENDER_REFUSED or not terms.refuse(self._transaction.sender):
            return False
        return asked.objections.refuse_sender(self._host)

    # -- what the reply says of its recipient --------------------------------------------------

    def _own_answer(self, asked: PendingProbe, reply: SmtpReply, reading: ReplyMeaning) -> None:
        """The reply speaks of its recipient, not of the terms or of a limit."""
        now = self._conversation.received_at
        if isinstance(asked, CatchAllTest):
            if (
                reading.meaning is _NO_MAILBOX and reply.code >= 500
            ):  # its words may tell the software
                self._emit(RecipientRead(asked.domain, reply, reading))
            self._test_answered(asked, reply, reading)
            return
        self._emit(RecipientRead(asked.target.domain, reply, reading))
        if asked.settled:
            return
        if reply.positive:
            self._probe_accepted(asked, reading)
            return
        if reading.meaning is _NO_MAILBOX and reply.code >= 500:
            asked.target.domain.refused_as_unknown(asked.mailbox, reply)
        self._confirmation.refused(asked, refusal_outcome(reply, reading), reading, now)

    def _test_answered(self, test: CatchAllTest, reply: SmtpReply, reading: ReplyMeaning) -> None:
        acceptance, now = acceptance_of(reply, reading), self._conversation.received_at
        domain, controls, confirmation = test.domain, self._host.controls, self._confirmation
        if acceptance is Acceptance.SOME:
            confirmation.name_refused(now)
        if needs_second_test(controls, test, acceptance, reply, reading):
            self._tests.add_second(test)
            controls.note_learned(domain)
            return
        if acceptance is not Acceptance.UNANSWERED:
            controls.note_tested(domain, test.mailbox, acceptance, now)
        if acceptance is Acceptance.ALL:
            confirmation.see(Treatment.ACCEPTED)
        is_watched = controls.is_at_record(
            Treatment.ACCEPTED, confirmation.treatments.refused, now, of_list=test.deferred_start
        )
        if acceptance is not Acceptance.SOME and is_watched:
            for probe in domain.pop_awaiting():
                if not probe.settled:
                    rule = deciding_rule(acceptance, probe.result.rule)
                    confirmation.conclude(probe, acceptance.outcome, rule, now)
        self._emit(TestEnded(domain, acceptance))

    def _probe_accepted(self, probe: Probe, reading: ReplyMeaning) -> None:
        domain: DomainAcceptance = probe.target.domain
        now = self._conversation.received_at
        known = domain.known(now)
        if known is None:  # it may confirm that listed addresses are refused here
            self._confirmation.accepted_untested(probe, now)
            known = domain.known(now)
        # A list's row waits like the one for which the name found no room a moment ago.
        if known is not None and not (known is Acceptance.UNASKED and probe.deferred_start):
            if probe.notes is not None:
                probe.notes.cached.append("catch_all")
            self._confirmation.conclude(
                probe, known.outcome, deciding_rule(known, reading.rule), now
            )
            return
        probe.result.accept(reading.rule)
        domain.awaiting.append(probe)
        if probe.deferred_start:
            self._emit(ClockSuspended(probe))
        if not domain.testing:
            self._tests.add(probe)


def _speaks_of_refusals(reply: SmtpReply, reading: ReplyMeaning) -> bool:
    """Does the host say that it has refused us too many recipients?"""
    is_final = reply.code == 421 or reply.code >= 500
    return is_final and reading.about_us and _OF_REFUSALS.search(" ".join(reply.lines)) is not None


def acceptance_of(reply: SmtpReply, reading: ReplyMeaning) -> Acceptance:
    """How the host treated a random address."""
    if reply.positive:
        return Acceptance.ALL
    if reply.code < 500 or reading.meaning in (
        Meaning.GREYLISTED,
        Meaning.RATE_LIMITED,
        Meaning.TEMPORARY,
    ):
        return Acceptance.UNANSWERED
    return Acceptance.SOME if reading.meaning in CONDEMNS else Acceptance.UNTOLD


def needs_second_test(
    controls: HostControls,
    test: CatchAllTest,
    acceptance: Acceptance,
    reply: SmtpReply,
    reading: ReplyMeaning,
) -> bool:
    """Was the first random address refused in words that may be about its shape?

    Then one of another shape decides. If the host refuses because of us, no name would help.
    """
    is_refused = acceptance in (Acceptance.SOME, Acceptance.UNTOLD) and not reading.about_us
    return (
        is_refused
        and test.variant == 0
        and not controls.is_own_refusal(test.domain, test.mailbox, reply, reading)
    )
