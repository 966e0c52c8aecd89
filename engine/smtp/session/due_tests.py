"""The random addresses that a session has to send, and when they go before listed ones.

The recipient that settles more addresses goes first, since each may cost a refusal: a listed
address settles one, a test all that wait for it.
"""

from collections import deque
from collections.abc import Iterable

from msgspec import Struct, field

from ..catchall import Acceptance, DomainAcceptance
from ..probe import Probe
from .batch import CatchAllTest, PendingProbe
from .effects import Emit, TestEnded
from .failure_causes import leave_untested
from .host import SessionHost

PRESSED_SHARE = 0.5  # of the time that is left: not all connections are open from the start
TEST_LEFT_S = 0.6  # of a request's clock: then its domain's test goes before other addresses


class DueTests(Struct, eq=False):
    """The tests of one session, each due because a recipient was accepted."""

    _host: SessionHost
    _emit: Emit
    due: deque[CatchAllTest] = field(default_factory=deque)

    # -- which are due -------------------------------------------------------------------------

    def add(self, probe: Probe) -> None:
        """A random address of this probe's domain, and of its shape, is due."""
        self.due.append(self.begin(probe))

    def begin(self, probe: Probe) -> CatchAllTest:
        """Begin such a test, which the caller sends."""
        domain: DomainAcceptance = probe.target.domain
        model = probe.mailbox.rpartition("@")[0]
        # If the first one was refused, it is not sent again.
        return self._begin(domain, model, 1 if domain.other_local else 0, probe)

    def add_second(self, test: CatchAllTest) -> None:
        """A second random address, of another shape, is due."""
        self.due.append(self._begin(test.domain, test.model, 1, test))

    def _begin(
        self, domain: DomainAcceptance, model: str, variant: int, needed_by: PendingProbe
    ) -> CatchAllTest:
        domain.begin_test()
        mailbox = domain.random_mailbox(model, variant)
        asker, is_deferred = needed_by.asker, needed_by.deferred_start
        return CatchAllTest(domain, mailbox, asker, model, variant, deferred_start=is_deferred)

    def send_again(self, test: CatchAllTest) -> None:
        """Its reply was not its own: send it again next."""
        self.due.appendleft(test)

    def sent(self, asked: Iterable[PendingProbe]) -> None:
        """These are not due any more."""
        self.due = deque(test for test in self.due if test not in asked)

    # -- whether they go first -------------------------------------------------------------------

    def must_go(self, now: float) -> bool:
        """Does a request wait for a test, and has it too little time left to wait for others?

        A host that is slow to refuse would not answer it in time.
        """
        return not self._host.times.slow_to_answer and any(
            not probe.deferred_start and probe.clock.deadline - now < TEST_LEFT_S
            for test in self.due
            for probe in test.domain.awaiting
        )

    def are_pressed(self, now: float) -> bool:
        """Would requests run out of time here if this session kept a place for each of its tests?

        Then listed addresses go first, and what is left of the refusals is for the tests.
        """
        clocks = [
            probe.clock.deadline
            for test in self.due
            if not test.deferred_start
            for probe in test.domain.awaiting
        ]
        return bool(clocks) and PRESSED_SHARE * (min(clocks) - now) < self._host.work_with_tests_s()

    def settle_more(self, room: int, now: float) -> bool:
        """Are more refusals left, or does a test settle more addresses than a listed one?"""
        budget, first = self._host.tolerance.budget, self.due[0]
        if budget.has_plenty(room + len(self.due), now):
            return True
        # Where an hour or a share is limited, a list's names would use up what its addresses need.
        is_counted = budget.known.is_counted
        if not is_counted and budget.room(first.kind, first.asker, now) > len(self.due):
            return True
        return any(len(test.domain.awaiting) * budget.share > 1 for test in self.due)

    # -- which are not sent ----------------------------------------------------------------------

    def drop_needless(self, now: float) -> None:
        """Drop tests that a listed address has answered, or that another process sends."""
        if self.due and not all(test.domain.testing for test in self.due):
            self.due = deque(test for test in self.due if test.domain.testing)
        if (lease := self._host.tolerance.budget.lease) is not None:
            patient = [test for test in self.due if test.may_wait]
            elsewhere = [test for test in patient if not lease.names.want(test.domain.key, now)]
            self.end(elsewhere, Acceptance.ELSEWHERE)

    def end(self, tests: Iterable[CatchAllTest], why: Acceptance = Acceptance.UNASKED) -> None:
        """The host would not refuse a random address in time, or tolerates none at the moment.

        What was accepted stays untested; a later pass of a list asks again, and waits longer.
        """
        ended = list(tests)
        self.sent(ended)
        for test in ended:
            if test.domain.testing:
                self._emit(TestEnded(test.domain, why))

    def abandon(self) -> None:
        """Hand back those that were not sent."""
        for test in self.due:
            leave_untested(self._emit, test)
        self.due.clear()
