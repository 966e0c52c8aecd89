"""Permits: limit how many connections this process may have open to each IP address.

Every connection needs a permit of the address before it is dialled. The budget says how
many permits there are (see `connection_budget`); hosts that find none queue for the next
one and get it in turn. Permits may come and go while connections are open: when there
are fewer, idle connections close first and busy ones after their batch; when they are
revoked, connections are cancelled at once.
"""

from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

import trio
from msgspec import Struct, field

from ...settings import EngineSettings
from .. import patience
from ..connection_budget import ConnectionBudget
from ..probe import Probe
from ..turn import Turn
from .host import Host

WAITS_REMEMBERED = 16  # of a host: more are hardly over within one overall deadline


class Permits:
    """The permits of all addresses, and the hosts that wait for one."""

    __slots__ = (
        "_budget",
        "_ceded",
        "_closing",
        "_demand",
        "_hosts_at",
        "_in_use",
        "_limit",
        "_over",
        "_revoked",
        "_scopes",
        "_turn",
        "waits",
    )

    def __init__(
        self,
        limit: int,
        budget: ConnectionBudget,
        hosts_at: Mapping[str, set[Host]],
        turn: Turn[Host],
        overall_s: float,
    ) -> None:
        """`limit`: permits of one address that all processes share (a setting)."""
        self._limit = limit
        self._budget = budget
        self._hosts_at = hosts_at
        self._turn = turn
        self.waits = PermitWaits(self.batches_beside, turn, overall_s)
        self._closing = False
        self._in_use: Counter[str] = Counter()  # connections, by IP address
        self._over: set[str] = set()  # addresses with more connections than permits
        self._ceded: Counter[str] = Counter()  # connections there that are about to close
        self._revoked: set[str] = set()  # addresses at which permits of open connections ended
        self._scopes: defaultdict[str, dict[trio.CancelScope, None]] = defaultdict(dict)
        self._demand: defaultdict[str, dict[Host, None]] = defaultdict(dict)  # in turn
        budget.open_for(self)

    @property
    def in_use(self) -> int:
        """How many permits are in use."""
        return self._in_use.total()

    @property
    def demand(self) -> int:
        """Hosts that wait for a permit, counted once for each address."""
        return sum(map(len, self._demand.values()))

    def close(self) -> None:
        """Give no released permit to a waiting host any more."""
        self._closing = True

    def available(self, address: str) -> bool:
        return self._in_use[address] < self._budget.at(address)

    def try_acquire(self, address: str, host: Host) -> bool:
        """Take a permit if one is free; otherwise queue the host for the next one."""
        if not self.available(address):
            self.set_demand(address, host)
            return False
        self._acquire(address)
        if demand := self._demand.get(address):
            demand.pop(host, None)
        self.waits.end(host)
        return True

    def _acquire(self, address: str) -> None:
        self._in_use[address] += 1
        self._budget.used(address, self._in_use[address])

    def _withdraw(self, address: str) -> None:
        self._in_use[address] -= 1
        self._budget.used(address, self._in_use[address])
        if self._in_use[address] <= self._budget.at(address):
            self._over.discard(address)
        if not self._in_use[address]:
            del self._in_use[address]
            self._revoked.discard(address)
            self._ceded.pop(address, None)

    def set_demand(self, address: str, host: Host) -> None:
        """Queue the host for a permit here; other hosts' idle connections are closed for it."""
        self._demand[address][host] = None
        self._budget.request(address)
        short = self._in_use[address] >= self._limit or self._budget.short(address)
        if not host.staffing.connections.now:
            self.waits.begin(host, short=short)
        if not short:
            return  # the budget will grant it
        for other in self._hosts_at[address] - {host}:
            other.staffing.sessions.close_idle()

    def is_needed_elsewhere(self, address: str, host: Host) -> bool:
        """Does another host, or another process, wait for a permit of this address?"""
        if address in self._over and self._cedes(address):
            return True
        demand = self._demand.get(address)
        return demand is not None and any(other is not host for other in demand)

    def release(self, address: str) -> None:
        """Pass the permit to the host that has waited longest, unless the budget has shrunk."""
        if self._ceded[address]:
            self._ceded[address] -= 1
        if self._in_use[address] <= self._budget.at(address):
            demand = self._demand.get(address, {})
            while demand:
                host = next(iter(demand))
                del demand[host]
                if not self._closing and self._adopted(host, address):
                    return
            self._demand.pop(address, None)
        self._withdraw(address)

    def _adopted(self, host: Host, address: str) -> bool:
        """Pass a permit in use to this host; False if the host does not need it."""
        adopted = host.adopt(address)
        if adopted or not host.waiting.any():
            self.waits.end(host)
        return adopted

    def is_wanted(self, address: str) -> bool:
        """Does a host that has no connection wait for a permit of this address?"""
        return any(
            not host.staffing.connections.now and host.waiting.any()
            for host in self._demand.get(address, ())
        )

    def were_lacking(self, probe: Probe, settings: EngineSettings) -> bool:
        """At the probe's deadline: had its host less than a read's time, for want of a permit?"""
        host: Host | None = probe.target.host
        if host is None or (host.staffing.connections.left and host.times.pipelines is None):
            return False  # it has never greeted us: the connections that we left hold the permits
        overall_s = patience.overall_s(settings, probe.patient)
        waited_s = self.waits.lacked_s(host, probe.clock.deadline - overall_s)
        return waited_s > overall_s - host.clocks.read_s

    def batches_beside(self, host: Host) -> int | None:
        """Batches that were answered to other hosts at its addresses; None if these have no connections."""
        others = {
            other
            for address in host.identity.addresses
            for other in self._hosts_at.get(address, ())
        } - {host}
        if not any(other.staffing.connections.now for other in others):
            return None
        return sum(other.times.pace.batches for other in others)

    @contextmanager
    def holding(self, address: str) -> Iterator[None]:
        """A block that is cancelled if the permits of the address are revoked."""
        with trio.CancelScope() as scope:
            scopes = self._scopes[address]
            scopes[scope] = None
            if address in self._revoked:
                scope.cancel()
            try:
                yield
            finally:
                del scopes[scope]
                if not scopes:
                    self._scopes.pop(address, None)

    def permits_changed(self, address: str) -> None:
        """The budget of an address grew or shrank.

        New permits go to waiting hosts. With fewer, idle connections close first.
        """
        if self._closing:
            return
        granted = self._budget.at(address)
        if granted:
            self._revoked.discard(address)
        for host in list(self._hosts_at.get(address, ())):
            self._allow(host)
        over = self._in_use[address] - granted
        if over > 0:
            self._over.add(address)
            over -= self._ceded[address]
            for host in self._hosts_at.get(address, ()):
                while over > 0 and host.staffing.sessions.close_one(address):
                    self._ceded[address] += 1
                    over -= 1
        else:
            self._over.discard(address)
            self._hand_out(address)
        if self._budget.short(address):
            for host in list(self._demand.get(address, ())):
                self.waits.prolong(host)
        self._turn.run()

    def permits_revoked(self, address: str) -> None:
        """Close every connection to the address at once; their probes wait for another."""
        if not self._in_use[address]:
            return
        self._revoked.add(address)
        for host in self._hosts_at.get(address, ()):
            host.staffing.sessions.revoke_permits(address)
        for scope in list(self._scopes.get(address, ())):
            scope.cancel()

    def _allow(self, host: Host) -> None:
        """Limit what the host admits to the permits that it can have."""
        allowed = self._limit
        if any(map(self._budget.short, host.identity.addresses)):
            allowed = min(allowed, max(1, sum(map(self._budget.at, host.identity.addresses))))
        if host.staffing.connections.allow(allowed):
            self._turn.mark_freed(host)

    def _cedes(self, address: str) -> bool:
        """Must this connection close to keep the budget?"""
        if self._in_use[address] - self._ceded[address] <= self._budget.at(address):
            return False
        self._ceded[address] += 1
        return True

    def _hand_out(self, address: str) -> None:
        """Give new permits to the waiting hosts, in turn."""
        for host in list(self._demand.get(address, ())):
            if not host.waiting.any():
                self._demand[address].pop(host, None)
                self.waits.end(host)
                continue
            if not self.available(address):
                self.set_demand(address, host)
                return
            self._demand[address].pop(host, None)
            if not host.staffing.connections.now:
                self._acquire(address)
                if self._adopted(host, address):
                    continue
                self._withdraw(address)
            host.staff(hurried=host.staffing.openings.slow_greeting)


