"""The connections to one mail host, and the probes that wait for them.

A pool is found by the addresses of an exchange, so thousands of domains that share a host
share its pool and its limits. Every decision is a synchronous function; I/O follows in one
task per connection. The result of a connection attempt applies to every waiting probe: a host
that cannot be reached is tried once, not once for each address.
"""

from collections.abc import Sequence
from dataclasses import replace

import trio

from mailprobe.engine.evidence import ConnectionAttempt
from mailprobe.engine.fair_queue import FairQueue
from mailprobe.engine.smtp.catchall import Acceptance, DomainAcceptance, deciding_rule
from mailprobe.engine.smtp.connection import SmtpConnection
from mailprobe.engine.smtp.host_policy import first_terms
from mailprobe.engine.smtp.operators import MailOperator
from mailprobe.engine.smtp.pairing import EARLY
from mailprobe.engine.smtp.pool.host import PoolHost
from mailprobe.engine.smtp.pool.lateness import (
    LATE_REPLIES,
    LATE_S,
    PROMPT_BATCHES,
    QUICK_REPLY_S,
    Lateness,
)
from mailprobe.engine.smtp.pool.opening import AVOID_S, HEDGE_S, ConnectionOpener
from mailprobe.engine.smtp.pool.refusals import RefusalMemory
from mailprobe.engine.smtp.pool.reply_pace import FAR_S, ReplyPace
from mailprobe.engine.smtp.probe import Cause, Probe
from mailprobe.engine.smtp.replies.rules import ReplyMeaning, Step
from mailprobe.engine.smtp.session.session import REFUSALS_MAX, SmtpSession
from mailprobe.engine.smtp.throttle import (
    BACKOFF_AFTER,
    NEVER,
    HostBackoff,
    Throttle,
)
from mailprobe.engine.smtp.wire import SmtpReply
from mailprobe.engine.verdict import Outcome

BACKLOG_S = 0.5  # work for longer than this is worth one more connection
BATCH_S = 0.8  # the replies of one batch should not take longer
DEFERRED_FAILURES_MAX = 3  # after more, probes are settled instead of deferred
ANSWERED_AT_ONCE = 64  # probes admitted at a time while the host is backed off
QUICK_BATCH_S = 0.2  # a host that answers so soon may have a few probes queued in lock-step
QUEUED_IN_STEP = 2  # for each connection: their deadlines run, so no more
VENTURED = 4  # first batch of a host with PIPELINING: it may want one each
IN_STEP_LEAST = 2  # for each connection: one under way and the next
MANY = 1 << 30  # more probes than there ever are
REROUTE_S = 0.4  # a host without one timely acceptance may just be slow
LATE_BACKLOG_S = 0.1  # at a host that has late replies: work for longer is worth a connection


_NOT_IDLE = object()


