"""Permits: limit how many connections this process may have open to each IP address.

Every connection needs a permit of the address before it is dialled. The budget says how
many permits there are (see `connection_budget`); pools that find none queue for the next
one and get it in turn. Permits may come and go while connections are open: when there
are fewer, idle connections close first and busy ones after their batch; when they are
revoked, connections are cancelled at once.
"""

from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import trio

from ...settings import EngineSettings
from .. import patience
from ..connection_budget import ConnectionBudget
from ..probe import Probe
from ..turn import Turn
from .pool import Pool

WAITS_REMEMBERED = 16  # of a pool: more are hardly over within one overall deadline


class Permits:
    """The permits of all addresses, and the pools that wait for one."""

    __slots__ = (
        "_budget",
        "_ceded",
        "_closing",
        "_demand",
        "_in_use",
        "_limit",
        "_over",
        "_pools_at",
        "_revoked",
        "_scopes",
        "_turn",
        "waits",
    )

    def __init__(
        self,
        limit: int,
        budget: ConnectionBudget,
        pools_at: Mapping[str, set[Pool]],
        turn: Turn[Pool],
        overall_s: float,
    ) -> None:
        """`limit`: permits of one address that all processes share (a setting)."""
        self._limit = limit
        self._budget = budget
        self._pools_at = pools_at
        self._turn = turn
        self.waits = PermitWaits(self.batches_beside, turn, overall_s)
        self._closing = False
        self._in_use: Counter[str] = Counter()  # connections, by IP address
        self._over: set[str] = set()  # addresses with more connections than permits
        self._ceded: Counter[str] = Counter()  # connections there that are about to close
        self._revoked: set[str] = set()  # addresses at which permits of open connections ended
        self._scopes: defaultdict[str, dict[trio.CancelScope, None]] = defaultdict(dict)
        self._demand: defaultdict[str, dict[Pool, None]] = defaultdict(dict)  # in turn
        budget.open_for(self)

    @property
    def in_use(self) -> int:
        """Permits in use."""
        return self._in_use.total()

    @property
    def demand(self) -> int:
        """Pools that wait for a permit, counted once for each address."""
        return sum(map(len, self._demand.values()))

    def close(self) -> None:
        """Give no released permit to a waiting pool any more."""
        self._closing = True

    def available(self, address: str) -> bool:
        return self._in_use[address] < self._budget.at(address)

    def try_acquire(self, address: str, pool: Pool) -> bool:
        """Take a permit if one is free; otherwise queue the pool for the next one."""
        if not self.available(address):
            self.set_demand(address, pool)
            return False
        self._acquire(address)
        if demand := self._demand.get(address):
            demand.pop(pool, None)
        self.waits.end(pool)
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

    def set_demand(self, address: str, pool: Pool) -> None:
        """Queue the pool for a permit here; other pools' idle connections are closed for it."""
        self._demand[address][pool] = None
        self._budget.request(address)
        short = self._in_use[address] >= self._limit or self._budget.short(address)
        if not pool.staffing.connections.now:
            self.waits.begin(pool, short=short)
        if not short:
            return  # the budget will grant it
        for other in self._pools_at[address] - {pool}:
            other.staffing.sessions.close_idle()

    def is_needed_elsewhere(self, address: str, pool: Pool) -> bool:
        """Does another pool, or another process, wait for a permit of this address?"""
        if address in self._over and self._cedes(address):
            return True
        demand = self._demand.get(address)
        return demand is not None and any(other is not pool for other in demand)

    def release(self, address: str) -> None:
        """Pass the permit to the pool that has waited longest, unless the budget has shrunk."""
        if self._ceded[address]:
            self._ceded[address] -= 1
        if self._in_use[address] <= self._budget.at(address):
            demand = self._demand.get(address, {})
            while demand:
                pool = next(iter(demand))
                del demand[pool]
                if not self._closing and self._adopted(pool, address):
                    return
            self._demand.pop(address, None)
        self._withdraw(address)

    def _adopted(self, pool: Pool, address: str) -> bool:
        """Pass a permit in use to this pool; False if the pool does not need it."""
        adopted = pool.adopt(address)
        if adopted or not pool.waiting.any():
            self.waits.end(pool)
        return adopted

    def is_wanted(self, address: str) -> bool:
        """Does a host that has no connection wait for a permit of this address?"""
        return any(
            not pool.staffing.connections.now and pool.waiting.any()
            for pool in self._demand.get(address, ())
        )

    def were_lacking(self, probe: Probe, settings: EngineSettings) -> bool:
        """At the probe's deadline: had its host less than a read's time, for want of a permit?"""
        pool: Pool | None = probe.pool
        if pool is None or (pool.staffing.connections.left and pool.pipelines is None):
            return False  # it has never greeted us: the connections that we left hold the permits
        overall_s = patience.overall_s(settings, probe.patient)
        waited_s = self.waits.lacked_s(pool, probe.deadline - overall_s)
        return waited_s > overall_s - pool.read_s

    def batches_beside(self, pool: Pool) -> int | None:
        """Batches that were answered to other pools at its addresses; None if these have no connections."""
        others = {
            other for address in pool.addresses for other in self._pools_at.get(address, ())
        } - {pool}
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

        New permits go to waiting pools. With fewer, idle connections close first.
        """
        if self._closing:
            return
        granted = self._budget.at(address)
        if granted:
            self._revoked.discard(address)
        for pool in list(self._pools_at.get(address, ())):
            self._allow(pool)
        over = self._in_use[address] - granted
        if over > 0:
            self._over.add(address)
            over -= self._ceded[address]
            for pool in self._pools_at.get(address, ()):
                while over > 0 and pool.staffing.sessions.close_one(address):
                    self._ceded[address] += 1
                    over -= 1
        else:
            self._over.discard(address)
            self._hand_out(address)
        if self._budget.short(address):
            for pool in list(self._demand.get(address, ())):
                self.waits.prolong(pool)
        self._turn.run()

    def permits_revoked(self, address: str) -> None:
        """Close every connection to the address at once; their probes wait for another."""
        if not self._in_use[address]:
            return
        self._revoked.add(address)
        for pool in self._pools_at.get(address, ()):
            pool.staffing.sessions.revoke_permits(address)
        for scope in list(self._scopes.get(address, ())):
            scope.cancel()

    def _allow(self, pool: Pool) -> None:
        """Limit what the pool admits to the permits that it can have."""
        allowed = self._limit
        if any(map(self._budget.short, pool.addresses)):
            allowed = min(allowed, max(1, sum(map(self._budget.at, pool.addresses))))
        if pool.staffing.connections.allow(allowed):
            self._turn.mark_freed(pool)

    def _cedes(self, address: str) -> bool:
        """Must this connection close to keep the budget?"""
        if self._in_use[address] - self._ceded[address] <= self._budget.at(address):
            return False
        self._ceded[address] += 1
        return True

    def _hand_out(self, address: str) -> None:
        """Give new permits to the waiting pools, in turn."""
        for pool in list(self._demand.get(address, ())):
            if not pool.waiting.any():
                self._demand[address].pop(pool, None)
                self.waits.end(pool)
                continue
            if not self.available(address):
                self.set_demand(address, pool)
                return
            self._demand[address].pop(pool, None)
            if not pool.staffing.connections.now:
                self._acquire(address)
                if self._adopted(pool, address):
                    continue
                self._withdraw(address)
            pool.staff(hurried=pool.staffing.openings.slow_greeting)


@dataclass(slots=True, eq=False)
class _PermitWait:
    """A pool that has no connection waits for a permit."""

    since: float
    short: bool  # others have the permits: the wait may be long
    batches_beside: int | None  # see `Permits.batches_beside`; at its beginning
    stopped: list[Probe] = field(default_factory=list)  # probes whose clocks were stopped


@dataclass(slots=True, eq=False)
class PermitWaits:
    """The waits of pools that have no connection until a permit is free.

    The clocks of a list's probes are stopped meanwhile, and begin anew with the permit. They keep
    their places as long as the budget is about to grant it: a list may meet a thousand new hosts
    at once, whose connections would all be opened together. Other clocks run on; for them it matters how long the host could not be asked, and why. If our
    other connections to it had no answer all the while, the host kept the permits, not we.
    """

    _batches_beside: Callable[[Pool], int | None]
    _turn: Turn[Pool]
    _remembered_s: float  # of a wait that has ended
    _now: Callable[[], float] = field(
        default_factory=lambda: trio.lowlevel.current_clock().current_time
    )
    present: dict[Pool, _PermitWait] = field(default_factory=dict)
    # From and until; the pools in the order in which their latest waits ended.
    _past: OrderedDict[Pool, deque[tuple[float, float]]] = field(default_factory=OrderedDict)

    def begin(self, pool: Pool, *, short: bool) -> None:
        """The pool waits from now on, if it does not yet; `short`: because others have the permits."""
        if pool not in self.present:
            self.present[pool] = _PermitWait(self._now(), short, self._batches_beside(pool))
            self.joined(pool, list(pool.waiting))
        elif short:
            self.prolong(pool)

    def prolong(self, pool: Pool) -> None:
        """Others have the permits that the pool waits for: its probes leave their places."""
        wait = self.present.get(pool)
        if wait is not None and not wait.short:
            wait.short = True
            self._turn.leave_places([probe for probe in wait.stopped if self._stands(probe, pool)])

    @staticmethod
    def _stands(probe: Probe, pool: Pool) -> bool:
        """Does the probe, whose clock was stopped, still wait here?"""
        return probe.outcome is None and probe.pool is pool and probe.stopped_at is not None

    def joined(self, pool: Pool, probes: Iterable[Probe]) -> None:
        """These probes are queued at the pool: stop those clocks that stand still while it waits."""
        wait = self.present.get(pool)
        if wait is None:
            return
        waiting = [
            probe
            for probe in probes
            if probe.deferred_start
            and probe.stopped_at is None
            and probe.outcome is None
            and probe.pool is pool
        ]
        if waiting:
            wait.stopped += waiting
            self._turn.stop_clocks(waiting)
            if wait.short:
                self._turn.leave_places(waiting)

    def end(self, pool: Pool) -> None:
        """The pool has a permit, or does not need one any more."""
        wait = self.present.pop(pool, None)
        if wait is None:
            return
        now = self._now()
        if not self._is_silent(pool, wait):
            self._past.setdefault(pool, deque(maxlen=WAITS_REMEMBERED)).append((wait.since, now))
            self._past.move_to_end(pool)
        while self._past and next(iter(self._past.values()))[-1][1] < now - self._remembered_s:
            self._past.popitem(last=False)
        self._turn.count_places([probe for probe in wait.stopped if self._stands(probe, pool)])

    def lacked_s(self, pool: Pool, since: float) -> float:
        """How long since then the pool has waited through no fault of the host."""
        waits = list(self._past.get(pool, ()))
        present = self.present.get(pool)
        if present is not None and not self._is_silent(pool, present):
            waits.append((present.since, self._now()))
        return sum(max(0.0, until - max(begun, since)) for begun, until in waits)

    def _is_silent(self, pool: Pool, wait: _PermitWait) -> bool:
        """Have our other connections to its addresses had no answer during the wait?"""
        before = wait.batches_beside
        return before is not None and before == self._batches_beside(pool)