class _PermitWait(Struct, eq=False):
    """A host that has no connection waits for a permit."""

    since: float
    short: bool  # others have the permits: the wait may be long
    batches_beside: int | None  # see `Permits.batches_beside`; at its beginning
    stopped: list[Probe] = field(default_factory=list)  # probes whose clocks were stopped


class PermitWaits(Struct, eq=False):
    """The waits of hosts that have no connection until a permit is free.

    The clocks of a list's probes are stopped meanwhile, and begin anew with the permit. They keep
    their places as long as the budget is about to grant it: a list may meet a thousand new hosts
    at once, whose connections would all be opened together. Other clocks run on; for them it
    matters how long the host could not be asked, and why. If our other connections to it had no
    answer all the while, the host was silent, and we did not lack permits.
    """

    _batches_beside: Callable[[Host], int | None]
    _turn: Turn[Host]
    _remembered_s: float  # of a wait that has ended
    _now: Callable[[], float] = field(
        default_factory=lambda: trio.lowlevel.current_clock().current_time
    )
    present: dict[Host, _PermitWait] = field(default_factory=dict)
    # From and until; the hosts in the order in which their latest waits ended.
    _past: OrderedDict[Host, deque[tuple[float, float]]] = field(default_factory=OrderedDict)

    def begin(self, host: Host, *, short: bool) -> None:
        """The host waits from now on, if it does not yet; `short`: because others have the permits."""
        if host not in self.present:
            self.present[host] = _PermitWait(self._now(), short, self._batches_beside(host))
            self.joined(host, list(host.waiting))
        elif short:
            self.prolong(host)

    def prolong(self, host: Host) -> None:
        """Others have the permits that the host waits for: its probes leave their places."""
        wait = self.present.get(host)
        if wait is not None and not wait.short:
            wait.short = True
            self._turn.leave_places([probe for probe in wait.stopped if self._stands(probe, host)])

    @staticmethod
    def _stands(probe: Probe, host: Host) -> bool:
        """Does this probe, whose clock was stopped, still wait here?"""
        return (
            probe.result.outcome is None
            and probe.target.host is host
            and probe.clock.stopped_at is not None
        )

    def joined(self, host: Host, probes: Iterable[Probe]) -> None:
        """These probes are queued at a host that waits: stop the clocks of a list's."""
        wait = self.present[host]
        waiting = [
            probe
            for probe in probes
            if probe.deferred_start
            and probe.clock.stopped_at is None
            and probe.result.outcome is None
            and probe.target.host is host
        ]
        if waiting:
            wait.stopped += waiting
            self._turn.stop_clocks(waiting)
            if wait.short:
                self._turn.leave_places(waiting)

    def end(self, host: Host) -> None:
        """The wait is over: the host has a permit, or does not need one any more."""
        wait = self.present.pop(host, None)
        if wait is None:
            return
        now = self._now()
        if not self._is_silent(host, wait):
            self._past.setdefault(host, deque(maxlen=WAITS_REMEMBERED)).append((wait.since, now))
            self._past.move_to_end(host)
        while self._past and next(iter(self._past.values()))[-1][1] < now - self._remembered_s:
            self._past.popitem(last=False)
        self._turn.count_places([probe for probe in wait.stopped if self._stands(probe, host)])

    def lacked_s(self, host: Host, since: float) -> float:
        """How long since then the host has waited through no fault of its own."""
        waits = list(self._past.get(host, ()))
        present = self.present.get(host)
        if present is not None and not self._is_silent(host, present):
            waits.append((present.since, self._now()))
        return sum(max(0.0, until - max(begun, since)) for begun, until in waits)

    def _is_silent(self, host: Host, wait: _PermitWait) -> bool:
        """Have our other connections to its addresses had no answer during the wait?"""
        before = wait.batches_beside
        return before is not None and before == self._batches_beside(host)
