"""What a session sends next: a control that is due, else listed recipients, then tests."""

from collections import deque
from collections.abc import Sequence

from mailprobe.engine.smtp.catchall import DomainAcceptance, deciding_rule
from mailprobe.engine.smtp.probe import Probe
from mailprobe.engine.smtp.session.batch import CatchAllTest, PendingProbe, domain_of
from mailprobe.engine.smtp.session.confirmation import Confirmation
from mailprobe.engine.smtp.session.host import SessionHost
from mailprobe.engine.smtp.session.limited import SessionLimits
from mailprobe.engine.smtp.session.proof import Proof
from mailprobe.engine.smtp.session.requeue import leave_untested, return_unsent
from mailprobe.engine.smtp.session.transaction import Transaction
from mailprobe.engine.smtp.wire import Conversation
from mailprobe.engine.verdict import Outcome

PRESSED_SHARE = 0.5  # of the time that is left: not all connections are open from the start
TEST_LEFT_S = 0.6  # of a request's clock: then its domain's test goes before other addresses


class Agenda:
    """The tests that a session has to send, and the choice of its next batch.

    A listed address that is refused as unknown makes the test of its domain needless, so the
    tests are a session's last questions.
    """

    __slots__ = (
        *("_confirmation", "_conversation", "_host", "_limits", "_proof", "_transaction"),
        *("_next", "again", "is_over", "tests"),
    )

    def __init__(
        self,
        host: SessionHost,
        conversation: Conversation,
        limits: SessionLimits,
        transaction: Transaction,
        proof: Proof,
        confirmation: Confirmation,
    ) -> None:
        self._host = host
        self._conversation = conversation
        self._limits = limits
        self._transaction = transaction
        self._proof = proof
        self._confirmation = confirmation
        self.tests: deque[CatchAllTest] = deque()  # due because a recipient was accepted
        self.again: list[PendingProbe] = []  # refused for the terms, to be sent on others
        self._next: list[PendingProbe] = []  # picked for a transaction of their own
        self.is_over = False  # the session can't send what waits: another one will

    # -- picking -------------------------------------------------------------------------------

    def pick(self, now: float, *, may_send_control: bool) -> list[PendingProbe]:
        """The recipients of the next batch."""
        host, limits = self._host, self._limits
        if asked := self._due_control(now, may_send_control=may_send_control):
            return self._openable(asked)
        self._drop_needless_tests()
        if host.budget.exhausted(now):
            host.budget_exhausted()
        if not self.tests and not host.any_waiting():
            return []
        if now >= limits.of_host.until:
            limits.of_host.update(now)
        left = limits.left(now)
        room = self._room_for(left)
        must = bool(self.tests) and self.must_test(now)
        kept = 0 if not self.tests or self._is_pressed(now) else len(self.tests)
        self._pick_listed(asked, min(room - must, left - kept), now)
        if not asked:  # what is left of the room is the tests'
            return self.pick_tests(now)
        self._add_tests(asked, room, now, must=must)
        return self._openable(asked)

    def pick_tests(self, now: float, *, at_end: bool = False) -> list[PendingProbe]:
        """The tests that are due, as far as the session may send them; the others stay.

        A test waits while a listed address of its domain is unanswered in another session, unless
        a request's clock is nearly over or this session ends: that address may be refused.
        """
        self._drop_needless_tests()
        asked: list[PendingProbe] = []
        budget = self._host.budget
        at_end = at_end or self.must_test(now)
        of_budget = budget.left_to_tests(now)
        tolerates_tests = of_budget > 0 if at_end else budget.tolerates_tests(now)
        if self._host.refuses_too_late or not tolerates_tests:
            self._end_tests()
        due = [test for test in self.tests if at_end or not self._host.is_under_way(test.domain)]
        room = self._room_for(self._limits.left(now))
        for each in due[: max(0, min(room, of_budget))]:
            if asked and not self._transaction.may_share(asked, each):
                break
            asked.append(each)
        if not asked or (
            self._transaction.must_open(asked) and not self._transaction.may_open(asked)
        ):
            return []
        self.tests = deque(test for test in self.tests if test not in asked)
        return asked

    def last_control(self, now: float) -> PendingProbe | None:
        """The control that confirms the session's last verdicts, if it may be sent."""
        control = self._confirmation.next_control(now)
        if control is None:
            return None
        opens = self._transaction.must_open([control])
        return control if not opens or self._transaction.may_open([control]) else None

    def _due_control(self, now: float, *, may_send_control: bool) -> list[PendingProbe]:
        """A control, if the held verdicts are not to wait for a reply that confirms them."""
        confirmation = self._confirmation
        if not confirmation.verdicts:
            return []
        is_idle = not self.tests and not self._host.any_waiting()
        is_last = is_idle and now >= confirmation.due_at
        is_due = may_send_control and (is_last or confirmation.is_urgent())
        control = confirmation.next_control(now) if is_due else None
        if control is None and is_last:
            confirmation.end(now)
        return [] if control is None else [control]

    def _openable(self, asked: list[PendingProbe]) -> list[PendingProbe]:
        """These, if they need no transaction that the session may not open; else they go back."""
        if asked and self._transaction.must_open(asked) and not self._transaction.may_open(asked):
            self.return_unsent(asked)
            return []
        return asked

    def _room_for(self, room: int) -> int:
        """How many of these recipients the next batch may have."""
        if not self._conversation.offer.pipelining:
            return min(room, 1)
        if not self._transaction.may_reset and self._proof.is_slow_to_refuse():
            return min(room, 1)  # of several, the last one's reply could not be proven
        return min(room, self._host.window(), self._transaction.recipients_max)

    def _pick_listed(self, asked: list[PendingProbe], room: int, now: float) -> None:
        """Append the probes that wait, as far as this session may send them and test their domains."""
        limits, recipients_max = self._limits, self._limits.recipients_max
        # If the host limits transactions, the test must fit into this one.
        spare = int(self._conversation.offer.transactions_max is not None and room > 1)
        untested: set[str] = set()
        while len(asked) < room - spare and (probe := self._host.next_probe(now)) is not None:
            domain: DomainAcceptance = probe.domain_here
            if (probe.objections or probe.accepted) and self._is_known_already(probe, now):
                if probe.outcome is None and not domain.testing:
                    self.add_test(domain, deferred_start=probe.deferred_start)
                    room -= 1
                continue
            if now >= domain.known_until and domain.needs_test(now) and recipients_max > 1:
                untested.add(probe.domain)
            tests = len(self.tests) + len(untested)
            if limits.recipients + len(asked) + 1 + tests > recipients_max:
                self._host.requeue(probe)  # its domain's test would not fit here
                self.is_over = self.is_over or not (asked or self.tests)
                break
            if probe.smtputf8 and not self._conversation.offer.smtputf8:
                self._host.settle(probe, Outcome.NEEDS_SMTPUTF8, "smtputf8.not-offered")
            elif asked and not self._transaction.may_share(asked, probe):
                self._host.requeue(probe)
                break
            else:
                asked.append(probe)

    def _is_known_already(self, probe: Probe, now: float) -> bool:
        """Settle a probe that was sent before, if it need not be sent again.

        The rest of those who were refused alike need not, once one of them shows that the
        refusal was no limit. An accepted one need not, if its domain's test was answered
        meanwhile. If a connection is good for one recipient, the test takes it alone: then an
        accepted probe waits here, and the caller sends the test.
        """
        limits = self._limits.of_host
        if probe.refused is not None and limits.is_own(probe.refusal, now):
            self._confirmation.conclude(probe, *probe.refused, now)
            return True
        if not probe.accepted or limits.per_connection > 1:
            return False
        domain: DomainAcceptance = probe.domain_here
        known = domain.known(now)
        if known is not None:
            self._host.settle(probe, known.outcome, deciding_rule(known, probe.rule))
        else:
            probe.begin_conversation()
            domain.awaiting.append(probe)
        return True

    # -- tests ---------------------------------------------------------------------------------

    def must_test(self, now: float) -> bool:
        """Does a request wait for a test, and has it too little time left to wait for others?

        A host that is slow to refuse would not answer it in time.
        """
        return not self._host.slow_to_answer and any(
            not probe.deferred_start and probe.deadline - now < TEST_LEFT_S
            for test in self.tests
            for probe in test.domain.awaiting
        )

    def _is_pressed(self, now: float) -> bool:
        """Would requests run out of time here if this session kept a place for each of its tests?

        Then listed addresses go first, and what is left of the refusals is for the tests.
        """
        clocks = [
            probe.deadline
            for test in self.tests
            if not test.deferred_start
            for probe in test.domain.awaiting
        ]
        return bool(clocks) and PRESSED_SHARE * (min(clocks) - now) < self._host.work_with_tests_s()

    def _drop_needless_tests(self) -> None:
        """A listed address has answered what these were to find out."""
        if self.tests and not all(test.domain.testing for test in self.tests):
            self.tests = deque(test for test in self.tests if test.domain.testing)

    def _end_tests(self) -> None:
        """The host would not refuse a random address in time, or tolerates none at the moment.

        What was accepted stays untested; a later pass of a list asks again, and waits longer.
        """
        tests, self.tests = self.tests, deque()
        for test in tests:
            if test.domain.testing:
                self._host.leave_unasked(test.domain)

    def _add_tests(self, asked: list[PendingProbe], room: int, now: float, *, must: bool) -> None:
        """If nothing else waits, or one `must` be sent: append the tests that are due, and those of requests' domains.

        In a list, a test never shares a batch with a listed address of its domain: that may be
        refused, and a test follows only where one was accepted.
        """
        if not self.tests and False not in {each.deferred_start for each in asked}:
            return
        room = min(room, len(asked) + self._host.budget.left_to_tests(now))
        waits = self._host.any_waiting() and not must
        if len(asked) >= room or waits or self._host.refuses_too_late:
            return
        listed = list(asked)
        domains = {domain_of(each) for each in listed}
        while (
            self.tests
            and len(asked) < room
            and self.tests[0].domain.name not in domains
            and self._transaction.may_share(asked, self.tests[0])
        ):
            asked.append(self.tests.popleft())
        for probe in listed:
            if len(asked) >= room:
                return
            if not isinstance(probe, Probe) or probe.deferred_start:
                continue
            if probe.domain_here.needs_test(now):
                asked.append(self._new_test(probe.domain_here, deferred_start=False))

    def add_test(self, domain: DomainAcceptance, *, deferred_start: bool, shape: int = 0) -> None:
        """A random address of this domain is due."""
        self.tests.append(self._new_test(domain, deferred_start=deferred_start, shape=shape))

    def _new_test(
        self, domain: DomainAcceptance, *, deferred_start: bool, shape: int = 0
    ) -> CatchAllTest:
        domain.begin_test()
        mailbox = self._host.random_mailbox(domain, shape)
        return CatchAllTest(domain, mailbox, shape=shape, deferred_start=deferred_start)

    # -- what is not sent here -----------------------------------------------------------------

    def send_again(self, asked: PendingProbe) -> None:
        """It was refused for the terms: it is sent again, on others."""
        self.again.append(asked)

    def send_next(self, asked: list[PendingProbe]) -> None:
        """These were picked, and need another transaction than the one under way."""
        self._next = asked

    def pop_next(self) -> list[PendingProbe]:
        if not self._next:
            return []
        asked, self._next = [each for each in self._next if not each.settled], []
        return asked

    def test_again(self, test: CatchAllTest) -> None:
        """A limit may have refused it."""
        test.count_objection()
        self.tests.appendleft(test)

    def pop_again(self) -> list[PendingProbe]:
        again, self.again = self.again, []
        return again

    def requeue_again(self) -> None:
        """Queue the recipients that wait for other terms first; it is the same conversation."""
        again = self.pop_again() if self.again else []
        for asked in reversed(again):
            if isinstance(asked, Probe):
                asked.undo_try()
                self._host.requeue(asked)
            elif asked.domain.awaiting:
                self.tests.appendleft(asked)
            else:  # it comes anew, behind a real one
                leave_untested(self._host, asked)

    def return_unsent(self, asked: Sequence[PendingProbe]) -> None:
        """This session can't send these: it ends, and another one will."""
        self.is_over = self.is_over or bool(asked)
        return_unsent(self._host, asked)

    def abandon(self) -> None:
        """Hand back the tests that were not sent."""
        for test in self.tests:
            leave_untested(self._host, test)
        self.tests.clear()
