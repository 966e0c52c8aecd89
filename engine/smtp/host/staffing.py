"""The connections of one mail host: whether one more is opened, and how many more probes they have room for.

Nothing is opened here: the host acts on the plan. The next plan sees what came of it.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol

from msgspec import Struct, field

from ..host_policy import Terms
from ..session.recipient_limits import REFUSALS_MAX
from ..tolerance.limits import Growth, Kind
from ..turn import Turn
from ..wire import Conversation
from .connections import HostConnections, HostSessions
from .openings import Openings
from .queue import HostQueue
from .reply_times import FAR_S, LATE_REPLIES, VENTURED, ReplyTimes
from .resting import HostParts

BACKLOG_S = 0.5  # work for longer than this is worth one more connection
REROUTE_S = 0.4  # a host without one timely acceptance may just be slow
LATE_BACKLOG_S = 0.1  # at a host that has late replies: work for longer is worth a connection
BESIDE_S = 0.04  # a host that greets sooner is so near that one connection more gains nothing

ANSWERED_AT_ONCE = 64  # probes admitted at a time while the host is backed off
QUICK_BATCH_S = 0.2  # a host that answers so soon may have a few probes queued in lock-step
QUEUED_IN_STEP = 2  # for each connection: their deadlines run, so no more
IN_STEP_LEAST = 2  # for each connection: one under way and the next

Plan = Literal["wake", "connect", "await a permit"]


class StaffedHost(HostParts, Protocol):
    """The host whose connections these are; implemented by host.Host."""

    terms: Terms
    times: ReplyTimes

    @property
    def waiting(self) -> HostQueue: ...
    @property
    def staffing(self) -> "Staffing": ...
    @property
    def width(self) -> int: ...
    def open_all(self) -> None: ...


class Staffing(Struct, eq=False):
    """The sessions and connections of one host, and how many more are worth opening."""

    _host: StaffedHost
    connections: HostConnections
    _of_host: int  # connections that it and its counterpart may have
    _has_permit: Callable[[str], bool]  # is one free at this address?
    counterpart: StaffedHost | None = None  # where one is ordinary and one patient
    sessions: HostSessions = field(default_factory=HostSessions)
    openings: Openings = field(default_factory=Openings)

    def pair_with(self, host: StaffedHost) -> None:
        """One of the two is patient: they share the limit of connections."""
        self.counterpart = host

    # -- how many may be open ----------------------------------------------------------------------

    @property
    def limit(self) -> int:
        """How many connections may be open at the moment, with those that we left."""
        limit = self.connections.limit(len(self._host.times.late.sessions), self._host.now())
        if self.counterpart is None:
            return limit
        return min(limit, self._of_host - self.counterpart.staffing.connections.counted)

    @property
    def prompt(self) -> int:
        """The sessions that are not late."""
        return len(self.sessions.open) - len(self._host.times.late.sessions)

    @property
    def is_silent(self) -> bool:
        """Dialled, and without a greeting for HEDGE_S."""
        return self.openings.hedged and not self.sessions.open

    def good_addresses(self) -> Sequence[str]:
        """Those that may be dialled and have not just failed, else those that have, else all."""
        rest, every = self._host.rest, self._host.identity.addresses
        usable = [each for each in every if rest.cause_at(each) is None]
        return self.openings.good_of(usable or every, self._host.now())

    def may_adopt(self) -> bool:
        """Is one more connection of use, for which there is a permit?"""
        full = self.connections.counted >= self.limit
        return self.prompt <= 0 and not full and self._host.waiting.any()

    # -- one more ----------------------------------------------------------------------------------

    def plan(self, *, is_hurried: bool) -> Plan | None:
        """What is done for the probes that wait, if anything."""
        host, sessions = self._host, self.sessions
        if not sessions.idle:
            connections, late = self.connections, len(host.times.late.sessions)
            if connections.now >= connections.throttle.limit and not late:
                return None
            # Cheap, since this runs for almost every reply: are they soon done, even one by one?
            round_s = (host.times.pace.batch_s or 0.0) + self._opening_each_s()
            prompt = len(sessions.open) - late
            soon_s = self._backlog_s * prompt
            if prompt > 0 and (host.waiting.count + host.waiting.behind) * round_s <= soon_s:
                return None
        waiting = host.waiting
        if not waiting.any() or len(sessions.woken) * host.width >= waiting.count:
            return None
        if host.rest.backoff.failures and host.rest.backoff.active(host.now()):
            return None
        if sessions.idle:
            return "wake"
        return self._plan_opening(is_hurried=is_hurried) if waiting.turn_away_spent() else None

    def _plan_opening(self, *, is_hurried: bool) -> Plan | None:
        host, connections = self._host, self.connections
        now = connections.now
        if connections.counted >= self.limit:
            # Those that we left, or those of the counterpart, are in the way.
            return None if now else "await a permit"
        if now and not host.waiting.may_send():
            return None  # each recipient under way may be one of the last that it refuses
        if len(self.sessions.open) < now:  # one is opening or closing
            # For a distant host only the limit counts; it grows with each greeting. Likewise where
            # a connection is good for few recipients: one of them is always opening or closing.
            takes_few = host.terms.limits.per_connection <= REFUSALS_MAX
            freely = host.times.pace.reply_s >= FAR_S or takes_few
            untried = now >= connections.proven
            if self.openings.has_enough or (untried and not (freely or is_hurried)):
                return None  # wait for the host's reaction first
        another_address = (
            is_hurried and now < len(host.identity.addresses) and not self.sessions.open
        )
        if now and not (another_address or self._is_worth_one_more()):
            return None
        return "connect" if any(map(self._has_permit, self.good_addresses())) else "await a permit"

    def _is_worth_one_more(self) -> bool:
        """Is there more in the queue than the present connections soon complete?"""
        host, times, prompt, width = self._host, self._host.times, self.prompt, self._host.width
        if prompt <= 0:
            return len(host.waiting) > width * (self.connections.now - len(self.sessions.open))
        if times.pace.reply_s >= FAR_S and not (times.accepted_several or times.late.sessions):
            width = 1  # opening takes long, and any of the first batch may be late
        backlog = len(host.waiting) + host.waiting.behind
        work_s = backlog / width * (times.pace.batch_s or 0.0) + backlog * self._opening_each_s()
        return work_s > self._backlog_s * prompt

    @property
    def _backlog_s(self) -> float:
        """Work for longer than this is worth one more connection."""
        return LATE_BACKLOG_S if self._host.times.is_careful else BACKLOG_S

    def _opening_each_s(self) -> float:
        """The share of each address in the opening of its connection.

        It matters where a connection is good for few recipients: the host tolerates few refusals, or
        most of the domains are still to be tested. A slow host gets no more connections for it.
        """
        if self._host.times.slow or self._host.clocks.patient:
            return 0.0
        greeted_s, opening_s = self.openings.greeted_s, self.openings.opening_s
        return (
            greeted_s if greeted_s < BESIDE_S else opening_s
        ) / self.connections.session_recipients

    # -- what its sessions do ----------------------------------------------------------------------

    def wake_testers(self) -> None:
        """Addresses were answered that a test may have waited for."""
        self.sessions.wake_testers()
        if self.counterpart is not None:
            self.counterpart.staffing.sessions.wake_testers()

    def is_testing(self) -> bool:
        """Is a random address unanswered in any session?"""
        return any(each.is_testing() for each in self.sessions.open)

    def gives_way(self, conversation: Conversation) -> bool:
        """Do other probes need the place of this late session?

        Probes whose own reply was late before do not count.
        """
        host, late = self._host, self._host.times.late
        if late.sleeps_on or not host.waiting.any():
            return False
        if self.connections.counted < self.limit and any(
            map(self._has_permit, host.identity.addresses)
        ):
            return False  # one more can be opened beside it
        if all(
            host.waiting.is_gone(each) or each.attempts.rerouted for each in host.waiting.heads()
        ):
            return False
        prompt = self.connections.now - len(late.sessions)
        if late.slow_for_all:  # perhaps: give up one at a time
            patience_s = max(REROUTE_S, 2 * LATE_REPLIES * host.times.pace.reply_s)
            since = min(late.sessions.get(conversation, host.now()), late.rerouted_at)
            return prompt <= 0 and host.now() - since >= patience_s
        # For longer than opening a connection takes?
        work_s = len(host.waiting) * (host.times.pace.batch_s or 0.0)
        return prompt <= 0 or work_s > prompt * self.openings.opening_s


class LoadedHost(StaffedHost, Protocol):
    """The host whose load this is; implemented by host.Host."""

    turn: Turn[Any]

    def window(self) -> int: ...


class HostLoad(Struct, eq=False):
    """The probes of one host, for the lists that hold back more of them."""

    _host: LoadedHost
    present: int = 0  # probes waiting or under way here
    backlog: int = 0  # verdicts that are not proven yet

    def enter(self) -> None:
        """A probe has come to this host."""
        self.present += 1

    def leave(self) -> None:
        """A probe has left this host. Its entry in the queue may remain until its turn."""
        self.present -= 1

    def hold_back(self, count: int) -> None:
        """`count` more verdicts wait for their proof; fewer if it is negative."""
        self.backlog += count

    def room(
        self, held: int, account: str = "", patience_s: float = 0.0, *, at_end: bool = False
    ) -> int:
        """How many more probes would soon be sent, of the `held` that the scheduler holds back.

        They are of a list of this account, which has so much patience left.
        """
        room = self._of_connections(held, at_end=at_end)
        if room <= 0:
            return room
        budget, now = self._host.tolerance.budget, self._host.now()
        if budget.has_plenty(room, now):
            return room
        under_way = self.present - self.backlog
        if self._host.tolerance.is_spent(Kind.LIST, account, now):
            if self._host.tolerance.growth(Kind.LIST, account, now, patience_s) is Growth.NOT:
                return ANSWERED_AT_ONCE - under_way  # and turned away there
            return 1 - under_way  # for which the host is asked whether it still judges
        return min(room, max(budget.room(Kind.LIST, account, now), 1 - under_way, 0))

    def _of_connections(self, held: int, *, at_end: bool) -> int:
        """What the host's connections have room for.

        `at_end`: the list has nothing else to wait for, so it does not wait for a back-off to end.

        In lock-step, probes are admitted a few at a time, because admitting one costs hardly
        less. The first batch of a host with PIPELINING is small: if the host wants each
        recipient by itself, the probes behind it must not wait until their deadlines.
        """
        host, rest, times = self._host, self._host.rest, self._host.times
        if rest.backoff.failures:
            if not at_end and rest.worth_waiting_for(host.now()):
                return 0
            if rest.backoff.active(host.now()):
                return ANSWERED_AT_ONCE - self.present
        if times.pipelines is None:
            return 1 - self.present  # wait for its greeting
        # Late sessions do not count: nothing is queued behind them.
        connections, present = host.staffing.connections, self.present - self.backlog
        capacity = connections.throttle.limit
        if times.late.sessions or connections.left:
            late = len(times.late.sessions)
            capacity = min(host.staffing.limit, connections.allowed) - late - connections.left
            present -= late
        elif connections.allowed < capacity:
            capacity = connections.allowed
        if capacity <= 0:
            return 0
        careful = times.depth < REFUSALS_MAX
        if times.pipelines and host.terms.limits.width > 1:
            if not times.accepted_several and not careful:  # wait for its first batch
                return VENTURED - present
            return capacity * host.window() - present
        if careful:
            return capacity - present
        if (
            times.pace.batch_s or 0.0
        ) < QUICK_BATCH_S and 2 * host.turn.under_way <= host.turn.places:
            capacity *= 1 + QUEUED_IN_STEP
        few, several = IN_STEP_LEAST * len(host.staffing.sessions.open), capacity // 3
        room = capacity - present
        return room if present <= few or min(room, held) > several else 0
