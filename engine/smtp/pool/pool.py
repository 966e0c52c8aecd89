"""The connections to one mail host, and the questions that wait for them.

A pool is found by the addresses of an exchange, so thousands of domains that
share a host share its pool, and the host's limits are kept over all of them.
Every decision is a synchronous function over what is known; I/O follows in one
task a connection. What a connection attempt taught is told to everyone who
waits: a host that can't be reached is asked once, not once for each address.
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
BATCH_S = 0.8  # a window's replies, one by one, should not take longer
DEFERRED_FAILURES_MAX = 3  # an outage longer than this is told, not waited for
ANSWERED_AT_ONCE = 64  # questions let in at a time while a resting host's old answer is given
QUICK_BATCH_S = 0.2  # a host that answers so soon may have a few waiting in step, too
QUEUED_IN_STEP = 2  # for each connection: their clocks run, so no more than that
VENTURED = 4  # to a host that pipelines, for its first round: it may want each by itself
IN_STEP_LEAST = 2  # for each connection: who is asked, and who is next
MANY = 1 << 30  # more questions than there ever are
REROUTE_S = 0.4  # a host that has not accepted anybody in time may be slow for all: wait longer
LATE_BACKLOG_S = 0.1  # at a host that has late replies: work for longer is worth a connection


_NOT_IDLE = object()


class Pool:
    """One mail host. See session.Host for what its sessions ask of it."""

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
        self.names_backoff_until = NEVER  # the latest rest of one of them
        self.operator: MailOperator | None = None
        self.one_each = False
        self.terms = first_terms(dispatcher.settings.mail_from)
        self.present = 0  # questions that wait here or are asked here
        self.waiting: FairQueue[Probe] = FairQueue()
        self.sessions: set[SmtpSession] = set()
        self._idle: dict[SmtpSession, None] = {}  # of the sessions
        self._depth = REFUSALS_MAX  # recipients in one round, fewer after a late reply
        self._prompt = 0  # rounds without a late reply since it was changed
        self.backlog = 0  # verdicts that are there, and not proven yet
        self.room_at = MANY  # with more questions under way, room() has none
        self.usual_s = 0.0
        self.late_s = LATE_S
        self.wary = False
        self.slow_to_answer = False  # a reply was late not long ago
        self._coming = 0  # sessions that were woken, and have not looked what waits yet
        self.connections = 0  # sessions, and connections being opened
        self.throttle = Throttle(dispatcher.settings.host_connections)
        self.allowed = (
            dispatcher.settings.host_connections
        )  # fewer where other processes want seats
        self.backoff = HostBackoff()
        self._backoff_cause: Cause | None = None
        self._behind = 0  # what a patient asker holds back for this host
        self.pace = ReplyPace()
        self.lateness = Lateness()
        self.opener = ConnectionOpener(self, dispatcher)
        refusals = RefusalMemory(self, self.lateness)
        self.recipient_read = refusals.recipient_read  # bound here: no call more for each reply
        self.session_barren = refusals.session_barren
        self._pipelines: bool | None = None
        self._accepted_several = False  # recipients together, a whole round
        self._dispatcher = dispatcher
        self.settle, self.fail_over = dispatcher.settle, dispatcher.fail_over  # as sessions say it
        self._now = trio.lowlevel.current_clock().current_time

    # -- questions ---------------------------------------------------------------------------

    def belong_to(self, site: MailOperator | None) -> None:
        """One of the host's names is this operator's: its wishes hold for all of them."""
        if site is None or site == self.operator:
            return
        self.operator = site
        self.one_each = self.one_each or site.one_each
        if site.connections_max is not None:
            self.throttle = Throttle(min(site.connections_max, self.throttle.limit_max))

    def join(self, probes: Sequence[Probe], now: float) -> None:
        """Let questions wait for a seat; a resting host gives them its old answer at once."""
        waiting, find_domain = self.waiting, self._dispatcher.domains.find
        for probe in probes:
            probe.pool = self
            domain = probe.domain_here = find_domain(self.host, probe.domain)
            self.present += 1
            if probe.hedge is self:  # it waits here already
                probe.hedge = None
                continue
            rests = (
                now < self.backoff.until
                or now < domain.backoff_until
                or now < self.names_backoff_until
            )
            if rests and (cause := self._backing_off(probe, now)) is not None:
                self._reject_waiting(probe, cause)
            else:
                self._behind = probe.behind
                waiting.join(probe.asker, probe)
        before = -1
        while waiting.count > self._coming != before:  # one more was woken: is another needed?
            before = self._coming
            self.staff()
        if self.opener.hedged and not self.sessions:
            self._dispatcher.hedge(self)

    def _backing_off(self, probe: Probe, now: float) -> Cause | None:
        """The old answer, where the host or the question's domain here is left alone."""
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
        """How many more questions may come without waiting long for a seat, or for a rest to end.

        Where some wait in step behind those that are asked, they come a few at a time, of
        the `held` that would: to let one in costs hardly less. A round of a pipelined host
        is a few by itself, and the first one is small: should the host want each recipient
        by itself, those behind it are not to wait out their clocks.
        """
        self.room_at = MANY  # but where it is known how many are too many
        if self.backoff.failures:
            if self.worth_waiting_for():
                return 0
            if self.backoff.active(self._now()):
                return ANSWERED_AT_ONCE - self.present
        if self._pipelines is None:
            return 1 - self.present  # see first how it greets
        # Who waits for a late reply takes no part, and nothing is put behind it.
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
            if not self._accepted_several and not careful:  # see first whether it does
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
        """Questions here whose reply is still to come."""
        return self.present - self.backlog

    def worth_waiting_for(self) -> bool:
        """The host could not be reached a moment ago, and who has time had better wait."""
        if not self.backoff.failures:
            return False
        refused = self._backoff_cause is not None and self._backoff_cause.about_us
        patient = not refused and self.backoff.failures < DEFERRED_FAILURES_MAX
        return patient and self.backoff.doubtful(self._now())

    def staff(self, *, hurried: bool = False) -> None:
        """Wake who is idle, or open a connection where what waits is worth one."""
        if not self._idle:
            if self.connections >= self.throttle.limit and not self.lateness.sessions:
                return
            # _worth_one_more() in short, for it is asked of almost every reply: no, where the
            # sessions soon get through even if each takes one question at a time.
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
        """A seat at the address is ours if we still want it; False where not."""
        prompt = len(self.sessions) - len(self.lateness.sessions)
        if prompt > 0 or not self.any_waiting() or self.connections >= self._connections_max():
            return False
        self.connections += 1
        self._dispatcher.start(self._work, address)
        return True

    def permit_acquired(self) -> None:
        """There is a seat at one of the addresses: is it still worth a connection?"""
        self.staff(hurried=self.opener.slow_greeting)

    def any_waiting(self) -> bool:
        """Is there a question that waits for a connection?"""
        return self.waiting.prune(self.session_ended)

    def session_ended(self, probe: Probe) -> bool:
        """It is settled, or asked at another exchange."""
        return probe.outcome is not None or (probe.pool is not self and probe.hedge is not self)

    def _needs_connection(self, hurried: bool) -> bool:
        if self.connections >= self._connections_max():
            return False
        if len(self.sessions) < self.connections:  # one is being opened, or closed
            if self.opener.has_enough:
                return False
            # Where the way is far, the limit alone says how many: it grows with each greeting.
            untried = (
                self.connections >= self.opener.proven_parallelism and self.pace.reply_s < FAR_S
            )
            if untried and not hurried:
                return False  # see first how the host takes it
        another_address = hurried and self.connections < len(self.addresses) and not self.sessions
        wanted = self.connections == 0 or another_address or self._worth_one_more()
        return wanted and self._free_address()

    def _connections_max(self) -> int:
        """How many connections may be open just now."""
        if not self.lateness.sessions:
            return self.throttle.limit
        return self.throttle.with_late(len(self.lateness.sessions), self._now())

    def _backlog_s(self) -> float:
        return BACKLOG_S if self._depth == REFUSALS_MAX else LATE_BACKLOG_S

    def _worth_one_more(self) -> bool:
        """Is what waits more than the connections there are get through soon?"""
        prompt = len(self.sessions) - len(self.lateness.sessions)
        if prompt <= 0:
            opening = self.connections - len(self.sessions)
            return len(self.waiting) > self._width() * opening
        width = self._width()
        if self.pace.reply_s >= FAR_S and not (self._accepted_several or self.lateness.sessions):
            width = 1  # a connection takes long to open, and any of the first round may be late
        rounds = (len(self.waiting) + self._behind) / (prompt * width)
        return rounds * (self.pace.batch_s or 0.0) > self._backlog_s()

    def _width(self) -> int:
        """How many questions a session takes at a time."""
        return 1 if self._pipelines is False or self.one_each else self._window()

    def _window(self) -> int:
        if not self._accepted_several and self.pace.reply_s >= FAR_S and not self.lateness.sessions:
            return min(self._depth, VENTURED)  # that may be the way, or work for each of them
        gap_s = self.pace.gap_s
        # Told by a product: where replies come together the mean gap falls below all
        # that a quotient may be made of.
        if gap_s * REFUSALS_MAX <= BATCH_S:
            return self._depth
        return min(self._depth, max(1, int(BATCH_S / gap_s)))

    # -- one connection's task ---------------------------------------------------------------

    async def _work(self, permit_at: str | None) -> None:
        """One connection's life; `permit_at` is an address at which it has a seat already."""
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
        """Let a question wait here as well, for its exchange before this one is silent.

        The first of the two that greets us takes it.
        """
        now = self._now()
        if now < self.backoff.until or now < self.names_backoff_until:
            return
        probe.hedge, probe.hedge_index = self, place
        self.waiting.join(probe.asker, probe)
        self.staff()

    def _claim(self, probe: Probe) -> None:
        """This host greeted us first: the question is asked here, and no more where it waited."""
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
        """Whoever waits here is not asked here."""
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
        """Is there an address to connect to? Where not, we are told when a seat is given back."""
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

    # -- rest --------------------------------------------------------------------------------

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

    # -- what a session asks of its host -----------------------------------------------------

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
                    continue  # it is asked elsewhere
                self._claim(probe)
            probe.hedge = None
            rests = now < self.backoff.until or now < probe.domain_here.backoff_until
            if not rests or (cause := self._backing_off(probe, now)) is None:
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
        """Let it wait behind all others of its asker."""
        self.waiting.join(probe.asker, probe)

    def is_blocked(self, session: SmtpSession) -> bool:
        """Is the place of a late connection wanted for others, for longer than a new one takes?

        Those whose own reply was late before are no reason.
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
        if self.lateness.slow_for_all:  # perhaps: one at a time
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
        """Tell an idle connection to this address to say QUIT; False where there is none."""
        for session in self._idle:
            if session.address == address and not session.leaving:
                session.withdraw()
                return True
        return False

    def revoke_permits(self, address: str) -> None:
        """The connections to this address are about to be cut, by no fault of the host's."""
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
        self._coming += all_of_them  # it takes of what is now let in
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
        """The random address was not asked, by no fault of its own: ask once more.

        One of those who wait for it is asked again, on another connection and with
        the test behind it; where none has a conversation left, all go without.
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
            self.pace.gap_s = gap_s  # so far it was a guess
        self.pace.measured(round_s, gap_s)
        self._replied(first_s)
        self.throttle = self.throttle.after_success(self._now())
        if gap_s >= 0 and not self._accepted_several:
            self._accepted_several = True
            self._dispatcher.capacity_freed(self)
        if len(self.waiting):
            self._coming += 1  # it looks what waits as soon as it is done here
            self.staff()
            self._coming -= 1

    def settle_alone(self, probe: Probe, outcome: Outcome, rule: str, round_s: float) -> None:
        """A round of one is over: as settle() between begin_answers() and end_answers(), then round_done()."""
        self._coming += 1  # it takes of what is now let in
        self.settle(probe, outcome, rule)
        self._coming -= 1
        self.answered_alone(round_s)

    def answered_alone(self, round_s: float) -> None:
        """A round of one is over, and its verdict is still to be proven."""
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
        """A reply that came sooner than usual was the right one: the host is that quick."""
        self.usual_s = self.pace.replied(reply_s)

    def _replied(self, reply_s: float) -> None:
        pace = self.pace
        usual_s = pace.reply_s
        if reply_s >= EARLY * usual_s:  # else see learn_quick()
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
        """So many replies are there, and their verdicts wait for the proof: their places are free.

        Whoever is let in for them is asked by the session that calls.
        """
        self._coming += 1
        self._dispatcher.defer(self, count)
        self._coming -= 1

    def end_deferral(self, count: int) -> None:
        """So many verdicts are given out or doubted now."""
        self._dispatcher.end_hold(self, count)

    def distrust(self) -> None:
        """A reply too many, or one too few: from now on each verdict is proven by itself."""
        self.wary = True
        self._depth = 1

    def session_late(self, session: SmtpSession, *, accepted: int) -> None:
        """Its oldest recipient takes long: what waits is worth another connection.

        So many before it were accepted in time, which is not proven yet.
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
        """The late reply has come: is it a tarpit, or does the host accept late as well?"""
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
        """`late`: while others were answered in time, so a connection less would not help.

        What was said to a recipient speaks of its domain: see session_barren().
        """
        if not (late and cause.outcome is Outcome.TIMED_OUT):
            self.reduce_limit(self.throttle.after_failure())
        if before_recipients or (cause.about_us and not at_recipient):
            self.record_failure(cause)
