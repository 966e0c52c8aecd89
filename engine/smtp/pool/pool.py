"""The connections to one mail host, and the probes that wait for them.

A pool is found by the addresses of an exchange, so thousands of domains that share a host
share its pool and its limits. Every decision is a synchronous function; I/O follows in one
task per connection. The result of a connection attempt applies to every waiting probe: a host
that cannot be reached is tried once, not once for each address.
"""

from collections.abc import Sequence

import trio

from ...fair_queue import FairQueue
from ...verdict import Outcome
from .. import patience
from ..catchall import Acceptance, DomainAcceptance
from ..controls import HostControls
from ..host_policy import first_terms
from ..operators import is_own_server
from ..pairing import Renamings
from ..probe import Cause, Probe
from ..replies.rules import ReplyMeaning, Step
from ..session.effects import (
    BatchDone,
    Effect,
    Emit,
    HeldBack,
    Idle,
    RecipientRead,
    Requeued,
    Settled,
)
from ..session.host import IdleSession
from ..session.recipient_limits import REFUSALS_MAX
from ..throttle import HostConnections
from ..tolerance.limits import BAN_RULE, Growth, Kind
from ..wire import Conversation, SmtpReply
from .effects import RareEffects
from .host import PoolHost
from .identity import HostIdentity
from .opening import ConnectionOpener
from .refusals import RefusalMemory
from .reply_times import VENTURED, ReplyTimes
from .resting import (
    NO_BUDGET,
    HostRest,
    cause_of_backoff,
    record_failure,
    reject_waiting,
)
from .serving import ServedSession, run_connection
from .staffing import (
    BACKLOG_S,
    LATE_BACKLOG_S,
    connections_max,
    needs_connection,
    opening_each_s,
    width_of,
)

ANSWERED_AT_ONCE = 64  # probes admitted at a time while the host is backed off
QUICK_BATCH_S = 0.2  # a host that answers so soon may have a few probes queued in lock-step
QUEUED_IN_STEP = 2  # for each connection: their deadlines run, so no more
IN_STEP_LEAST = 2  # for each connection: one under way and the next
TESTING_ROUNDS = 4  # of a session with tests: listed addresses, tests, QUIT, and one to spare


