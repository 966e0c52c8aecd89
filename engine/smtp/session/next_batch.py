"""The next recipients of a session: a control that is due, else listed ones, then tests.

`Unsent` holds recipients that are picked and not sent, or to be sent again. `Tenure` decides how
long the session goes on: until it leaves, is spent, or its permit is needed elsewhere.
"""

from collections.abc import Sequence
from operator import attrgetter

from msgspec import Struct, field

from ...verdict import Outcome
from ..catchall import DomainAcceptance, deciding_rule
from ..probe import Probe
from ..tolerance.limits import Growth, Kind
from ..wire import Conversation, SmtpState
from .batch import CatchAllTest, PendingProbe, domain_here
from .confirmation import Confirmation
from .due_tests import DueTests
from .effects import Emit, Requeued, Settled, TurnedAway
from .failure_causes import leave_untested
from .host import SessionHost
from .proof import Proof
from .recipient_limits import RECIPIENTS_MAX, SessionLimits
from .sent_controls import proof_control
from .transaction import Transaction

_IS_DEFERRED = attrgetter("deferred_start")
TURN_S = 0.5  # of a connection while another host waits for a permit of its address
TURN_CHECK_S = 0.1  # after that, between two checks whether any does


class Tenure(Struct, eq=False):
    """Whether one session may send more, and whether it is to leave."""

    _host: SessionHost
    _conversation: Conversation
    _address: str
    _limits: SessionLimits
    _tests: DueTests
    _turn_ends: float
    is_leaving: bool = False  # it sends QUIT as soon as nothing is unanswered
    permit_lost: bool = False  # its task is about to be cancelled
    has_failed: bool = False  # its connection did

    def leave(self) -> None:
        self.is_leaving = True

    def lose_permit(self) -> None:
        """Its task is about to be cancelled: then what is unanswered is requeued."""
        self.is_leaving = self.permit_lost = True

    def fail(self) -> None:
        """Its connection failed: nothing more is sent on it."""
        self.has_failed = True

    @property
    def spent(self) -> bool:
        """No more recipients may be sent on this connection."""
        limits = self._limits
        return (
            limits.left_here(self._conversation.now) <= 0
            or limits.recipients >= RECIPIENTS_MAX - (not self._tests.due)  # the last is a test's
        )

    def may_continue(self, now: float) -> bool:
        """May it send another batch? Leaves if the permit is needed elsewhere."""
        if not self.is_leaving and now > self._turn_ends:
            self._turn_ends = now + TURN_CHECK_S
            self.is_leaving = self._host.is_needed_elsewhere(self._address)
        return not self.is_leaving


class Unsent(Struct, eq=False):
    """The recipients that a session has picked and not sent, or is to send again."""

    _tests: DueTests
    _tenure: Tenure
    _emit: Emit
    again: list[PendingProbe] = field(
        default_factory=list
    )  # refused for the terms, to be sent on others
    set_aside: list[PendingProbe] = field(
        default_factory=list
    )  # picked for a transaction of their own

    def send_again(self, asked: PendingProbe) -> None:
        """It was refused for the terms: send it again on other terms."""
        self.again.append(asked)

    def keep(self, asked: list[PendingProbe]) -> None:
        """Keep these: they need another transaction, and held verdicts are proven before it."""
        self.set_aside = asked

    def pop_set_aside(self) -> list[PendingProbe]:
        """Those of them that are not settled meanwhile."""
        asked, self.set_aside = [each for each in self.set_aside if not each.settled], []
        return asked

    def pop_again(self) -> list[PendingProbe]:
        again, self.again = self.again, []
        return again

    def requeue_again(self) -> None:
        """Queue the recipients that wait for other terms first; it is the same conversation."""
        for asked in reversed(self.pop_again()):
            if isinstance(asked, Probe):
                asked.attempts.undo()
                self._emit(Requeued(asked))
            elif asked.domain.awaiting:
                self._tests.send_again(asked)
            else:  # it comes anew, behind a real one
                leave_untested(self._emit, asked)

    def return_unsent(self, asked: Sequence[PendingProbe]) -> None:
        """This session can't send these: it ends, and another one will."""
        if asked:
            self._tenure.leave()
        for each in reversed(asked):
            if isinstance(each, Probe):
                self._emit(Requeued(each))
            else:
                leave_untested(self._emit, each)


