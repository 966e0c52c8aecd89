"""The connections to one mail host, and the questions that wait for them.

A pool is found by the addresses of an exchange, so thousands of domains that
share a host share its pool, and the host's limits are kept over all of them.
Every decision is a synchronous function over what is known; I/O follows in one
task a connection. What a connection attempt taught is told to everyone who
waits: a host that can't be reached is asked once, not once for each address.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, Protocol

import trio

from mailprobe.engine.evidence import ConnectionAttempt
from mailprobe.engine.fair_queue import FairQueue
from mailprobe.engine.net.dialer import Dial
from mailprobe.engine.net.reactor import ByteChannel
from mailprobe.engine.observer import Observer
from mailprobe.engine.settings import EngineSettings
from mailprobe.engine.smtp import wire
from mailprobe.engine.smtp.catchall import Acceptance, DomainAcceptance, Domains, deciding_rule
from mailprobe.engine.smtp.connection import SmtpConnection
from mailprobe.engine.smtp.host_policy import first_terms, start_tls
from mailprobe.engine.smtp.operators import MailOperator
from mailprobe.engine.smtp.pairing import EARLY
from mailprobe.engine.smtp.probe import ADDRESSES_MAX, Cause, Probe
from mailprobe.engine.smtp.replies.rules import ReplyMeaning, Rules, Step
from mailprobe.engine.smtp.session import (
    CONNECTION_ERRORS,
    REFUSALS_MAX,
    SmtpSession,
    cause_of,
    refusal_outcome,
)
from mailprobe.engine.smtp.throttle import (
    BACKOFF_AFTER,
    NEVER,
    NO_SILENCE,
    REFUSAL_BACKOFF_S,
    HostBackoff,
    Throttle,
)
from mailprobe.engine.smtp.wire import RemoteProtocolError, SmtpReply
from mailprobe.engine.verdict import Outcome

BACKLOG_S = 0.5  # work for longer than this is worth one more connection
HEDGE_S = 0.25  # of silence before a greeting, then the next exchange is dialled beside it
FAR_S = 0.075  # a host that answers no sooner is far away
HURRY_S = 0.15  # a greeting that takes longer is not waited for before the next is opened
BATCH_S = 0.8  # a window's replies, one by one, should not take longer
RELEASE_S = 0.2  # so long a host may count a connection that is closed, or about to be
COLD_MAX = 3  # recipients in a row refused because of us, then the domain is rested here
COLD_DOMAINS_MAX = 3  # so many domains of a host rested in a row: it is the host that wants rest,
RECENT_SUCCESS_DOMAINS_MAX = 8  # or so many where another domain has been answered there
RECENT_SUCCESS_S = 600.0  # within this long
DEFERRED_FAILURES_MAX = 3  # an outage longer than this is told, not waited for
AVOID_S = 5.0  # an address that failed is not the one to wait for
ANSWERED_AT_ONCE = 64  # questions let in at a time while a resting host's old answer is given
QUICK_BATCH_S = 0.2  # a host that answers so soon may have a few waiting in step, too
QUEUED_IN_STEP = 2  # for each connection: their clocks run, so no more than that
VENTURED = 4  # to a host that pipelines, for its first round: it may want each by itself
IN_STEP_LEAST = 2  # for each connection: who is asked, and who is next
LATE_SHARE_GUESS = 0.2  # of the recipients at a host that has had one late reply
LATE_SHARE_EWMA = 0.15  # weight of the newest recipient in that share
LATE_A_ROUND = 0.8  # so many late replies are expected of one round, at the most
MANY = 1 << 30  # more questions than there ever are
EWMA = 0.3  # weight of the newest measurement
LATE_S = 0.15  # a reply is late after this long, and
LATE_REPLIES = 5  # so many usual replies, but no later than LATE_S after the usual one
QUICK_REPLY_S = LATE_S / LATE_REPLIES
TARPIT_LATE_S = 0.1  # where the host has had a late reply it makes more: late after this and
TARPIT_REPLIES = 1.2  # so many usual replies, and
JITTERS = 4  # so many times what they differ by (as TCP has it, RFC 6298)
TARPIT_OVER = 1.25  # times the latest late reply, then this one takes longer still
REROUTE_S = 0.4  # a host that has not accepted anybody in time may be slow for all: wait longer
OPENING_S_LEAST = 0.1  # what a new connection costs, however near its host is
TARPIT_DEPTH_S = 0.05  # of the way to a host that pipelines: one recipient a round for each
LATE_BACKLOG_S = 0.1  # at a host that has late replies: work for longer is worth a connection
PROMPT_BATCHES = 16  # before one more recipient is asked at a time
BARREN_MAX = 2  # sessions in a row that gave a domain's recipients but 421, a close or garbage
DOUBTFUL_ADDRESSES = (ADDRESSES_MAX, 2, 1)  # tried in one go after no, one, two strikes in a row


class PoolHost(Protocol):
    """What a pool needs of layer 4 as a whole; see probe.Prober."""

    settings: EngineSettings
    rules: Rules
    dial: Dial
    domains: Domains
    observer: Observer
    closing: bool

    @property
    def at_capacity(self) -> bool: ...
    def start(self, task: Callable[..., Any], *args: Any) -> None: ...
    def open_channel(self, stream: trio.abc.Stream) -> ByteChannel: ...
    def settle(self, probe: Probe, outcome: Outcome, rule: str) -> None: ...
    def fail_over(self, probe: Probe, cause: Cause) -> None: ...
    def permit_available(self, address: str) -> bool: ...
    def try_acquire_permit(self, address: str, pool: "Pool") -> bool: ...
    def release_permit(self, address: str) -> None: ...
    def set_demand(self, address: str, pool: "Pool") -> None: ...
    def is_needed_elsewhere(self, address: str, pool: "Pool") -> bool: ...
    def holding_permit(self, address: str) -> AbstractContextManager[None]: ...
    def capacity_freed(self, pool: "Pool") -> None: ...
    def hedge(self, pool: "Pool") -> None: ...
    def defer(self, pool: "Pool", count: int) -> None: ...
    def end_hold(self, pool: "Pool", count: int) -> None: ...
    def backoff_at(self, address: str) -> Cause | None: ...
    def name_backoff(self, name: str, now: float) -> Cause | None: ...
    def record_backoff(self, pool: "Pool", addresses: Sequence[str], cause: Cause) -> None: ...
    def record_success(self, pool: "Pool") -> None: ...
    def begin_answers(self) -> None: ...
    def end_answers(self) -> None: ...


_NOT_IDLE = object()


@dataclass(slots=True)
class _ReplyPace:
    """How fast the host answers, in seconds; moving averages."""

    batch_s: float | None = None  # from a round's write to its last reply
    gap_s: float = 0.0  # between two replies of one round
    reply_s: float = 0.0  # from a round's write to its first reply
    jitter_s: float = 0.0  # what those differ by

    def measured(self, round_s: float, gap_s: float) -> None:
        before = self.batch_s if self.batch_s is not None else round_s
        self.batch_s = before + EWMA * (round_s - before)
        if gap_s >= 0:
            self.gap_s += EWMA * (gap_s - self.gap_s)

    def replied(self, reply_s: float) -> float:
        """What is usual now. A late reply says little of the next ones: it counts twice the usual."""
        usual_s = self.reply_s
        if usual_s:
            if reply_s > 2 * usual_s:
                reply_s = 2 * usual_s
            differ_s = reply_s - usual_s if reply_s > usual_s else usual_s - reply_s
            self.jitter_s += EWMA * (differ_s - self.jitter_s)
        self.reply_s = usual_s = usual_s + EWMA * (reply_s - usual_s)
        return usual_s


class Pool:
    """One mail host. See session.Host for what its sessions ask of it."""

    # Of more than 30 attributes Python keeps a dict for each object, and looks each up: 6 µs an address.
    __slots__ = (
        "_accepted",
        "_accepted_late",
        "_accepted_several",
        "_accepting_s",
        "_backoff_cause",
        "_behind",
        "_closed_at",
        "_cold_domains",
        "_coming",
        "_depth",
        "_dispatcher",
        "_failed_at",
        "_greeted",
        "_has_enough",
        "_hedged",
        "_idle",
        "_late",
        "_late_reply_s",
        "_late_share",
        "_now",
        "_opening_s",
        "_pace",
        "_pipelines",
        "_prompt",
        "_proven_parallelism",
        "_refused_domains",
        "_rerouted_at",
        "_silence",
        "_slow_greeting",
        "_succeeded",
        "_succeeded_at",
        "_turn",
        "addresses",
        "allowed",
        "backlog",
        "backoff",
        "connections",
        "fail_over",
        "found_at",
        "host",
        "late_s",
        "name",
        "names",
        "names_backoff_until",
        "one_each",
        "operator",
        "present",
        "room_at",
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
        self._late: dict[SmtpSession, float] = {}  # of the sessions; since when
        self._opening_s = (
            OPENING_S_LEAST  # from the dial to a greeting: what a new connection costs
        )
        self._accepted = 0  # recipients,
        self._accepted_late = 0  # and of them those with a late reply,
        self._accepting_s = 0.0  # the latest of which took so long
        self._rerouted_at = NEVER  # the latest of the sessions
        self._late_share = LATE_SHARE_GUESS  # of the recipients: a guess, and then a moving average
        self._late_reply_s: float | None = None  # how long a late one takes here, at the least
        self._depth = REFUSALS_MAX  # recipients in one round, fewer after a late reply
        self._prompt = 0  # rounds without a late reply since it was changed
        self.backlog = 0  # verdicts that are there, and not proven yet
        self.room_at = MANY  # with more questions under way, room() has none
        self.usual_s = 0.0
        self.late_s = LATE_S
        self.wary = False
        self.slow_to_answer = False  # a reply was late not long ago
        self._hedged = False  # it takes so long that the next exchange is dialled
        self._slow_greeting = False  # a greeting that is being waited for takes long
        self._coming = 0  # sessions that were woken, and have not looked what waits yet
        self.connections = 0  # sessions, and connections being opened
        self.throttle = Throttle(dispatcher.settings.host_connections)
        self.allowed = (
            dispatcher.settings.host_connections
        )  # fewer where other processes want seats
        self.backoff = HostBackoff()
        self._backoff_cause: Cause | None = None
        self._cold_domains: set[str] = set()  # that were refused since a recipient was answered
        self._refused_domains: dict[str, None] = {}  # of a single recipient, too
        self._silence = NO_SILENCE  # of the host as a whole
        self._succeeded = False  # a recipient was answered since this was looked at last,
        self._succeeded_at = NEVER  # which was then
        self._failed_at: dict[str, float] = {}  # addresses, on trio's clock
        self._greeted = 0  # connections that came so far
        self._proven_parallelism = (
            0  # of them at a time, since the host last showed that it has enough
        )
        self._has_enough = False  # one was refused since the latest greeting: one at a time
        self._closed_at = NEVER  # trio's clock; the latest session
        self._behind = 0  # what a patient asker holds back for this host
        self._pace = _ReplyPace()
        self._pipelines: bool | None = None
        self._accepted_several = False  # recipients together, a whole round
        self._turn = 0  # which address is next
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
        if self._hedged and not self.sessions:
            self._dispatcher.hedge(self)

    def _backing_off(self, probe: Probe, now: float) -> Cause | None:
        """The old answer, where the host or the question's domain here is left alone."""
        domain: DomainAcceptance = probe.domain_here
        if now < self.backoff.until:
            return self._backoff_cause
        if now < domain.backoff_until:
            return domain.backoff_cause
        if now < self.names_backoff_until:
            return self._dispatcher.name_backoff(probe.exchanges[probe.exchange_index].name, now)
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
        if self._late:
            late = len(self._late)
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
        if (self._pace.batch_s or 0.0) < QUICK_BATCH_S and not self._dispatcher.at_capacity:
            capacity *= 1 + QUEUED_IN_STEP
        few, several = IN_STEP_LEAST * len(self.sessions), capacity // 3
        if not self._late:
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
            if self.connections >= self.throttle.limit and not self._late:
                return
            # _worth_one_more() in short, for it is asked of almost every reply: no, where the
            # sessions soon get through even if each takes one question at a time.
            round_s, backlog = self._pace.batch_s or 0.0, self.waiting.count + self._behind
            prompt = len(self.sessions) - len(self._late)
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
        prompt = len(self.sessions) - len(self._late)
        if prompt > 0 or not self.any_waiting() or self.connections >= self._connections_max():
            return False
        self.connections += 1
        self._dispatcher.start(self._work, address)
        return True

    def permit_acquired(self) -> None:
        """There is a seat at one of the addresses: is it still worth a connection?"""
        self.staff(hurried=self._slow_greeting)

    def any_waiting(self) -> bool:
        """Is there a question that waits for a connection?"""
        return self.waiting.prune(self._session_ended)

    def _session_ended(self, probe: Probe) -> bool:
        """It is settled, or asked at another exchange."""
        return probe.outcome is not None or (probe.pool is not self and probe.hedge is not self)

    def _needs_connection(self, hurried: bool) -> bool:
        if self.connections >= self._connections_max():
            return False
        if len(self.sessions) < self.connections:  # one is being opened, or closed
            if self._has_enough:
                return False
            # Where the way is far, the limit alone says how many: it grows with each greeting.
            untried = self.connections >= self._proven_parallelism and self._pace.reply_s < FAR_S
            if untried and not hurried:
                return False  # see first how the host takes it
        another_address = hurried and self.connections < len(self.addresses) and not self.sessions
        wanted = self.connections == 0 or another_address or self._worth_one_more()
        return wanted and self._free_address()

    def _connections_max(self) -> int:
        """How many connections may be open just now."""
        if not self._late:
            return self.throttle.limit
        return self.throttle.with_late(len(self._late), self._now())

    def _backlog_s(self) -> float:
        return BACKLOG_S if self._depth == REFUSALS_MAX else LATE_BACKLOG_S

    def _worth_one_more(self) -> bool:
        """Is what waits more than the connections there are get through soon?"""
        prompt = len(self.sessions) - len(self._late)
        if prompt <= 0:
            opening = self.connections - len(self.sessions)
            return len(self.waiting) > self._width() * opening
        width = self._width()
        if self._pace.reply_s >= FAR_S and not (self._accepted_several or self._late):
            width = 1  # a connection takes long to open, and any of the first round may be late
        rounds = (len(self.waiting) + self._behind) / (prompt * width)
        return rounds * (self._pace.batch_s or 0.0) > self._backlog_s()

    def _width(self) -> int:
        """How many questions a session takes at a time."""
        return 1 if self._pipelines is False or self.one_each else self._window()

    def _window(self) -> int:
        if not self._accepted_several and self._pace.reply_s >= FAR_S and not self._late:
            return min(self._depth, VENTURED)  # that may be the way, or work for each of them
        gap_s = self._pace.gap_s
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
            session = await self._reach(permit_at)
            if session is not None:
                self.sessions.add(session)
                self._proven_parallelism = max(self._proven_parallelism, len(self.sessions))
                if self._dispatcher.closing:
                    session.withdraw()
                self._dispatcher.capacity_freed(self)
                self._open_all()
                with self._dispatcher.holding_permit(session.address):
                    await session.serve()
                    self._session_over(session)
                    self.staff()
                    await session.quit()
        finally:
            if session is not None:
                self._session_over(session)
                with trio.CancelScope(shield=True):
                    await session.close()
                self._closed_at = self._now()
                self._dispatcher.release_permit(session.address)
            self.connections -= 1
        self.staff()

    def _session_over(self, session: SmtpSession) -> None:
        self.sessions.discard(session)
        if self._late.pop(session, None) is not None:
            self._dispatcher.capacity_freed(self)

    async def _reach(self, permit_at: str | None) -> SmtpSession | None:
        """A greeted connection; while a greeting takes long, others may be opened beside it."""
        greeted = trio.CancelScope()
        # What was borne before is not waited for anyhow.
        if self.connections > self._proven_parallelism or not self.sessions:
            self._dispatcher.start(self._hurry, greeted)
        try:
            return await self._try_addresses(permit_at)
        finally:
            self._slow_greeting = self._hedged = False
            greeted.cancel()

    async def _hurry(self, greeted: trio.CancelScope) -> None:
        """Where a greeting takes long and much waits, let the next connection be opened."""
        with greeted:
            await trio.sleep(HURRY_S)
            self._slow_greeting = True
            self.staff(hurried=True)
            await trio.sleep(HEDGE_S - HURRY_S)
            if not self.sessions:
                self._hedged = True
                self._dispatcher.hedge(self)

    @property
    def silent(self) -> bool:
        """It was dialled, and has not greeted us for HEDGE_S."""
        return self._hedged and not self.sessions

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

    def _send_on(self, cause: Cause) -> None:
        """Whoever waits here is not asked here."""
        for probe in self.waiting.pop_all():
            if probe.pool is self:
                self.fail_over(probe, cause)
            elif probe.hedge is self:
                probe.hedge, probe.hedge_cause = None, cause

    async def _try_addresses(self, permit_at: str | None) -> SmtpSession | None:
        """A session with the first of the addresses that answers; it holds a seat there.

        None where none does, once everyone who waits has been told; or where the
        failure is this connection's alone, because others live or are being opened.
        """
        cause, permits_taken, rests = None, False, None
        for address in self._addresses_in_turn(permit_at):
            if address != permit_at:
                if (rest := self._dispatcher.backoff_at(address)) is not None:
                    rests = rest
                    continue
                if not self.any_waiting():
                    break  # what was learnt of the host holds, whoever waits
                if not self._dispatcher.try_acquire_permit(address, self):
                    permits_taken = True
                    continue
            greeted = await self._try_address(address)
            if not isinstance(greeted, Cause):
                return greeted
            cause = greeted
        if cause is not None and not permits_taken:
            self._record_failure(cause)
            self._send_on(cause)
        elif cause is None and rests is not None and not (permits_taken or self.sessions):
            self._send_on(rests)  # another name's mail went to these addresses, in vain
        return None

    async def _try_address(self, address: str) -> SmtpSession | Cause | None:
        """A session there, on the seat that was taken; a cause that speaks for all; or None."""
        company, greeted_before, began = bool(self.sessions), self._greeted, self._now()
        others = self.connections > 1 or began - self._closed_at < RELEASE_S
        greeted = await self._greet(address)
        if greeted is None:  # the seat was withdrawn: that says nothing of the host
            return None
        self._dispatcher.observer.connected(greeted=isinstance(greeted, SmtpSession))
        if isinstance(greeted, SmtpSession):
            self._greeted += 1
            self._has_enough = False
            self._opening_s = max(OPENING_S_LEAST, self._now() - began)
            if self._pace.reply_s >= FAR_S:
                self.throttle = self.throttle.after_greeting(self._now())
            self._failed_at.pop(address, None)
            return greeted
        self._failed_at[address] = self._now()
        if company or self.sessions or self._greeted > greeted_before:
            if greeted.replied or any(session.address == address for session in self.sessions):
                self._host_at_limit()
            return None  # else it is the address that fails, and others live
        if greeted.temporary and (others or self.connections > 1):
            await self._idle_down()
            return None
        if self.connections > 1:
            self._reduce_limit(self.throttle.after_failure())
            return None
        self._record_attempt(address, greeted)
        return greeted

    def _host_at_limit(self) -> None:
        """The others go on; only this connection was one too many."""
        self._proven_parallelism = 0
        now = self._now()
        self._reduce_limit(self.throttle.after_crowding(len(self.sessions), now))

    async def _idle_down(self) -> None:
        """Two connections were in each other's way: the next one comes alone, and a little later.

        A host counts what we are closing, and connections that are dialled together count
        one another. What it says then is no answer to us: what it says to one alone is.
        """
        self._has_enough = True
        self._reduce_limit(self.throttle.after_failure())
        await trio.sleep(RELEASE_S)

    def _reduce_limit(self, throttle: Throttle) -> None:
        if throttle.limit < self.throttle.limit:
            self._proven_parallelism = 0
            self._dispatcher.observer.limit_lowered()
        self.throttle = throttle

    def _free_address(self) -> bool:
        """Is there an address to connect to? Where not, we are told when a seat is given back."""
        now = self._now()
        good = [
            address
            for address in self.addresses
            if now - self._failed_at.get(address, NEVER) >= AVOID_S
        ]
        free = [self._dispatcher.permit_available(address) for address in good or self.addresses]
        if any(free):
            return True
        for address in good or self.addresses:
            self._dispatcher.set_demand(address, self)
        return False

    def _addresses_in_turn(self, first: str | None) -> list[str]:
        start = self._turn % len(self.addresses)
        self._turn += 1
        turn = [*self.addresses[start:], *self.addresses[:start]]
        if first is not None:
            turn = [first, *(address for address in turn if address != first)]
        return turn[: DOUBTFUL_ADDRESSES[min(self.backoff.failures, len(DOUBTFUL_ADDRESSES) - 1)]]

    async def _greet(self, address: str) -> SmtpSession | Cause | None:
        """Connect, hear the banner, say EHLO, or HELO where that is refused.

        The seat at the address is the session's; without one it is given back
        when the connection is closed. None where it was withdrawn.
        """
        connection = None
        greeted: SmtpSession | Cause | None = None
        began = self._now()
        try:
            with self._dispatcher.holding_permit(address):
                with trio.fail_after(self._dispatcher.settings.read_s):
                    stream = await self._dispatcher.dial(
                        address, self._dispatcher.settings.smtp_port
                    )
                connection = SmtpConnection(
                    self._dispatcher.open_channel(stream), self._dispatcher.settings.read_s
                )
                greeted = await self._introduce(connection, address, began)
        except trio.TooSlowError:
            greeted = Cause(Outcome.TIMED_OUT, "clock.connect", "no answer to connect")
        except OSError as error:
            words = str(error) or "can't connect"
            greeted = Cause(Outcome.CONVERSATION_FAILED, "connect.failed", words)
        finally:
            if isinstance(greeted, Cause) and connection is not None:
                self._dispatcher.start(self._close_session, connection, address)
            elif not isinstance(greeted, SmtpSession):
                if connection is not None:
                    with trio.CancelScope(shield=True):
                        await connection.close()
                self._dispatcher.release_permit(address)
        return greeted

    async def _introduce(
        self, connection: SmtpConnection, address: str, began: float
    ) -> SmtpSession | Cause:
        preamble: list[tuple[float, bool, str]] = [(began, True, "(connect)")]
        step = Step.BANNER
        try:
            turn = await connection.receive_reply()
            self._write_down(preamble, connection, turn)
            if not turn.reply.positive:
                return self._refused(Step.BANNER, turn)
            step = Step.HELLO
            await connection.send(wire.ehlo(self.helo_name))
            turn = await connection.receive_reply()
            self._write_down(preamble, connection, turn)
            if turn.reply.code >= 500:
                await connection.send(wire.helo(self.helo_name))
                turn = await connection.receive_reply()
                self._write_down(preamble, connection, turn)
        except CONNECTION_ERRORS as error:
            return cause_of(error, step, spoke=step is not Step.BANNER)
        if not turn.reply.positive:
            return self._refused(Step.HELLO, turn)
        if (cause := await self._start_tls(connection, preamble)) is not None:
            return cause
        if connection.unread():
            return cause_of(RemoteProtocolError("it spoke without being asked"), Step.HELLO)
        self._learn_pace(connection)
        return SmtpSession(self, connection, address, preamble)

    async def _start_tls(
        self, connection: SmtpConnection, preamble: list[tuple[float, bool, str]]
    ) -> Cause | None:
        """Change to TLS where the host is known to demand it; why that came to nothing, or None."""
        if not (self.terms.tls and connection.conversation.offer.starttls):
            return None
        try:
            refusal = await start_tls(connection, self.helo_name, preamble)
        except CONNECTION_ERRORS as error:
            self.terms.tls_failed()
            return cause_of(error, Step.STARTTLS)
        if refusal is None:
            return None
        self.terms.tls_failed()
        return self._refused(Step.STARTTLS, refusal)

    def _refused(self, step: Step, turn: wire.CommandReply) -> Cause:
        reading = self.read(step, turn.reply)
        words = f"{step.value} refused: {turn.reply.code} {turn.reply.text[:80]}"
        return Cause(
            Outcome.CONVERSATION_FAILED,
            reading.rule,
            words,
            about_us=reading.about_us,
            replied=True,
            temporary=step is Step.BANNER and turn.reply.code < 500,
        )

    def _learn_pace(self, connection: SmtpConnection) -> None:
        self._pipelines = connection.conversation.offer.pipelining
        if self._pace.batch_s is None:
            turnaround_s = connection.received_at - connection.sent_at
            self._pace.measured(turnaround_s, -1)
            self._pace.gap_s = turnaround_s
            self._pace.reply_s = turnaround_s
            self._replied(turnaround_s)

    @staticmethod
    def _write_down(
        preamble: list[tuple[float, bool, str]], connection: SmtpConnection, turn: wire.CommandReply
    ) -> None:
        preamble += connection.lines_of(turn)

    async def _close_session(self, connection: SmtpConnection, address: str) -> None:
        """QUIT to who would not have us, while the questions are on their way elsewhere."""
        try:
            with self._dispatcher.holding_permit(address):
                await connection.quit()
        finally:
            with trio.CancelScope(shield=True):
                await connection.close()
            self._dispatcher.release_permit(address)

    def _record_attempt(self, address: str, cause: Cause) -> None:
        """Everyone who waits has had this address tried for it, in vain."""
        for probe in list(self.waiting):
            if self._session_ended(probe):
                continue
            probe.addresses_tried += 1
            probe.conversations += cause.replied
            probe.cause = cause
            if probe.notes is not None:
                probe.notes.tried.append(ConnectionAttempt(self.name, address, cause.words))
            if probe.exhausted and probe.pool is self:
                self.settle(probe, cause.outcome, cause.rule)

    # -- rest --------------------------------------------------------------------------------

    def _record_failure(self, cause: Cause, *, at_once: bool = False) -> None:
        self._proven_parallelism = 0
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
                if now - self._failed_at.get(address, NEVER) < AVOID_S
            ]
            self._dispatcher.record_backoff(self, failed or self.addresses[:1], cause)
            for session in self.sessions:
                session.withdraw()
            self._send_on(cause)

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
            map(self._dispatcher.permit_available, self.addresses)
        ):
            return False  # one more can be opened beside it
        if all(self._session_ended(each) or each.rerouted for each in self.waiting.heads()):
            return False
        prompt = self.connections - len(self._late)
        if self._slow_for_all:  # perhaps: one at a time
            now, patience_s = self._now(), max(REROUTE_S, 2 * LATE_REPLIES * self._pace.reply_s)
            since = min(self._late.get(session, now), self._rerouted_at)
            return prompt <= 0 and now - since >= patience_s
        if prompt <= 0:
            return True
        work_s = len(self.waiting) * (self._pace.batch_s or 0.0)
        return work_s > prompt * self._opening_s

    def is_needed_elsewhere(self, address: str) -> bool:
        return self._dispatcher.is_needed_elsewhere(address, self)

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

    def recipient_read(
        self, domain: DomainAcceptance, reply: SmtpReply, reading: ReplyMeaning
    ) -> None:
        """Learn from a recipient's reply how we stand with the host, and with the domain there.

        A domain may keep a blocklist of its own, and its owner may be anybody: see _rest_domain().
        """
        domain.unanswered_sessions = 0
        if domain.silence.sessions or self._silence.sessions:
            domain.silence = self._silence = NO_SILENCE
        self._accepted += reply.code < 300
        self._late_share -= LATE_SHARE_EWMA * self._late_share
        if not reading.about_us:
            domain.cold = 0
            domain.answered = self._succeeded = True
            if self._cold_domains or self._refused_domains:
                self._cold_domains.clear()
                self._refused_domains.clear()
            if self.backoff.failures:
                self.backoff = HostBackoff()
            if self.names_backoff_until != NEVER:
                self.names_backoff_until = NEVER
                self._dispatcher.record_success(self)
            return
        domain.cold += 1
        self._refused_domains[domain.name] = None
        spread = len(self._refused_domains) >= COLD_MAX * COLD_DOMAINS_MAX
        if domain.cold < COLD_MAX and not spread:
            return
        domain.cold = 0
        words = f"{reply.code} {reply.text[:80]}"
        cause = Cause(refusal_outcome(reply, reading), reading.rule, words, about_us=True)
        if spread:  # each domain was refused but once or twice: still it is the host
            self._cold_domains.update(self._refused_domains)
            self._refused_domains.clear()
        self._back_off_domain(domain, cause)

    def session_barren(self, cause: Cause, domain: DomainAcceptance) -> None:
        """No recipient was answered in a whole session, and it ended with one of this domain."""
        now = self._now()
        if self._succeeded:
            self._succeeded, self._succeeded_at = False, now
        if domain.answered:
            domain.answered, domain.answered_at = False, now
        if cause.outcome is not Outcome.TIMED_OUT:
            domain.unanswered_sessions += 1
            if domain.unanswered_sessions >= BARREN_MAX:
                domain.unanswered_sessions = 0
                self._back_off_domain(domain, cause)
            else:
                self._judge_refusals(domain, cause)
            return
        domain.silence = domain.silence.after_session(now)
        self._silence = self._silence.after_session(now)
        if domain.silence.lasting(now) and now - domain.answered_at >= RECENT_SUCCESS_S:
            self._back_off_domain(domain, cause)
        if self._silence.lasting(now) and now - self._succeeded_at >= RECENT_SUCCESS_S:
            self._judge_refusals(domain, cause)

    def _back_off_domain(self, domain: DomainAcceptance, cause: Cause) -> None:
        """Leave the domain alone here, and no other."""
        domain.backoff_cause = cause
        domain.backoff_until = self._now() + REFUSAL_BACKOFF_S
        self._judge_refusals(domain, cause)

    def _judge_refusals(self, domain: DomainAcceptance, cause: Cause) -> None:
        """Leave the host as a whole alone where it treats several domains so, and none better.

        Whoever owns a domain or two decides what the host says of their recipients. So the
        recipients of a further one are asked before the host is rested.
        """
        now = self._now()
        self._cold_domains.add(domain.name)
        if self._succeeded:
            self._succeeded, self._succeeded_at = False, now
        lately = now - self._succeeded_at < RECENT_SUCCESS_S
        if len(self._cold_domains) >= (RECENT_SUCCESS_DOMAINS_MAX if lately else COLD_DOMAINS_MAX):
            self._cold_domains.clear()
            self._record_failure(replace(cause, about_us=True), at_once=True)

    def batch_done(self, round_s: float, gap_s: float, first_s: float) -> None:
        if gap_s >= 0 and not self._accepted_several:
            self._pace.gap_s = gap_s  # so far it was a guess
        self._pace.measured(round_s, gap_s)
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
        self._pace.measured(round_s, -1)
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
        self.usual_s = self._pace.replied(reply_s)

    def _replied(self, reply_s: float) -> None:
        pace = self._pace
        usual_s = pace.reply_s
        if reply_s >= EARLY * usual_s:  # else see learn_quick()
            usual_s = pace.replied(reply_s)
        self.usual_s = usual_s
        if usual_s < QUICK_REPLY_S and self._late_reply_s is None:
            self.late_s = LATE_S
        else:
            self.late_s = self._late_after_s()
        if self._depth < REFUSALS_MAX and not self.wary:
            self._prompt += 1
            if self._prompt >= PROMPT_BATCHES:
                self._depth, self._prompt = self._depth + 1, 0
                self.slow_to_answer = self._depth < REFUSALS_MAX

    def _late_after_s(self) -> float:
        """How long a reply may take before it is late."""
        pace, usual_s = self._pace, self._pace.reply_s
        if self._late_reply_s is None or self._slow_for_all:
            return max(LATE_S, min(LATE_REPLIES * usual_s, usual_s + LATE_S))
        return max(TARPIT_LATE_S, TARPIT_REPLIES * usual_s, usual_s + JITTERS * pace.jitter_s)

    @property
    def _slow_for_all(self) -> bool:
        """Has the host accepted nobody in time? Then it may be no tarpit, but slow."""
        return self._accepted <= self._accepted_late

    @property
    def reroute_s(self) -> float:
        """A late reply is not waited for longer, where others want its connection.

        One that soon comes costs less than a new connection does.
        """
        late_reply_s = self._late_reply_s or 0.0
        give_way_s = max(self.late_s, TARPIT_OVER * self._accepting_s)
        if self._slow_for_all or self._late_reply_s is None:
            return max(give_way_s, TARPIT_OVER * self.late_s)
        soon = late_reply_s - self.late_s <= self._opening_s
        return max(give_way_s, TARPIT_OVER * late_reply_s) if soon else give_way_s

    def session_rerouted(self) -> None:
        """A late reply was not waited for: it takes longer than that."""
        self._rerouted_at = self._now()
        at_least_s = self.reroute_s + self._opening_s
        self._learn_lateness(max(at_least_s, self._late_reply_s or 0.0))

    def _learn_lateness(self, late_reply_s: float) -> None:
        self._late_reply_s = late_reply_s
        self.late_s = self._late_after_s()

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
        self._accepted += accepted
        self._late_share *= (1 - LATE_SHARE_EWMA) ** accepted
        self._late[session] = self._now() - self.late_s
        self._late_share += LATE_SHARE_EWMA * (1 - self._late_share)
        self._depth, self._prompt = self._tarpit_depth(), 0
        self.slow_to_answer = True
        self.staff()
        if self._late_reply_s is None:
            self._learn_lateness(self.late_s)
        self._dispatcher.capacity_freed(self)

    def _tarpit_depth(self) -> int:
        """How many recipients may share a round where any of them may be answered late?

        A late reply hides all of its round. Where few are late and the way is far that
        costs less than a round trip for each recipient.
        """
        gap_s = self._pace.gap_s if self._accepted_several else 0.0
        far = int((self._pace.reply_s - gap_s) / TARPIT_DEPTH_S)
        few = int(LATE_A_ROUND / self._late_share)
        return max(1, min(far, few, REFUSALS_MAX // 2))

    def session_prompt(self, session: SmtpSession, *, accepted: bool) -> None:
        """The late reply has come: is it a tarpit, or does the host accept late as well?"""
        since = self._late.pop(session, None)
        if since is not None:
            late_reply_s = self._now() - since
            if accepted:
                self._accepted_late += 1
                self._accepting_s = max(self._accepting_s, late_reply_s)
            self._learn_lateness(late_reply_s)
        self._dispatcher.capacity_freed(self)

    def session_failed(
        self, cause: Cause, *, before_recipients: bool, late: bool, at_recipient: bool
    ) -> None:
        """`late`: while others were answered in time, so a connection less would not help.

        What was said to a recipient speaks of its domain: see session_barren().
        """
        if not (late and cause.outcome is Outcome.TIMED_OUT):
            self._reduce_limit(self.throttle.after_failure())
        if before_recipients or (cause.about_us and not at_recipient):
            self._record_failure(cause)