class Pool:
    """One mail host. Implements `SessionHost` for its sessions."""

    # Of more than 30 attributes Python keeps a dict for each object, and looks each up: 6 µs an address.
    __slots__ = (
        *("_apply_rare", "_idle", "_testers", "_woken", "addresses", "backlog"),
        *("behind", "budget", "clocks_s", "connections", "controls", "counterpart"),
        *("dispatcher", "fail_over", "found_at", "host", "latest_address", "name"),
        *("names", "now", "opener", "identity", "patient", "pipelines"),
        *("present", "read_s", "recipient_read", "refusals", "renamings", "rest"),
        *("session_barren", "sessions", "settle", "terms", "times"),
        *("waiting",),
    )

    def __init__(
        self,
        addresses: tuple[str, ...],
        name: str,
        host: str,
        dispatcher: PoolHost,
        *,
        patient: bool = False,
    ) -> None:
        """`host` is the key under which the domains at this host are remembered.

        `patient`: it waits longer for each reply, on few connections.
        """
        self.addresses = addresses
        self.patient = patient
        self.counterpart: Pool | None = None  # of the same host, if one of the two is patient
        self.read_s = patience.read_s(dispatcher.settings, patient)
        self.clocks_s = (
            patience.overall_s(dispatcher.settings, False),
            patience.overall_s(dispatcher.settings, True),
        )
        self.name = name
        self.host = host
        self.budget = dispatcher.tolerances.find(addresses, name)
        self.names: set[str] = set()  # of exchanges that have these addresses
        self.found_at: set[str] = set()  # these addresses, and older ones that are still in use
        self.terms = first_terms(dispatcher.settings.mail_from)
        self.present = 0  # probes waiting or under way here
        self.waiting: FairQueue[Probe] = FairQueue()
        self.sessions: set[ServedSession] = set()
        self.latest_address = ""  # the address of the session whose effects were applied last
        self._idle: dict[IdleSession, None] = {}  # of the sessions
        self.backlog = 0  # verdicts that are not proven yet
        self.renamings = Renamings()
        # Idle until the addresses of a domain are answered, the longest first.
        self._testers: dict[IdleSession, None] = {}
        self._woken: set[IdleSession] = set()  # sessions that are about to take probes
        self.connections = HostConnections(
            patience.connections_max(dispatcher.settings, patient),
            dispatcher.settings.host_connections,
        )
        self.rest = HostRest()
        self.behind = 0  # probes that the scheduler holds back for this host
        self.times = ReplyTimes(patient=patient)
        self.controls = HostControls(dispatcher.controls)
        self.identity = HostIdentity(dispatcher.operators, self.budget, self.controls)
        self.opener = ConnectionOpener(self, dispatcher)
        self._apply_rare = RareEffects(self).apply
        self.refusals = RefusalMemory(self, self.times.late)
        self.recipient_read = self.refusals.recipient_read  # bound to save a call for each reply
        self.session_barren = self.refusals.session_barren
        self.pipelines: bool | None = None
        self.dispatcher = dispatcher
        self.settle = dispatcher.settle  # bound here to save a call for each reply
        self.fail_over = dispatcher.fail_over
        self.now = trio.lowlevel.current_clock().current_time

    def accepts_for(self, domain: str) -> None:
        """A recipient of this domain is accepted: is that anybody else's than the host's own?"""
        if not any(is_own_server(name, domain) for name in self.names):
            self.budget.share_host()

    def pair_with(self, counterpart: "Pool") -> None:
        """One of the two is patient: they share the host's limit of connections."""
        self.counterpart, counterpart.counterpart = counterpart, self

    def follow(self, known: "Pool") -> None:
        """The host of this name had other addresses before: what was learned of it holds."""
        self.connections.follow(known.connections)
        self.terms, self.renamings = known.terms, known.renamings

    def move_to(self, addresses: tuple[str, ...]) -> None:
        """The exchange's addresses have changed."""
        self.addresses = addresses

    def share(self, other: "Pool") -> None:
        """Use what the other pool of this host knows of it, and let it know what is learned."""
        self.terms, self.renamings, self.controls = other.terms, other.renamings, other.controls
        self.budget = other.budget
        self.identity = HostIdentity(self.dispatcher.operators, self.budget, self.controls)

    def backed_off_elsewhere(self, until: float) -> None:
        """Another engine backs off from one of the host's names: reject the probes that wait here, too."""
        self.rest.name_rests(until)
        if self.sessions:  # here it serves us
            return
        for probe in self.waiting.pop_all():
            if self.session_ended(probe):
                continue
            if (cause := cause_of_backoff(self, probe, self.now())) is not None:
                reject_waiting(self, probe, cause)
            else:
                self.waiting.join(probe.asker, probe)
        self.dispatcher.turn.run()

    def join(self, probes: Sequence[Probe], now: float) -> None:
        """Queue probes; during a back-off they fail over with its cause at once."""
        waiting, find_domain = self.waiting, self.dispatcher.domains.find
        for probe in probes:
            local = probe.mailbox.rpartition("@")[0]
            domain = find_domain(self.host, probe.domain, now, local)
            probe.wait_at(self, domain)
            self.present += 1
            backing_off = self.rest.is_on(now) or now < domain.at.backoff_until
            if backing_off and (cause := cause_of_backoff(self, probe, now)) is not None:
                reject_waiting(self, probe, cause)
            else:
                self.behind = probe.behind
                waiting.join(probe.asker, probe)
        if self.budget.lease is not None and waiting.count:
            self.budget.lease.want(self)
        self._staff_waiting()
        if self.opener.hedged and not self.sessions:
            self.dispatcher.hedges.hedge(self, probes)

    def _staff_waiting(self) -> None:
        """Wake sessions, and open a connection, for those that wait."""
        before = -1
        while self.waiting.count > len(self._woken) != before:  # until no further one is woken
            before = len(self._woken)
            self.staff()

    @property
    def hour_took(self) -> int:
        """Most refusals within an hour after which the host was seen to judge."""
        return self.controls.took

    def refusals_leased(self, hour_took: int) -> None:
        """The lease of the host's refusals has changed: what waits may be sent, or is turned away."""
        self.controls.trust(hour_took)
        self._staff_waiting()
        self.dispatcher.turn.mark_freed(self)
        self.dispatcher.turn.run()

    def leave(self) -> None:
        """A probe is no longer this host's; it may still be queued here."""
        self.present -= 1

    def move_away(self, probes: Sequence[Probe]) -> None:
        """These have joined another host."""
        self.present -= len(probes)

    def room(
        self, held: int, account: str = "", patience_s: float = 0.0, *, at_end: bool = False
    ) -> int:
        """How many more probes would soon be sent, of the `held` that the scheduler holds back.

        They are of a list of this account, which has so much patience left.
        """
        room = self._room(held, at_end=at_end)
        if room <= 0:
            return room
        budget, now = self.budget, self.now()
        if budget.has_plenty(room, now):
            return room
        under_way = self.present - self.backlog
        if budget.is_spent(Kind.LIST, account, now):
            if budget.growth(Kind.LIST, account, now, patience_s) is Growth.NOT:
                return ANSWERED_AT_ONCE - under_way  # and turned away there
            return 1 - under_way  # for which the host is asked whether it still judges
        more = budget.room(Kind.LIST, account, now)
        return min(room, max(more, 1 - under_way, 0))

    def _room(self, held: int, *, at_end: bool) -> int:
        """What the host's connections have room for.

        `at_end`: the list has nothing else to wait for, so it does not wait for a back-off to end.

        In lock-step, probes are admitted a few at a time, because admitting one costs hardly
        less. The first batch of a host with PIPELINING is small: if the host wants each
        recipient by itself, the probes behind it must not wait until their deadlines.
        """
        if self.rest.backoff.failures:
            if not at_end and self.rest.worth_waiting_for(self.now()):
                return 0
            if self.rest.backoff.active(self.now()):
                return ANSWERED_AT_ONCE - self.present
        if self.pipelines is None:
            return 1 - self.present  # wait for its greeting
        # Late sessions do not count: nothing is queued behind them.
        connections, present = self.connections, self.present - self.backlog
        capacity = connections.throttle.limit
        if self.times.late.sessions or connections.left:
            late = len(self.times.late.sessions)
            capacity = min(connections_max(self), connections.allowed) - late - connections.left
            present -= late
        elif connections.allowed < capacity:
            capacity = connections.allowed
        if capacity <= 0:
            return 0
        careful = self.times.depth < REFUSALS_MAX
        if self.pipelines and self.terms.limits.width > 1:
            if not self.times.accepted_several and not careful:  # wait for its first batch
                return VENTURED - present
            return capacity * self.window() - present
        if careful:
            return capacity - present
        if (
            self.times.pace.batch_s or 0.0
        ) < QUICK_BATCH_S and not self.dispatcher.turn.at_capacity:
            capacity *= 1 + QUEUED_IN_STEP
        few, several = IN_STEP_LEAST * len(self.sessions), capacity // 3
        room = capacity - present
        return room if present <= few or min(room, held) > several else 0

    @property
    def under_way(self) -> int:
        """Probes here without a reply."""
        return self.present - self.backlog

    def staff(self, *, hurried: bool = False) -> None:
        """Wake an idle session, or open a connection if the queue is worth one."""
        if not self._idle:
            connections = self.connections
            if connections.now >= connections.throttle.limit and not self.times.late.sessions:
                return
            # A cheap part of worth_one_more(), since this runs for almost every reply: no, if
            # the sessions are soon done even with one probe at a time.
            round_s = (self.times.pace.batch_s or 0.0) + opening_each_s(self)
            backlog = self.waiting.count + self.behind
            prompt = len(self.sessions) - len(self.times.late.sessions)
            backlog_s = BACKLOG_S if self.times.depth == REFUSALS_MAX else LATE_BACKLOG_S
            if prompt > 0 and backlog * round_s <= backlog_s * prompt:
                return
        if not self.any_waiting():
            return
        if self.dispatcher.closing or (
            self.rest.backoff.failures and self.rest.backoff.active(self.now())
        ):
            return
        if len(self._woken) * width_of(self) >= self.waiting.count:
            return
        if self._idle:
            session = next(iter(self._idle))
            del self._idle[session]
            self._woken.add(session)
            session.interrupt()
        elif self._turn_away() and needs_connection(self, hurried):
            self.open_connection(None)

    def open_connection(self, permit_at: str | None) -> None:
        """Open one more; `permit_at` is an address whose permit it holds already."""
        self.connections.opened()
        self.dispatcher.start(run_connection, self, permit_at)

    def connection_closed(self) -> None:
        self.connections.closed()
        if not self.connections.now:
            self.dispatcher.hedges.gave_up(self)

    def connection_ended(self) -> None:
        """Another one may be opened in its place."""
        self.wake_testers()
        self.open_all()
        if self.counterpart is not None:
            self.counterpart.open_all()

    def wake_testers(self) -> None:
        """Addresses were answered that a test may have waited for."""
        for pool in (self, self.counterpart):
            if pool is not None and pool._testers:
                for session in list(pool._testers):
                    session.interrupt()

    def open_all(self) -> None:
        """Open as many connections as are worth it and allowed."""
        before = -1
        while self.connections.now != before:
            before = self.connections.now
            self.staff()

    def adopt(self, address: str) -> bool:
        """Use a permit of the address; False if the pool does not need it any more."""
        prompt = len(self.sessions) - len(self.times.late.sessions)
        full = self.connections.counted >= connections_max(self)
        if prompt > 0 or full or not self.any_waiting():
            return False
        self.open_connection(address)
        return True

    def permit_acquired(self) -> None:
        """A permit of one of the addresses is free: open a connection if it is still needed."""
        self.staff(hurried=self.opener.slow_greeting)

    def any_waiting(self) -> bool:
        """Does a probe wait for a connection?"""
        return self.waiting.prune(self.session_ended)

    def session_ended(self, probe: Probe) -> bool:
        """The probe is settled, or under way at another exchange."""
        return probe.outcome is not None or probe.pool is not self

    def window(self) -> int:
        width = self.terms.limits.width
        if self.pipelines is not None:  # then its greeting is known, and so what it tolerates
            allowed = self.budget.session_window(0)
            width = allowed if allowed < width else width
        return self.times.window(width)

    def session_limit_fell(self, has_fallen: bool) -> None:
        if has_fallen:
            self.dispatcher.observer.limit_lowered()

    def read(self, step: Step, reply: SmtpReply) -> ReplyMeaning:
        return self.dispatcher.rules.read(step, reply, self.identity.site_id)

    def next_probe(self, now: float, emit: Emit) -> Probe | None:
        """Take the next probe to send. One whose domain or host is left alone is queued again instead."""
        while (probe := self.waiting.pop()) is not None:
            if probe.outcome is not None or probe.pool is not self:
                continue
            backing_off = now < self.rest.backoff.until or now < probe.domain_here.at.backoff_until
            if not backing_off or cause_of_backoff(self, probe, now) is None:
                return probe
            emit(Requeued(probe))  # and rejected there, with its cause
        return None

    def requeue(self, probe: Probe) -> None:
        if probe.settled or self.dispatcher.withdrawn(probe):
            return
        if (cause := cause_of_backoff(self, probe, self.now())) is not None:
            reject_waiting(self, probe, cause)
        else:
            self.waiting.push_front(probe.asker, probe)

    def requeue_last(self, probe: Probe) -> None:
        """Queue it behind all others of its account."""
        if probe.settled or self.dispatcher.withdrawn(probe):
            return
        self.waiting.join(probe.asker, probe)

    def is_needed_elsewhere(self, address: str) -> bool:
        return self.dispatcher.permits.is_needed_elsewhere(address, self)

    def close_idle_session(self) -> None:
        for session in list(self._idle):
            session.withdraw()

    def close_one_session(self, address: str) -> bool:
        """Close an idle connection to this address; False if there is none."""
        for session in self._idle:
            if session.address == address and not session.is_leaving:
                session.withdraw()
                return True
        return False

    def revoke_permits(self, address: str) -> None:
        """The connections to this address are about to be cancelled, through no fault of the host."""
        for session in self.sessions:
            if session.address == address:
                session.session.revoke_permit()

    def work_with_tests_s(self) -> float:
        """How long the waiting probes would take if each of their domains were tested.

        Each test uses up one of the refusals of its session, and then another one is opened.
        """
        session_s = self.opener.opening_s + TESTING_ROUNDS * (self.times.pace.batch_s or 0.0)
        if not self.any_waiting():
            return 0.0
        sessions = len(self.waiting) / max(1, self.budget.session_max)
        return session_s * max(1.0, sessions / max(1, connections_max(self)))

    def is_idle(self, session: IdleSession, *, tests: bool) -> None:
        """`tests`: it waits until the addresses of their domains are answered."""
        self._idle[session] = None
        if tests:
            self._testers[session] = None

    def is_busy(self, session: IdleSession) -> None:
        self._testers.pop(session, None)
        self._idle.pop(session, None)
        self._woken.discard(session)

    def apply(self, served: ServedSession, effects: list[Effect], *, takes_more: bool) -> None:
        """Apply what a session's step has changed, in order, and end the step.

        `takes_more`: the session takes one of those that wait.
        """
        dispatcher = self.dispatcher
        self.latest_address = served.address
        if takes_more:
            self._woken.add(served)
        try:
            for effect in effects:  # those of every reply come first: a class pattern takes 2 µs
                if type(effect) is Settled:
                    self.settle(effect.probe, effect.outcome, effect.rule)
                elif type(effect) is RecipientRead:
                    self.recipient_read(effect.domain, effect.reply, effect.reading)
                elif type(effect) is HeldBack:
                    self.backlog += effect.count
                    dispatcher.turn.hold_back(self, effect.count)
                elif type(effect) is BatchDone:
                    self.batch_done(effect.round_s, effect.gap_s, effect.first_s)
                elif type(effect) is Idle:
                    self.is_idle(served, tests=effect.tests)
                else:
                    self._apply_rare(served, effect)
        finally:
            if dispatcher.turn.is_due:
                dispatcher.turn.run()
            if takes_more and not served.session.is_woken:
                self._woken.discard(served)
            effects.clear()

    def random_mailbox(self, domain: DomainAcceptance, model: str, variant: int) -> str:
        return self.dispatcher.domains.random_mailbox(domain, model, variant)

    def fresh_mailbox(self, domain: DomainAcceptance, mailbox: str) -> str:
        return self.dispatcher.domains.fresh_mailbox(domain, mailbox.rpartition("@")[0])

    @property
    def refuses_too_late(self) -> bool:
        """Would a random address get no reply in time, so that it only blocks its connection?

        So for a while where the latest one had no reply. At software that is slow by default
        they are sent one at a time until somebody was refused promptly.
        """
        if self.patient:
            return False
        too_late = self.times.refuses_too_late(self.now(), slow_by_default=self.budget.limits.slow)
        if too_late is None:
            return any(each.session.is_testing() for each in self.sessions)
        return too_late

    def test_ended(self, acceptance: Acceptance, *, in_time: bool) -> None:
        """A random address was answered, got no reply in time, or is not tolerated at the moment."""
        if not in_time:
            self.times.note_unanswered_test(self.now())
        if acceptance is Acceptance.UNASKED:
            self.dispatcher.observer.budget_lacking(self.budget.label, random=True)

    def recipient_refused(self, at: float, *, prompt: bool, for_good: bool) -> None:
        if prompt:
            self.times.note_prompt_refusal(at)
        if for_good:
            self.dispatcher.observer.recipient_refused(self.budget.label)

    def turn_away(self, probe: Probe) -> None:
        """The host takes no more refusals for this probe at the moment: it is not sent."""
        if self.session_ended(probe):
            return
        now, budget = self.now(), self.budget
        self.dispatcher.observer.budget_lacking(budget.label, random=False)
        if probe.deferred_start:
            untested = probe.domain if probe.domain_here.needs_test(now) else ""
            budget.turned_away(Kind.LIST, probe.asker, now, untested)
        wait_s = budget.next_room_s(probe.kind, probe.asker, now, probe.patience_s)
        probe.retry_after(wait_s, budget.tolerance)
        reject_waiting(self, probe, NO_BUDGET)

    def _turn_away(self) -> bool:
        """Turn away what may not be sent now; return whether anything is left that may."""
        now, budget = self.now(), self.budget
        if budget.has_plenty(1, now):
            return True
        kept: list[Probe] = []
        for probe in self.waiting.pop_all():
            if self.session_ended(probe):
                continue
            kind, account = probe.kind, probe.asker
            is_spent = budget.is_spent(kind, account, now)
            if is_spent and budget.growth(kind, account, now, probe.patience_s) is Growth.NOT:
                self.turn_away(probe)
            else:
                kept.append(probe)
        for probe in kept:
            self.waiting.join(probe.asker, probe)
        return bool(kept)

    def has_budget(self) -> bool:
        """May one of those that wait be sent now, beside what is under way?"""
        now, budget = self.now(), self.budget
        return budget.has_plenty(1, now) or any(
            budget.room(probe.kind, probe.asker, now) > 0 or self._may_grow(probe, now)
            for probe in self.waiting.heads()
        )

    def _may_grow(self, probe: Probe, now: float) -> bool:
        """Does a request find room as soon as a session sends it?"""
        if probe.deferred_start:
            return False
        growth = self.budget.growth(probe.kind, probe.asker, now, is_provable=False)
        return growth is Growth.NOW

    def blocked(self, words: str) -> bool:
        """The host no longer lets us in. Rest if that is a ban, and return whether it is."""
        if not self.budget.blocked(self.now()):
            return False
        cause = Cause(Outcome.CONVERSATION_FAILED, BAN_RULE, words, about_us=True)
        record_failure(self, cause, [], at_once=True, until=self.budget.rest_until)
        return True

    def batch_done(self, round_s: float, gap_s: float, first_s: float) -> None:
        """All replies of a batch are there; their verdicts are settled or still to be proven."""
        is_first = self.times.batch_done(round_s, gap_s, first_s)
        self.connections.succeeded(self.now())
        if is_first:
            self.dispatcher.turn.mark_freed(self)
        if self._testers or self.counterpart is not None:
            self.wake_testers()
        if self.waiting.count > len(self._woken):
            self.staff()

    def introduced(self, conversation: Conversation) -> None:
        """A connection is greeted: its reply to EHLO is there."""
        self.pipelines = conversation.offer.pipelining
        self.times.greeted(conversation.received_at - conversation.sent_at)

    def became_late(self, conversation: Conversation, accepted_before: int) -> None:
        """The oldest recipient of the session is late: open another connection if needed.

        `accepted_before` recipients were accepted in time, which is not proven yet.
        """
        self.times.became_late(conversation, self.now(), accepted_before)
        self.staff()
        self.dispatcher.turn.mark_freed(self)

    @property
    def reroute_s(self) -> float:
        return self.times.reroute_s(self.opener.opening_s)

    def replies_proven(self, fast_reply_s: float, renamed: set[tuple[str, str]]) -> None:
        """A reply that came sooner than usual was the right one; the host renames recipients so."""
        if fast_reply_s:
            self.times.replied_early(fast_reply_s)
        if renamed and self.renamings.learn(renamed):
            self.times.renaming_proven()

    def session_failed(
        self, cause: Cause, *, before_recipients: bool, late: bool, at_recipient: bool
    ) -> None:
        """`late`: others were answered in time, so fewer connections would not help.

        A reply to a recipient is counted for its domain instead: see session_barren().
        """
        if not (late and cause.outcome is Outcome.TIMED_OUT):
            self.session_limit_fell(self.connections.failed())
        if before_recipients or (cause.about_us and not at_recipient):
            record_failure(self, cause, [self.latest_address])