class NextBatch(Struct, eq=False):
    """The choice of a session's next batch."""

    _host: SessionHost
    _state: SmtpState
    _limits: SessionLimits
    _transaction: Transaction
    _proof: Proof
    _confirmation: Confirmation
    tests: DueTests
    _tenure: Tenure
    _emit: Emit
    # Recipients for which no budget is left before the host is seen to judge: see _admits().
    _unproven: Probe | CatchAllTest | None = None
    has_ended_some: bool = False  # the latest pick, unsent: others may wait in their place

    # -- picking -------------------------------------------------------------------------------

    def pick(self, now: float) -> list[PendingProbe]:
        """The recipients of the next batch: a control that is due, else listed ones, then tests."""
        host, limits = self._host, self._limits
        self.has_ended_some = False
        if self._confirmation.verdicts and (control := self._due_control(now)) is not None:
            return [control]
        tests = self.tests
        if tests.due:
            tests.drop_needless(now)
        if not tests.due and not host.waiting.count:
            return []
        if now >= limits.of_host.until:
            limits.of_host.update(now)
        left = limits.left_here(now)
        # In lock-step one at a time.
        room = self._room_for(left) if self._state.offer.pipelining else left > 0
        soon, of_listed = False, room
        if tests.due:
            are_pressed = tests.are_pressed(now)
            soon = tests.must_go(now) or (not are_pressed and tests.settle_more(room, now))
            kept = 0 if are_pressed else len(tests.due)
            of_listed = min(room - len(tests.due) * soon, left - kept)
        elif limits.recipients >= RECIPIENTS_MAX - 1:  # the last is a test's
            return []
        self._unproven = None
        asked = self._pick_listed(of_listed, now)
        if not asked:  # what is left of the room is the tests'
            asked = self.pick_tests(now) if tests.due else []
            if not asked and self._unproven is not None and room > 0:
                # The control that shows whether the host still judges; an acceptance costs nothing.
                domain, account = domain_here(self._unproven), self._unproven.asker
                control = proof_control(host, domain, account, now)
                asked = [] if control is None else [control]
            return asked
        if len(asked) < room and (tests.due or not all(map(_IS_DEFERRED, asked))):
            self._add_tests(asked, room, now, soon=soon)
        return asked

    def pick_tests(self, now: float) -> list[PendingProbe]:
        """The tests that are due, as far as the session may send them; the others stay."""
        tests = self.tests
        tests.drop_needless(now)
        asked: list[PendingProbe] = []
        if self._host.refuses_too_late:
            tests.end(tests.due)
        due = sorted(tests.due, key=lambda test: -len(test.domain.awaiting))
        room = self._room_for(self._limits.left_here(now))
        for each in due:
            if len(asked) >= room or (asked and not self._transaction.may_share(asked, each)):
                break
            match self._admits(each, len(asked), now):
                case True:
                    asked.append(each)
                case None:
                    tests.end([each])
                case False:
                    break
        if not asked or (
            self._transaction.must_open(asked) and not self._transaction.may_open(asked)
        ):
            return []
        tests.sent(asked)
        return asked

    def last_control(self, now: float) -> PendingProbe | None:
        """The control that confirms the session's last verdicts, if it may be sent."""
        control = self._confirming(now)
        if control is None or not self._transaction.must_open([control]):
            return control
        return control if self._transaction.may_open([control]) else None

    def _due_control(self, now: float) -> PendingProbe | None:
        """A control, if the held verdicts are not to wait for a reply that confirms them."""
        confirmation = self._confirmation
        is_idle = not self.tests.due and not self._host.waiting.any()
        is_last = is_idle and now >= confirmation.due_at
        control = self._confirming(now) if is_last else None
        if control is None and is_last:
            confirmation.end(now)
        return control

    def _confirming(self, now: float) -> PendingProbe | None:
        """The control that would confirm the held verdicts, if there is room for it."""
        expects_acceptance = self._confirmation.expects_acceptance
        has_room = self._limits.may_send_control(accepted=expects_acceptance)
        return self._confirmation.next_control(now) if has_room else None

    def _room_for(self, room: int) -> int:
        """How many of these recipients the next batch may have."""
        if not self._state.offer.pipelining:
            return min(room, 1)
        if not self._transaction.may_reset and self._proof.is_slow_to_refuse():
            return min(room, 1)  # of several, the last one's reply could not be proven
        return min(room, self._host.window(), self._transaction.room)

    def _pick_listed(self, room: int, now: float) -> list[PendingProbe]:
        """The probes that wait, as far as this session may send them and test their domains."""
        asked: list[PendingProbe] = []
        if room <= 0:
            return asked
        next_probe, emit = self._host.waiting.next, self._emit
        limits, recipients_max = self._limits, self._limits.of_host.per_connection
        # If the host limits transactions, the test must fit into this one.
        spare = self._state.offer.transactions_max is not None and room > 1
        untested: set[str] = set()
        has_plenty = self._host.tolerance.budget.has_plenty(room, now)
        limits_domains = self._state.offer.domains_max is not None
        while len(asked) < room - spare and (probe := next_probe(now, emit)) is not None:
            domain: DomainAcceptance = probe.target.domain
            if probe.objections.count or probe.result.accepted or probe.result.refused:
                due = len(self.tests.due)
                if self._is_known_already(probe, now):
                    self.has_ended_some = True
                    room -= len(self.tests.due) - due
                    continue
            if not has_plenty:
                admitted = self._admits(probe, len(asked), now)
                if admitted is None:
                    self.has_ended_some = True
                    self._emit(TurnedAway(probe))
                    continue
                if not admitted:
                    self._emit(Requeued(probe))
                    break
            if now >= domain.known_until and domain.needs_test(now) and recipients_max > 1:
                untested.add(probe.domain)
            tests = len(self.tests.due) + len(untested)
            if limits.recipients + len(asked) + 1 + tests > recipients_max or (
                # An accepted one is sent again for its test alone, which this session may not reach.
                probe.result.accepted and (asked or self.tests.due) and tests > limits.refusals_left
            ):
                self._emit(Requeued(probe))  # its domain's test would not fit here
                if not (asked or self.tests.due):
                    self._tenure.leave()
                break
            if probe.smtputf8 and not self._state.offer.smtputf8:
                self.has_ended_some = True
                self._emit(Settled(probe, Outcome.NEEDS_SMTPUTF8, "smtputf8.not-offered"))
            elif (
                asked
                and (limits_domains or probe.smtputf8 or asked[-1].smtputf8)  # else any may
                and not self._transaction.may_share(asked, probe)
            ):
                self._emit(Requeued(probe))
                break
            else:
                asked.append(probe)
        return asked

    def _is_known_already(self, probe: Probe, now: float) -> bool:
        """Settle a probe that was sent before, if it need not be sent again.

        Once one recipient shows that a refusal was not a limit, others refused alike are not
        sent again. Nor is an accepted one if its domain's test was answered meanwhile. If a
        connection serves one recipient only, the test needs it: then an accepted probe waits
        here, and the test is due.
        """
        limits = self._limits.of_host
        before = probe.objections
        if before.verdict is not None and limits.is_own(before.words, now):
            self._confirmation.refused(probe, *before.verdict, now)
            return True
        if self._confirmation.holds_again(probe, now):
            return True
        if not probe.result.accepted or limits.per_connection > 1:
            return False
        domain: DomainAcceptance = probe.target.domain
        known = domain.known(now)
        if known is not None:
            self._emit(Settled(probe, known.outcome, deciding_rule(known, probe.result.rule)))
        else:
            probe.attempts.begin_conversation()
            domain.awaiting.append(probe)
            if not domain.testing:
                self.tests.add(probe)
        return True

    # -- the budget of refusals ------------------------------------------------------------------

    def _admits(self, asked: Probe | CatchAllTest, besides: int, now: float) -> bool | None:
        """May it be sent now, with so many others? None: not before refusals leave the window.

        False: others are under way, or the host is first to show that it still judges.
        """
        tolerance, kind, account = self._host.tolerance, asked.kind, asked.asker
        queued = self._host.waiting.count + self._host.waiting.behind
        while tolerance.budget.room(kind, account, now, queued=queued) <= besides:
            is_spent = not besides and tolerance.is_spent(kind, account, now, queued=queued)
            if not is_spent and (kind.is_of_list or kind is Kind.LONE_NAME):
                return False
            patience_s = asked.patience_s
            if now < self._host.controls.known.proving_until:
                return False
            can_prove = self._can_prove(asked, now)
            growth = tolerance.growth(kind, account, now, patience_s, is_provable=can_prove)
            if growth is Growth.NOW:
                tolerance.grow()
                continue
            if not is_spent:
                return False
            match growth:
                case Growth.PROVE:
                    self._unproven = asked
                    return False
                case Growth.NOT:
                    return None
        return isinstance(asked, Probe) or self._is_ours(asked, now)

    def _is_ours(self, test: CatchAllTest, now: float) -> bool:
        """May this process send the name? Lists wait until no other process has claimed it."""
        budget = self._host.tolerance.budget
        return (
            budget.lease is None
            or not test.may_wait
            or budget.has_plenty(1, now)
            or budget.lease.may_name(test.domain.key, now)
        )

    def _can_prove(self, asked: Probe | CatchAllTest, now: float) -> bool:
        may_send = self._limits.may_send_control(accepted=True)
        return may_send and self._host.controls.known.may_prove(domain_here(asked), now)

    def _add_tests(self, asked: list[PendingProbe], room: int, now: float, *, soon: bool) -> None:
        """If nothing else waits, or `soon`: append the tests that are due, and those of requests' domains."""
        waits = self._host.waiting.any() and not soon
        if len(asked) >= room or waits or self._host.refuses_too_late:
            return
        listed, due = list(asked), self.tests.due
        while (
            due
            and len(asked) < room
            and self._transaction.may_share(asked, due[0])
            and self._may_name(due[0], len(asked), now)
        ):
            asked.append(due.popleft())
        if self._host.waiting.any():
            return
        for probe in listed:
            if len(asked) >= room:
                return
            if not isinstance(probe, Probe) or probe.deferred_start:
                continue
            tolerance, account = self._host.tolerance, probe.asker
            if probe.target.domain.needs_test(now) and tolerance.room_for_name(
                Kind.LONE_NAME, account, now
            ) > len(asked):
                asked.append(self.tests.begin(probe))

    def _may_name(self, test: CatchAllTest, besides: int, now: float) -> bool:
        """May this random name be sent beside so many others?"""
        room = self._host.tolerance.room_for_name(test.kind, test.asker, now, test.patience_s)
        return room > besides and self._is_ours(test, now)