class Pool:
    """One mail host. Implements `SessionHost` for its sessions."""

    # Of more than 30 attributes Python keeps a dict for each object, and looks each up: 6 µs an address.
    __slots__ = (
        "_accepted_several",
        "_backoff_cause",
        "_behind",
        "_coming",
        "_depth",
        "_dispatcher",
        "_idle",
        "_now",
        "_pipelines",
        "_prompt",
        "addresses",
        "allowed",
        "backlog",
        "backoff",
        "connections",
        "fail_over",
        "found_at",
        "host",
        "late_s",
        "lateness",
        "name",
        "names",
        "names_backoff_until",
        "one_each",
        "opener",
        "operator",
        "pace",
        "present",
        "recipient_read",
        "room_at",
        "session_barren",
        "sessions",
        "settle",
        "slow_to_answer",
        "terms",
        "throttle",
        "usual_s",
        "waiting",
        "wary",
    )

    def __init__(
        self, addresses: tuple[str, ...], name: str, host: str, dispatcher: PoolHost
    ) -> None:
        """`host` is the key under which the domains at this host are remembered."""
        self.addresses = addresses
        self.name = name
        self.host = host
        self.names: set[str] = set()  # of exchanges that have these addresses
        self.found_at: set[str] = set()  # these addresses, and older ones that are still in use
        self.names_backoff_until = NEVER  # the latest back-off of one of them
        self.operator: MailOperator | None = None
        self.one_each = False
        self.terms = first_terms(dispatcher.settings.mail_from)
        self.present = 0  # probes waiting or under way here
        self.waiting: FairQueue[Probe] = FairQueue()
        self.sessions: set[SmtpSession] = set()
        self._idle: dict[SmtpSession, None] = {}  # of the sessions
        self._depth = REFUSALS_MAX  # recipients in one batch, fewer after a late reply
        self._prompt = 0  # batches without a late reply since then
        self.backlog = 0  # verdicts that are not proven yet
        self.room_at = MANY  # with more probes under way, room() is 0
        self.usual_s = 0.0
        self.late_s = LATE_S
        self.wary = False
        self.slow_to_answer = False  # a reply was late not long ago
        self._coming = 0  # woken sessions that have not taken a probe yet
        self.connections = 0  # sessions, and connections being opened
        self.throttle = Throttle(dispatcher.settings.host_connections)
        self.allowed = dispatcher.settings.host_connections  # fewer if other processes want permits
        self.backoff = HostBackoff()
        self._backoff_cause: Cause | None = None
        self._behind = 0  # probes that the scheduler holds back for this host
        self.pace = ReplyPace()
        self.lateness = Lateness()
        self.opener = ConnectionOpener(self, dispatcher)
        refusals = RefusalMemory(self, self.lateness)
        self.recipient_read = refusals.recipient_read  # bound here to save a call for each reply
        self.session_barren = refusals.session_barren
        self._pipelines: bool | None = None
        self._accepted_several = False  # a whole batch of recipients
        self._dispatcher = dispatcher
        self.settle, self.fail_over = (
            dispatcher.settle,
            dispatcher.fail_over,
        )  # bound here to save a call for each reply
        self._now = trio.lowlevel.current_clock().current_time

    # -- probes ------------------------------------------------------------------------------

    def belong_to(self, site: MailOperator | None) -> None:
        """One of the host's names is this operator's: apply its policy to the host."""
        if site is None or site == self.operator:
            return
        self.operator = site
        self.one_each = self.one_each or site.one_each
        if site.connections_max is not None:
            self.throttle = Throttle(min(site.connections_max, self.throttle.limit_max))

    def join(self, probes: Sequence[Probe], now: float) -> None:
        """Queue probes; during a back-off they fail over with its cause at once."""
        waiting, find_domain = self.waiting, self._dispatcher.domains.find
        for probe in probes:
            probe.pool = self
            domain = probe.domain_here = find_domain(self.host, probe.domain)
            self.present += 1
            if probe.hedge is self:  # it is queued here already
                probe.hedge = None
                continue
            backing_off = (
                now < self.backoff.until
                or now < domain.backoff_until
                or now < self.names_backoff_until
            )
            if backing_off and (cause := self._backing_off(probe, now)) is not None:
                self._reject_waiting(probe, cause)
            else:
                self._behind = probe.behind
                waiting.join(probe.asker, probe)
        before = -1
        while waiting.count > self._coming != before:  # until no further session is woken
            before = self._coming
            self.staff()
        if self.opener.hedged and not self.sessions:
            self._dispatcher.hedge(self)

    def _backing_off(self, probe: Probe, now: float) -> Cause | None:
        """The cause of the back-off of the host, the domain or the name; None without one."""
        domain: DomainAcceptance = probe.domain_here
        if now < self.backoff.until:
            return self._backoff_cause
        if now < domain.backoff_until:
            return domain.backoff_cause
        if now < self.names_backoff_until:
            return self._dispatcher.host_memory.name_backoff(
                probe.exchanges[probe.exchange_index].name, now
            )
        return None

    def _reject_waiting(self, probe: Probe, cause: Cause) -> None:
        if probe.notes is not None:
            probe.notes.cached.append("rest")
            words = f"not asked, resting: {cause.words}"
            probe.notes.tried.append(ConnectionAttempt(self.name, self.addresses[0], words))
        self.fail_over(probe, cause)

    def room(self, held: int) -> int:
        """How many more probes would soon be sent, of the `held` that the scheduler holds back.

        In lock-step, probes are admitted a few at a time, because admitting one costs hardly
        less. The first batch of a host with PIPELINING is small: if the host wants each
        recipient by itself, the probes behind it must not wait until their deadlines.
        """
        self.room_at = MANY  # unless a limit is computed below
        if self.backoff.failures:
            if self.worth_waiting_for():
                return 0
            if self.backoff.active(self._now()):
                return ANSWERED_AT_ONCE - self.present
        if self._pipelines is None:
            return 1 - self.present  # wait for its greeting
        # Late sessions do not count: nothing is queued behind them.
        capacity, present = self.throttle.limit, self.present - self.backlog
        if self.lateness.sessions:
            late = len(self.lateness.sessions)
            capacity = min(self._connections_max(), self.allowed) - late
            present -= late
        elif self.allowed < capacity:
            capacity = self.allowed
        if capacity <= 0:
            return 0
        careful = self._depth < REFUSALS_MAX
        if self._pipelines and not self.one_each:
            if not self._accepted_several and not careful:  # wait for its first batch
                return VENTURED - present
            return capacity * self._window() - present
        if careful:
            return capacity - present
        if (self.pace.batch_s or 0.0) < QUICK_BATCH_S and not self._dispatcher.at_capacity:
            capacity *= 1 + QUEUED_IN_STEP
        few, several = IN_STEP_LEAST * len(self.sessions), capacity // 3
        if not self.lateness.sessions:
            self.room_at = max(few, capacity - several - 1)
        room = capacity - present
        return room if present <= few or min(room, held) > several else 0

    @property
    def under_way(self) -> int:
        """Probes here without a reply."""
        return self.present - self.backlog

    def worth_waiting_for(self) -> bool:
        """The host could not be reached a moment ago: a caller with time should defer its probes."""
        if not self.backoff.failures:
            return False
        refused = self._backoff_cause is not None and self._backoff_cause.about_us
        may_defer = not refused and self.backoff.failures < DEFERRED_FAILURES_MAX
        return may_defer and self.backoff.doubtful(self._now())

    def staff(self, *, hurried: bool = False) -> None:
        """Wake an idle session, or open a connection if the queue is worth one."""
        if not self._idle:
            if self.connections >= self.throttle.limit and not self.lateness.sessions:
                return
            # A cheap part of _worth_one_more(), since this runs for almost every reply: no, if
            # the sessions are soon done even with one probe at a time.
            round_s, backlog = self.pace.batch_s or 0.0, self.waiting.count + self._behind
            prompt = len(self.sessions) - len(self.lateness.sessions)
            backlog_s = BACKLOG_S if self._depth == REFUSALS_MAX else LATE_BACKLOG_S
            if prompt > 0 and backlog * round_s <= backlog_s * prompt:
                return
        if not self.any_waiting():
            return
        if self._dispatcher.closing or (self.backoff.failures and self.backoff.active(self._now())):
            return
        if self._coming * self._width() >= self.waiting.count:
            return
        if self._idle:
            session = next(iter(self._idle))
            del self._idle[session]
            self._coming += 1
            session.interrupt()
        elif self._needs_connection(hurried):
            self.connections += 1
            self._dispatcher.start(self._work, None)

    def _open_all(self) -> None:
        """Open as many connections as are worth it and allowed."""
        before = -1
        while self.connections != before:
            before = self.connections
            self.staff()

    def adopt(self, address: str) -> bool:
        """Use a permit of the address; False if the pool does not need it any more."""
        prompt = len(self.sessions) - len(self.lateness.sessions)
        if prompt > 0 or not self.any_waiting() or self.connections >= self._connections_max():
            return False
        self.connections += 1
        self._dispatcher.start(self._work, address)
        return True

    def permit_acquired(self) -> None:
        """A permit of one of the addresses is free: open a connection if it is still needed."""
        self.staff(hurried=self.opener.slow_greeting)

    def any_waiting(self) -> bool:
        """Does a probe wait for a connection?"""
        return self.waiting.prune(self.session_ended)

    def session_ended(self, probe: Probe) -> bool:
        """The probe is settled, or under way at another exchange."""
        return probe.outcome is not None or (probe.pool is not self and probe.hedge is not self)

    def _needs_connection(self, hurried: bool) -> bool:
        if self.connections >= self._connections_max():
            return False
        if len(self.sessions) < self.connections:  # one is opening or closing
            if self.opener.has_enough:
                return False
            # For a distant host only the limit counts; it grows with each greeting.
            untried = (
                self.connections >= self.opener.proven_parallelism and self.pace.reply_s < FAR_S
            )
            if untried and not hurried:
                return False  # wait for the host's reaction first
        another_address = hurried and self.connections < len(self.addresses) and not self.sessions
        wanted = self.connections == 0 or another_address or self._worth_one_more()
        return wanted and self._free_address()

    def _connections_max(self) -> int:
        """How many connections may be open at the moment."""
        if not self.lateness.sessions:
            return self.throttle.limit
        return self.throttle.with_late(len(self.lateness.sessions), self._now())

    def _backlog_s(self) -> float:
        return BACKLOG_S if self._depth == REFUSALS_MAX else LATE_BACKLOG_S

    def _worth_one_more(self) -> bool:
        """Is there more in the queue than the present connections soon complete?"""
        prompt = len(self.sessions) - len(self.lateness.sessions)
        if prompt <= 0:
            opening = self.connections - len(self.sessions)
            return len(self.waiting) > self._width() * opening
        width = self._width()
        if self.pace.reply_s >= FAR_S and not (self._accepted_several or self.lateness.sessions):
            width = 1  # opening takes long, and any of the first batch may be late
        rounds = (len(self.waiting) + self._behind) / (prompt * width)
        return rounds * (self.pace.batch_s or 0.0) > self._backlog_s()

    def _width(self) -> int:
        """How many probes a session sends at a time."""
        return 1 if self._pipelines is False or self.one_each else self._window()

    def _window(self) -> int:
        if not self._accepted_several and self.pace.reply_s >= FAR_S and not self.lateness.sessions:
            return min(self._depth, VENTURED)  # network latency, or work for each recipient
        gap_s = self.pace.gap_s
        # Compared as a product: the mean gap of replies that come together can underflow
        # a division.
        if gap_s * REFUSALS_MAX <= BATCH_S:
            return self._depth
        return min(self._depth, max(1, int(BATCH_S / gap_s)))

    # -- one connection's task ---------------------------------------------------------------

    async def _work(self, permit_at: str | None) -> None:
        """Run one connection; `permit_at` is an address whose permit it holds already."""
        session = None
        try:
            session = await self.opener.open(permit_at)
            if session is not None:
                self.sessions.add(session)
                self.opener.proven_parallelism = max(
                    self.opener.proven_parallelism, len(self.sessions)
                )
                if self._dispatcher.closing:
                    session.withdraw()
                self._dispatcher.capacity_freed(self)
                self._open_all()
                with self._dispatcher.permits.holding(session.address):
                    await session.serve()
                    self._session_over(session)
                    self.staff()
                    await session.quit()
        finally:
            if session is not None:
                self._session_over(session)
                with trio.CancelScope(shield=True):
                    await session.close()
                self.opener.closed_at = self._now()
                self._dispatcher.permits.release(session.address)
            self.connections -= 1
        self.staff()

    def _session_over(self, session: SmtpSession) -> None:
        self.sessions.discard(session)
        if self.lateness.sessions.pop(session, None) is not None:
            self._dispatcher.capacity_freed(self)

    @property
    def silent(self) -> bool:
        return self.opener.silent

    def hedge(self, probe: Probe, place: int) -> None:
        """Queue the probe here as well, because the exchange before this one is silent.

        The first of the two that greets takes it.
        """
        now = self._now()
        if now < self.backoff.until or now < self.names_backoff_until:
            return
        probe.hedge, probe.hedge_index = self, place
        self.waiting.join(probe.asker, probe)
        self.staff()

    def _claim(self, probe: Probe) -> None:
        """This host greeted first: move the probe here from the pool where it waited."""
        silent: Pool = probe.pool
        silent.present -= 1
        self._dispatcher.capacity_freed(silent)
        if probe.notes is not None:
            words = f"silent for {HEDGE_S:g} s, the next exchange was quicker"
            probe.notes.tried.append(ConnectionAttempt(silent.name, silent.addresses[0], words))
        probe.pool, probe.hedge = self, None
        probe.exchange_index = probe.hedge_index
        probe.domain_here = self._dispatcher.domains.find(self.host, probe.domain)
        self.present += 1

    def send_on(self, cause: Cause) -> None:
        """Fail over every probe that waits here."""
        for probe in self.waiting.pop_all():
            if probe.pool is self:
                self.fail_over(probe, cause)
            elif probe.hedge is self:
                probe.hedge, probe.hedge_cause = None, cause

    def reduce_limit(self, throttle: Throttle) -> None:
        if throttle.limit < self.throttle.limit:
            self.opener.proven_parallelism = 0
            self._dispatcher.observer.limit_lowered()
        self.throttle = throttle

    def _free_address(self) -> bool:
        """Is a permit free at an address? If not, queue for one at each of them."""
        now = self._now()
        good = [
            address
            for address in self.addresses
            if now - self.opener.failed_at.get(address, NEVER) >= AVOID_S
        ]
        free = [self._dispatcher.permits.available(address) for address in good or self.addresses]
        if any(free):
            return True
        for address in good or self.addresses:
            self._dispatcher.permits.set_demand(address, self)
        return False

    def learn_pace(self, connection: SmtpConnection) -> None:
        self._pipelines = connection.conversation.offer.pipelining
        if self.pace.batch_s is None:
            turnaround_s = connection.received_at - connection.sent_at
            self.pace.measured(turnaround_s, -1)
            self.pace.gap_s = turnaround_s
            self.pace.reply_s = turnaround_s
            self._replied(turnaround_s)

    # -- back-off ----------------------------------------------------------------------------

    def end_backoff(self) -> None:
        """A recipient was answered: the host and its names are not left alone any more."""
        if self.backoff.failures:
            self.backoff = HostBackoff()
        if self.names_backoff_until != NEVER:
            self.names_backoff_until = NEVER
            self._dispatcher.host_memory.record_success(self)

    def record_failure(self, cause: Cause, *, at_once: bool = False) -> None:
        self.opener.proven_parallelism = 0
        now, rested_until = self._now(), self.backoff.until
        if at_once:
            self.backoff = replace(
                self.backoff, failures=max(self.backoff.failures, BACKOFF_AFTER - 1)
            )
        self.backoff = self.backoff.after_failure(now, refused=cause.about_us)
        self._backoff_cause = cause
        if self.backoff.until > rested_until:
            self._dispatcher.observer.host_backed_off(refused=cause.about_us)
        if self.backoff.active(now):
            failed = [
                address
                for address in self.addresses
                if now - self.opener.failed_at.get(address, NEVER) < AVOID_S
            ]
            self._dispatcher.host_memory.record(self, failed or self.addresses[:1], cause)
            for session in self.sessions:
                session.withdraw()
            self.send_on(cause)

    # -- SessionHost -------------------------------------------------------------------------

    @property
    def helo_name(self) -> str:
        return self._dispatcher.settings.helo_name

    def read(self, step: Step, reply: SmtpReply) -> ReplyMeaning:
        return self._dispatcher.rules.read(step, reply, self.operator.id if self.operator else None)

    def window(self) -> int:
        return self._window()

    def next_probe(self, now: float) -> Probe | None:
        while (probe := self.waiting.pop()) is not None:
            if probe.outcome is not None:
                continue
            if probe.pool is not self:
                if probe.hedge is not self:
                    continue  # it is under way elsewhere
                self._claim(probe)
            probe.hedge = None
            backing_off = now < self.backoff.until or now < probe.domain_here.backoff_until
            if not backing_off or (cause := self._backing_off(probe, now)) is None:
                return probe
            self._reject_waiting(probe, cause)
        return None

    def requeue(self, probe: Probe) -> None:
        if probe.settled:
            return
        if (cause := self._backing_off(probe, self._now())) is not None:
            self._reject_waiting(probe, cause)
        else:
            self.waiting.push_front(probe.asker, probe)

    def requeue_last(self, probe: Probe) -> None:
        """Queue it behind all others of its account."""
        self.waiting.join(probe.asker, probe)

    def is_blocked(self, session: SmtpSession) -> bool:
        """Do other probes need the place of this late session, for longer than opening takes?

        Probes whose own reply was late before do not count.
        """
        if not self.any_waiting():
            return False
        if self.connections < self._connections_max() and any(
            map(self._dispatcher.permits.available, self.addresses)
        ):
            return False  # one more can be opened beside it
        if all(self.session_ended(each) or each.rerouted for each in self.waiting.heads()):
            return False
        prompt = self.connections - len(self.lateness.sessions)
        if self.lateness.slow_for_all:  # perhaps: give up one at a time
            now, patience_s = self._now(), max(REROUTE_S, 2 * LATE_REPLIES * self.pace.reply_s)
            since = min(self.lateness.sessions.get(session, now), self.lateness.rerouted_at)
            return prompt <= 0 and now - since >= patience_s
        if prompt <= 0:
            return True
        work_s = len(self.waiting) * (self.pace.batch_s or 0.0)
        return work_s > prompt * self.opener.opening_s

    def is_needed_elsewhere(self, address: str) -> bool:
        return self._dispatcher.permits.is_needed_elsewhere(address, self)

    def close_idle_session(self) -> None:
        for session in list(self._idle):
            session.withdraw()

    def close_one_session(self, address: str) -> bool:
        """Close an idle connection to this address; False if there is none."""
        for session in self._idle:
            if session.address == address and not session.leaving:
                session.withdraw()
                return True
        return False

    def revoke_permits(self, address: str) -> None:
        """The connections to this address are about to be cancelled, through no fault of the host."""
        for session in self.sessions:
            if session.address == address:
                session.revoke_permit()

    def is_idle(self, session: SmtpSession) -> None:
        self._idle[session] = None

    def is_busy(self, session: SmtpSession, *, woken: bool) -> None:
        if self._idle.pop(session, _NOT_IDLE) is _NOT_IDLE:
            self._coming -= woken

    def begin_answers(self) -> None:
        self._dispatcher.begin_answers()

    def end_answers(self, *, all_of_them: bool) -> None:
        self._coming += all_of_them  # it takes one of the probes now admitted
        self._dispatcher.end_answers()
        self._coming -= all_of_them

    def session_reused(self) -> None:
        self._dispatcher.observer.session_reused()

    def _domain(self, name: str) -> DomainAcceptance:
        return self._dispatcher.domains.find(self.host, name)

    def random_mailbox(self, domain: DomainAcceptance) -> str:
        return self._dispatcher.domains.random_mailbox(domain)

    def learn(self, domain: DomainAcceptance, acceptance: Acceptance) -> None:
        now = self._now()
        for probe in self._dispatcher.domains.learn(domain, acceptance, now):
            rule = deciding_rule(acceptance, probe.rule)
            self.settle(probe, acceptance.value, rule)

    def leave_untested(self, domain: DomainAcceptance) -> None:
        """The catch-all test was not sent: repeat it.

        One of the accepted probes is sent again on another connection with the test behind
        it. If none has a conversation left, all are settled as untested.
        """
        domain.testing = False
        domain.awaiting = [probe for probe in domain.awaiting if not probe.settled]
        again = next((each for each in domain.awaiting if not each.exhausted), None)
        if again is not None:
            domain.awaiting.remove(again)
            self.requeue(again)
            return
        awaiting, domain.awaiting = domain.awaiting, []
        for probe in awaiting:
            self.settle(probe, Outcome.DELIVERABLE_UNTESTED, probe.rule)

    def batch_done(self, round_s: float, gap_s: float, first_s: float) -> None:
        if gap_s >= 0 and not self._accepted_several:
            self.pace.gap_s = gap_s  # until now it was a guess
        self.pace.measured(round_s, gap_s)
        self._replied(first_s)
        self.throttle = self.throttle.after_success(self._now())
        if gap_s >= 0 and not self._accepted_several:
            self._accepted_several = True
            self._dispatcher.capacity_freed(self)
        if len(self.waiting):
            self._coming += 1  # it takes a waiting probe after this
            self.staff()
            self._coming -= 1

    def settle_alone(self, probe: Probe, outcome: Outcome, rule: str, round_s: float) -> None:
        """A batch of one is done: like settle() between begin_answers() and end_answers()."""
        self._coming += 1  # it takes one of the probes now admitted
        self.settle(probe, outcome, rule)
        self._coming -= 1
        self.answered_alone(round_s)

    def answered_alone(self, round_s: float) -> None:
        """A batch of one is done; its verdict is settled or still to be proven."""
        self.pace.measured(round_s, -1)
        self._replied(round_s)
        throttle = self.throttle
        if throttle.limit < throttle.limit_max or throttle.bad:
            self.throttle = throttle.after_success(self._now())
        if self.waiting.count > self._coming + 1:  # the session takes one of those
            self._coming += 1
            self.staff()
            self._coming -= 1

    def learn_fast_reply(self, reply_s: float) -> None:
        """A reply that came sooner than usual was the right one."""
        self.usual_s = self.pace.replied(reply_s)

    def _replied(self, reply_s: float) -> None:
        pace = self.pace
        usual_s = pace.reply_s
        if reply_s >= EARLY * usual_s:  # otherwise learn_fast_reply() counts it once it is proven
            usual_s = pace.replied(reply_s)
        self.usual_s = usual_s
        if usual_s < QUICK_REPLY_S and self.lateness.late_reply_s is None:
            self.late_s = LATE_S
        else:
            self.late_s = self.lateness.late_after_s(pace)
        if self._depth < REFUSALS_MAX and not self.wary:
            self._prompt += 1
            if self._prompt >= PROMPT_BATCHES:
                self._depth, self._prompt = self._depth + 1, 0
                self.slow_to_answer = self._depth < REFUSALS_MAX

    @property
    def reroute_s(self) -> float:
        return self.lateness.reroute_s(self.late_s, self.opener.opening_s)

    def session_rerouted(self) -> None:
        """A late reply was given up: it takes longer than that."""
        late = self.lateness
        late.rerouted_at = self._now()
        at_least_s = self.reroute_s + self.opener.opening_s
        self._learn_lateness(max(at_least_s, late.late_reply_s or 0.0))

    def _learn_lateness(self, late_reply_s: float) -> None:
        self.lateness.late_reply_s = late_reply_s
        self.late_s = self.lateness.late_after_s(self.pace)

    def hold_back(self, count: int) -> None:
        """`count` verdicts wait for their proof: admit other probes in their place.

        The session that calls takes the probes admitted for them.
        """
        self._coming += 1
        self._dispatcher.defer(self, count)
        self._coming -= 1

    def end_deferral(self, count: int) -> None:
        """`count` verdicts are settled or doubted now."""
        self._dispatcher.end_hold(self, count)

    def distrust(self) -> None:
        """A reply too many, or one too few: from now on prove each verdict by itself."""
        self.wary = True
        self._depth = 1

    def session_late(self, session: SmtpSession, *, accepted: int) -> None:
        """The oldest recipient of the session is late: open another connection if needed.

        `accepted` recipients before it were accepted in time, which is not proven yet.
        """
        self.lateness.session_late(session, self._now() - self.late_s, accepted)
        gap_s = self.pace.gap_s if self._accepted_several else 0.0
        self._depth, self._prompt = self.lateness.tarpit_depth(self.pace, gap_s), 0
        self.slow_to_answer = True
        self.staff()
        if self.lateness.late_reply_s is None:
            self._learn_lateness(self.late_s)
        self._dispatcher.capacity_freed(self)

    def session_prompt(self, session: SmtpSession, *, accepted: bool) -> None:
        """The late reply has come; `accepted` if it was positive."""
        since = self.lateness.sessions.pop(session, None)
        if since is not None:
            late_reply_s = self._now() - since
            if accepted:
                self.lateness.accepted_late(late_reply_s)
            self._learn_lateness(late_reply_s)
        self._dispatcher.capacity_freed(self)

    def session_failed(
        self, cause: Cause, *, before_recipients: bool, late: bool, at_recipient: bool
    ) -> None:
        """`late`: others were answered in time, so fewer connections would not help.

        A reply to a recipient is counted for its domain instead: see session_barren().
        """
        if not (late and cause.outcome is Outcome.TIMED_OUT):
            self.reduce_limit(self.throttle.after_failure())
        if before_recipients or (cause.about_us and not at_recipient):
            self.record_failure(cause)
