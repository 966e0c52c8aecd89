"""Layer 4: from a question to what became of it.

The desk at which every question is asked and settled. It keeps the overall
clock of each, finds the pool of its exchange, sends it on to the next exchange
when one fails, and counts what is under way. Nothing is reported later than
the overall clock: whatever a connection is still waiting for, its question is
settled by then, and the late reply finds nobody.
"""

import random
from collections import Counter, OrderedDict, defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import trio

from mailprobe.engine.background import contained, log_fault, supervised
from mailprobe.engine.dns.messages import AddressAnswer, Addresses, MailExchange, NoAddress
from mailprobe.engine.dns.routes import Routes
from mailprobe.engine.evidence import ConnectionAttempt
from mailprobe.engine.fair_queue import FairQueue
from mailprobe.engine.net.dialer import Dial
from mailprobe.engine.net.public_addresses import is_public
from mailprobe.engine.net.reactor import ByteChannel, Reactor, StreamChannel, open_reactor
from mailprobe.engine.observer import NO_OBSERVER, EngineStatistics, Observer
from mailprobe.engine.settings import EngineSettings
from mailprobe.engine.smtp.address_lookups import AddressLookups
from mailprobe.engine.smtp.catchall import Domains
from mailprobe.engine.smtp.connection_budget import ConnectionBudget, OwnBudget
from mailprobe.engine.smtp.operators import MailOperators
from mailprobe.engine.smtp.pool import Pool
from mailprobe.engine.smtp.probe import Cause, Probe
from mailprobe.engine.smtp.replies.rules import Rules
from mailprobe.engine.smtp.throttle import HostBackoff
from mailprobe.engine.verdict import LADDER, Outcome

POOLS_MAX = 10_000  # hosts remembered; those with nothing to do go first
POOLS_SCANNED = 64  # of them, when one is to be forgotten
NAMES_MAX = 100_000  # exchanges whose host is remembered, whatever addresses they have now
NAMES_OF_POOL_MAX = 64  # an operator's host has a name for each customer: these learn its rest
BACKOFFS_MAX = 10_000  # addresses and names that are left alone
CLOSING_S = 1.0  # for QUIT and its answers when the engine closes

NO_ADDRESS = Cause(Outcome.CONVERSATION_FAILED, "exchange.no-address", "no address to connect to")
NOT_PUBLIC = Cause(Outcome.CONVERSATION_FAILED, "exchange.not-public", "no public address")
LOOKUP_FAILED = Cause(Outcome.RESOLVER_FAILED, "exchange.lookup-failed", "its look-up failed")
NEVER_TRIED = (None, NO_ADDRESS, NOT_PUBLIC, LOOKUP_FAILED)  # no exchange had an address for us


class ProbeDispatcher:
    """Every question under way, and the pools that answer them."""

    # Of more than 30 attributes Python keeps a dict for each object, and looks each up: 6 µs an address.
    __slots__ = (
        "_address_backoffs",
        "_admitted",
        "_admitting",
        "_all_done",
        "_answering",
        "_awaiting_proof",
        "_ceded",
        "_clock_needed",
        "_clocked",
        "_ended",
        "_granted",
        "_hedging",
        "_looking_up",
        "_name_backoffs",
        "_now",
        "_nursery",
        "_operators",
        "_over",
        "_permit_demand",
        "_permits",
        "_permits_held",
        "_pool_of_name",
        "_pools",
        "_pools_at",
        "_probes_max",
        "_reactor",
        "_room_at",
        "_room_listeners",
        "_routes",
        "_tasks",
        "_waiting",
        "_watched",
        "closing",
        "dial",
        "domains",
        "observer",
        "rules",
        "settings",
    )

    def __init__(
        self,
        settings: EngineSettings,
        routes: Routes,
        dial: Dial,
        rules: Rules,
        operators: MailOperators,
        nursery: trio.Nursery,
        mint: Callable[[], str],
        observer: Observer = NO_OBSERVER,
        lines: Reactor | None = None,
        permits: ConnectionBudget | None = None,
    ) -> None:
        self.settings = settings
        self.observer = observer
        self._watched = observer is not NO_OBSERVER  # whom nothing need be told
        self.rules = rules
        self.dial = dial
        self.domains = Domains(settings.cache_s, mint)
        self.closing = False
        self._routes = routes
        self._operators = operators
        self._nursery = nursery
        self._reactor = lines
        self._probes_max = settings.probes_max
        self._now = trio.lowlevel.current_clock().current_time
        self._clocked: OrderedDict[Probe, None] = OrderedDict()  # by their deadlines
        self._clock_needed = trio.Event()
        self._admitted: set[Probe] = set()
        self._awaiting_proof = 0  # admitted questions with a reply that is not proven yet
        self._waiting: FairQueue[Probe] = FairQueue()
        self._admitting = False
        self._room_listeners: tuple[Callable[[Pool | None], None], ...] = ()
        self._answering = 0  # rounds whose replies are being given out just now
        self._room_at: dict[Pool | None, None] = {}  # that was made meanwhile
        self._pools: OrderedDict[tuple[str, ...], Pool] = OrderedDict()
        self._pool_of_name: OrderedDict[str, Pool] = OrderedDict()
        self._name_backoffs: OrderedDict[str, tuple[HostBackoff, Cause]] = OrderedDict()
        self._address_backoffs: OrderedDict[str, tuple[float, Cause]] = OrderedDict()
        self._hedging: set[str] = set()  # exchanges that are looked up for it
        self._pools_at: defaultdict[str, set[Pool]] = defaultdict(set)  # by IP address
        self._granted: ConnectionBudget = (
            OwnBudget(settings.host_connections) if permits is None else permits
        )
        self._granted.open_for(self)
        self._permits: Counter[str] = Counter()  # connections, by IP address
        self._over: set[str] = set()  # addresses with more connections than are granted
        self._ceded: Counter[str] = Counter()  # connections there that are on their way home
        self._ended: set[str] = set()  # addresses at which the seats of some were withdrawn
        self._permits_held: defaultdict[str, dict[trio.CancelScope, None]] = defaultdict(dict)
        self._permit_demand: defaultdict[str, dict[Pool, None]] = defaultdict(dict)  # in turn
        self._looking_up = AddressLookups(routes, self._found, self._next_exchange)
        self._tasks = 0
        self._all_done = trio.Event()

    # -- asking and settling -----------------------------------------------------------------

    @property
    def under_way(self) -> int:
        """Questions that are admitted and not answered."""
        return len(self._admitted) - self._awaiting_proof

    @property
    def full(self) -> bool:
        return self.under_way >= self._probes_max

    @property
    def at_capacity(self) -> bool:
        """More than half of those who may be admitted are: none should wait in step for long."""
        return 2 * self.under_way > self._probes_max

    @property
    def room(self) -> int:
        """How many more questions may be admitted."""
        return self._probes_max - self.under_way

    def statistics(self) -> EngineStatistics:
        """What is under way just now. Looks at every host: for once a second, not for each address."""
        now, pools = trio.current_time(), self._pools.values()
        return EngineStatistics(
            probes=self.under_way,
            probes_in_flight=len(self._waiting),
            probes_waiting=sum(len(pool.waiting) for pool in pools),
            connections=self._permits.total(),
            hosts=len(pools),
            hosts_backing_off=sum(pool.backoff.active(now) for pool in pools),
            hosts_waiting=sum(map(len, self._permit_demand.values())),
        )

    def submit(self, probe: Probe) -> None:
        """Start the question's clock and let it be answered; `on_settled` is called once."""
        self._begin(probe, self._now())
        self._waiting.join(probe.asker, probe)
        self._admit()

    def submit_to(self, pool: Pool, probes: Sequence[Probe]) -> None:
        """Ask all of these, whose first exchange has this pool; `room` says how many may be."""
        if self._admitting or self._waiting.count or len(probes) > self.room:
            for probe in probes:
                self.submit(probe)
            return
        now = self._now()
        deadline = now + self.settings.probe_s
        if not self._clocked:
            self._clock_needed.set()
        for probe in probes:
            probe.deadline = deadline
            self._clocked[probe] = None
            self._admitted.add(probe)
            if self._watched or probe.notes is not None:
                self._recall_addresses(probe)
            probe.exchange_index = 0
        self._admitting = True  # what they settle at once lets others in only afterwards
        try:
            pool.join(probes, now)
        finally:
            self._admitting = False
        if self._waiting.count:
            self._admit()

    def _begin(self, probe: Probe, now: float) -> None:
        probe.deadline = now + self.settings.probe_s
        if not self._clocked:
            self._clock_needed.set()
        self._clocked[probe] = None

    def pool_of(self, exchange: MailExchange) -> Pool | None:
        """The exchange's pool; None where its addresses aren't known or aren't for us."""
        known = self._routes.cached_addresses(exchange.name)
        if not isinstance(known, Addresses) or not (usable := self._usable(known.ips)):
            return None
        return self._pool(usable, exchange.name)

    def _recall_addresses(self, probe: Probe) -> None:
        self.observer.recalled("addresses")
        if probe.notes is not None and not probe.notes.lookup_took:
            probe.notes.cached.append("addresses")

    def settle(self, probe: Probe, outcome: Outcome, rule: str) -> None:
        """The first word on a question is the last; whatever comes later is dropped."""
        if probe.outcome is not None:
            return
        if probe.accepted and not LADDER[outcome].valid:
            # Asked once more for the sake of the random address, and not answered as before.
            outcome, rule = Outcome.DELIVERABLE_UNTESTED, probe.rule
        probe.outcome = outcome
        probe.rule = rule
        try:
            self._remove(probe)
        except Exception:  # of the books of a host; the asker has an answer all the same
            log_fault(self._remove)
        try:
            probe.on_settled(probe)
        except Exception:  # of its asker's, whose trouble may not be that of all who ask
            log_fault(probe.on_settled)

    def abandon(self, probes: Iterable[Probe]) -> None:
        """Their asker has gone: nothing more is asked for them, nothing is reported."""
        abandoned = [probe for probe in probes if not probe.settled]
        for probe in abandoned:  # all of them first: none is let in for another one's place
            probe.outcome = Outcome.TIMED_OUT
            probe.rule = "abandoned"
        for probe in abandoned:
            self._remove(probe)

    def _remove(self, probe: Probe) -> None:
        admitted = self._admitted
        full = len(admitted) - self._awaiting_proof >= self._probes_max
        self._clocked.pop(probe, None)
        admitted.discard(probe)
        if self._looking_up.pending:
            self._looking_up.drop(probe)
        pool: Pool | None = probe.pool
        if pool is not None:
            pool.present -= 1
            probe.pool = None
        if self._waiting.count:
            self._admit()
        if pool is not None and pool.present - pool.backlog <= pool.room_at:
            if self._answering:  # as room_made() does, said here for it is done of every answer
                self._room_at[pool] = None
            else:
                for tell in self._room_listeners:
                    tell(pool)
        if full:
            if self._answering:
                self._room_at[None] = None
            elif not self.full:
                self.capacity_freed(None)

    def defer(self, pool: Pool, count: int) -> None:
        """`count` questions have a reply and wait for its proof: admit others in their places."""
        full = len(self._admitted) - self._awaiting_proof >= self._probes_max
        self._awaiting_proof += count
        pool.backlog += count
        if self._waiting.count:
            self._admit()
        if pool.present - pool.backlog <= pool.room_at:
            self.capacity_freed(pool)
        if full and not self.full:
            self.capacity_freed(None)

    def end_hold(self, pool: Pool, count: int) -> None:
        """`count` of them are settled or asked again now."""
        self._awaiting_proof -= count
        pool.backlog -= count

    def capacity_freed(self, pool: Pool | None) -> None:
        """Tell who holds questions back that one may be let in: at this pool, or (None) anywhere.

        While a round's replies are given out it is only noted: told once, what was
        held back is let in together, and goes into one write.
        """
        if self._answering:
            self._room_at[pool] = None
        else:
            for tell in self._room_listeners:
                tell(pool)

    def begin_answers(self) -> None:
        """A round's replies are given out from now on, until end_answers()."""
        self._answering += 1

    def end_answers(self) -> None:
        self._answering -= 1
        if not self._answering and self._room_at:
            made, self._room_at = self._room_at, {}
            for pool in made:
                if pool is not None:
                    self.capacity_freed(pool)
            if None in made and not self.full:
                self.capacity_freed(None)

    def subscribe_capacity(self, tell: Callable[[Pool | None], None]) -> None:
        self._room_listeners = (*self._room_listeners, tell)

    def unsubscribe_capacity(self, tell: Callable[[Pool | None], None]) -> None:
        self._room_listeners = tuple(each for each in self._room_listeners if each != tell)

    def _admit(self) -> None:
        """Let waiting questions in while there is room. What they settle at once lets others in."""
        if self._admitting:
            return
        self._admitting = True
        try:
            now = self._now()
            while not self.full and (probe := self._waiting.pop()) is not None:
                if not probe.settled and probe.deadline > now:
                    self._admitted.add(probe)
                    self._next_exchange(probe)
        finally:
            self._admitting = False

    def fail_over(self, probe: Probe, cause: Cause) -> None:
        """What was tried last came to nothing: the next exchange, or the end."""
        if probe.settled:
            return
        probe.cause = cause
        final = cause.outcome not in (Outcome.TIMED_OUT, Outcome.CONVERSATION_FAILED)
        if final or probe.exhausted:
            self.settle(probe, cause.outcome, cause.rule)
        else:
            self._next_exchange(probe)

    # -- the way from exchange to exchange ---------------------------------------------------

    def _next_exchange(self, probe: Probe) -> None:
        if probe.pool is not None:
            probe.pool.present -= 1
            probe.pool = None
        while probe.exchange_index + 1 < len(probe.exchanges):
            probe.exchange_index += 1
            if probe.exchange_index == probe.hedge_index and probe.hedge is None:
                probe.cause = probe.hedge_cause or probe.cause
                continue  # it was tried beside the one before it, in vain
            exchange = probe.exchanges[probe.exchange_index]
            known = self._routes.cached_addresses(exchange.name)
            if known is None:
                self._looking_up.begin(probe, probe.exchange_index)
                return
            self._recall_addresses(probe)
            if self._enter(probe, exchange.name, known):
                return
        if not self._looking_up.waits(probe):  # else one that is late may still be found
            cause = probe.cause or NO_ADDRESS
            self.settle(probe, cause.outcome, cause.rule)

    def _found(self, probe: Probe, place: int, answer: AddressAnswer) -> None:
        """An exchange's look-up is done: try it, or go on where it was the last one begun."""
        last, probe.exchange_index = probe.exchange_index, place
        if not self._enter(probe, probe.exchanges[place].name, answer):
            probe.exchange_index = last
            if place == last or not self._looking_up.waits(probe):
                self._next_exchange(probe)

    def _enter(self, probe: Probe, name: str, answer: AddressAnswer) -> bool:
        """Let the question wait at the exchange's pool; False where it has no address for us."""
        if isinstance(answer, Addresses):
            if usable := self._usable(answer.ips):
                self._looking_up.drop(probe)
                self._pool(usable, name).join((probe,), self._now())
                return True
            cause = NOT_PUBLIC
        else:
            cause = NO_ADDRESS if isinstance(answer, NoAddress) else LOOKUP_FAILED
        if probe.notes is not None:
            probe.notes.tried.append(ConnectionAttempt(name, None, cause.words))
        # An exchange that was tried says more than one that could not be: its cause stays.
        if probe.cause in NEVER_TRIED:
            probe.cause = cause
        return False

    def _usable(self, ips: tuple[str, ...]) -> tuple[str, ...]:
        if self.settings.allow_private:
            return ips
        return tuple(ip for ip in ips if is_public(ip))

    # -- pools and seats ---------------------------------------------------------------------

    def _pool(self, addresses: tuple[str, ...], name: str) -> Pool:
        """The pool of these addresses, which the exchange of this name has just now."""
        key = pool_key(addresses)
        known = self._pool_of_name.get(name)
        pool = self._pools.get(key)
        if pool is not None:
            self._pools.move_to_end(key)
        elif known is not None and known.names == {name}:
            pool = self._move(known, key)  # its addresses rotate; what was learnt stays
        else:
            pool = self._open_pool(key, name, known)
        if known is not pool:
            self._name(pool, name, known)
        pool.belong_to(self._operators.find(name))
        if len(self._pools) > POOLS_MAX:
            self._drop_a_pool()
        return pool

    def _open_pool(self, key: tuple[str, ...], name: str, known: Pool | None) -> Pool:
        """A new pool; it knows its domains from the exchange's name, or from a host's address.

        Only domains are shared by address, for a domain's owner chooses its exchanges: what
        one of them does to us must not be held against whoever else has the address.
        """
        sharing = known or next(
            (next(iter(self._pools_at[each])) for each in key if self._pools_at.get(each)), None
        )
        pool = self._pools[key] = Pool(key, name, sharing.host if sharing else name, self)
        if known is not None:
            pool.throttle, pool.terms = known.throttle, known.terms
        self._find_at(pool, key)
        return pool

    def _move(self, pool: Pool, key: tuple[str, ...]) -> Pool:
        del self._pools[pool.addresses]
        self._pools[key] = pool
        in_use = {session.address for session in pool.sessions}
        for address in pool.found_at - set(key) - in_use:
            self._remove_address(pool, address)
        self._find_at(pool, key)
        pool.addresses = key
        return pool

    def _find_at(self, pool: Pool, addresses: Iterable[str]) -> None:
        for address in addresses:
            pool.found_at.add(address)
            self._pools_at[address].add(pool)

    def _remove_address(self, pool: Pool, address: str) -> None:
        pool.found_at.discard(address)
        self._pools_at[address].discard(pool)
        if not self._pools_at[address]:
            del self._pools_at[address]

    def _name(self, pool: Pool, name: str, known: Pool | None) -> None:
        """The exchange of this name is at this pool from now on."""
        if known is not None:
            known.names.discard(name)
        pool.names.add(name)
        self._pool_of_name[name] = pool
        if len(self._pool_of_name) > NAMES_MAX:
            oldest, its_pool = self._pool_of_name.popitem(last=False)
            its_pool.names.discard(oldest)
        if rest := self._name_backoffs.get(name):
            pool.names_backoff_until = max(pool.names_backoff_until, rest[0].until)

    def _drop_a_pool(self) -> None:
        """Forget the oldest that has nothing to do and does not rest; look at few of them."""
        now = self._now()
        for _ in range(POOLS_SCANNED):
            key, pool = next(iter(self._pools.items()))
            busy = pool.connections or pool.present or pool.any_waiting()
            rests = pool.backoff.active(now) and len(self._pools) <= 2 * POOLS_MAX
            if busy or rests:
                self._pools.move_to_end(key)
                continue
            del self._pools[key]
            for address in list(pool.found_at):
                self._remove_address(pool, address)
            for name in pool.names:
                self._pool_of_name.pop(name, None)
            return

    # -- back-off, by address and by the exchange's name -------------------------------------

    def backoff_at(self, address: str) -> Cause | None:
        """Why this address is left alone just now; None where it is not."""
        until, cause = self._address_backoffs.get(address, (0.0, None))
        return cause if self._now() < until else None

    def name_backoff(self, name: str, now: float) -> Cause | None:
        """Why the exchange of this name is left alone, whatever its addresses; None where not."""
        rest, cause = self._name_backoffs.get(name, (HostBackoff(), None))
        return cause if now < rest.until else None

    def record_backoff(self, pool: Pool, addresses: Sequence[str], cause: Cause) -> None:
        """The pool rests after failures at these addresses: so do they, and its names."""
        now = self._now()
        for address in addresses:
            self._address_backoffs[address] = (pool.backoff.until, cause)
            self._address_backoffs.move_to_end(address)
        for name in list(pool.names)[:NAMES_OF_POOL_MAX]:
            self._name_backoffs[name] = (
                self._longer_backoff(name, pool.backoff, now, cause),
                cause,
            )
            self._name_backoffs.move_to_end(name)
        for rests in (self._address_backoffs, self._name_backoffs):
            while len(rests) > BACKOFFS_MAX:
                rests.popitem(last=False)

    def _longer_backoff(
        self, name: str, rest: HostBackoff, now: float, cause: Cause
    ) -> HostBackoff:
        """The pool's rest, or the longer one of a name that failed at other addresses before."""
        before, _ = self._name_backoffs.get(name, (HostBackoff(), None))
        longer = before.after_failure(now, refused=cause.about_us)
        return longer if longer.until > rest.until else rest

    def record_success(self, pool: Pool) -> None:
        """A recipient was answered: none of the pool's names wants rest any more."""
        for name in list(pool.names)[:NAMES_OF_POOL_MAX]:
            self._name_backoffs.pop(name, None)

    # -- hedges ------------------------------------------------------------------------------

    def hedge(self, pool: Pool) -> None:
        """The pool's exchange is silent: dial the next one for each question that waits there."""
        for probe in list(pool.waiting):
            if probe.settled or probe.pool is not pool or probe.hedge_index >= 0:
                continue
            place = probe.exchange_index + 1
            if place >= len(probe.exchanges):
                continue
            name = probe.exchanges[place].name
            known = self._routes.cached_addresses(name)
            if known is None:
                self._lookup_for_hedge(name, probe.asker, pool)
            elif isinstance(known, Addresses) and (usable := self._usable(known.ips)):
                other = self._pool(usable, name)
                if other is not pool:
                    other.hedge(probe, place)

    def _lookup_for_hedge(self, name: str, account: str, pool: Pool) -> None:
        if name not in self._hedging:
            self._hedging.add(name)
            self.start(self._find_for_hedge, name, account, pool)

    async def _find_for_hedge(self, name: str, account: str, pool: Pool) -> None:
        try:
            await self._routes.addresses(name, account)
        finally:
            self._hedging.discard(name)
        if pool.silent and self._routes.cached_addresses(name) is not None:
            self.hedge(pool)

    # -- seats -------------------------------------------------------------------------------

    def permit_available(self, address: str) -> bool:
        return self._permits[address] < self._granted.at(address)

    def try_acquire_permit(self, address: str, pool: Pool) -> bool:
        """A seat at the address, where one is free; else the pool is told when one is."""
        if not self.permit_available(address):
            self.set_demand(address, pool)
            return False
        self._acquire(address)
        if wanted := self._permit_demand.get(address):
            wanted.pop(pool, None)
        return True

    def _acquire(self, address: str) -> None:
        self._permits[address] += 1
        self._granted.used(address, self._permits[address])

    def _release(self, address: str) -> None:
        self._permits[address] -= 1
        self._granted.used(address, self._permits[address])
        if self._permits[address] <= self._granted.at(address):
            self._over.discard(address)
        if not self._permits[address]:
            del self._permits[address]
            self._ended.discard(address)
            self._ceded.pop(address, None)

    def set_demand(self, address: str, pool: Pool) -> None:
        """Let the pool wait its turn for a seat here; idle connections of others are sent home."""
        self._permit_demand[address][pool] = None
        self._granted.request(address)
        if self._permits[address] < self.settings.host_connections and not self._granted.short(
            address
        ):
            return  # it is only to be granted yet
        for other in self._pools_at[address] - {pool}:
            other.close_idle_session()

    def is_needed_elsewhere(self, address: str, pool: Pool) -> bool:
        """Does another host's pool wait for a seat at this address, or another process?"""
        if address in self._over and self._cedes(address):
            return True
        wanted = self._permit_demand.get(address)
        return wanted is not None and any(other is not pool for other in wanted)

    def release_permit(self, address: str) -> None:
        """The seat goes to the pool that has waited longest, in the same step, if it is ours still."""
        if self._ceded[address]:
            self._ceded[address] -= 1
        if self._permits[address] <= self._granted.at(address):
            wanted = self._permit_demand.get(address, {})
            while wanted:
                pool = next(iter(wanted))
                del wanted[pool]
                if not self.closing and pool.adopt(address):
                    return
            self._permit_demand.pop(address, None)
        self._release(address)

    # -- seats that come and go --------------------------------------------------------------

    @contextmanager
    def holding_permit(self, address: str) -> Iterator[None]:
        """What is done on a seat at the address; it is cut off where the seat is withdrawn."""
        with trio.CancelScope() as scope:
            sitting = self._permits_held[address]
            sitting[scope] = None
            if address in self._ended:
                scope.cancel()
            try:
                yield
            finally:
                del sitting[scope]
                if not sitting:
                    self._permits_held.pop(address, None)

    def permits_changed(self, address: str) -> None:
        """More are for pools that wait. Fewer: idle connections go home, busy ones in turn."""
        if self.closing:
            return
        granted = self._granted.at(address)
        if granted:
            self._ended.discard(address)
        for pool in list(self._pools_at.get(address, ())):
            self._allow(pool)
        over = self._permits[address] - granted
        if over > 0:
            self._over.add(address)
            self._close_sessions(address, over - self._ceded[address])
        else:
            self._over.discard(address)
            self._hand_out_permits(address)

    def permits_revoked(self, address: str) -> None:
        """Every connection there is closed at once; its questions wait for another seat."""
        if not self._permits[address]:
            return
        self._ended.add(address)
        for pool in self._pools_at.get(address, ()):
            pool.revoke_permits(address)
        for scope in list(self._permits_held.get(address, ())):
            scope.cancel()

    def _allow(self, pool: Pool) -> None:
        """Where seats are short, the pool lets in what those that it has can bear."""
        allowed = self.settings.host_connections
        if any(map(self._granted.short, pool.addresses)):
            allowed = min(allowed, max(1, sum(map(self._granted.at, pool.addresses))))
        grown, pool.allowed = allowed > pool.allowed, allowed
        if grown:
            self.capacity_freed(pool)

    def _cedes(self, address: str) -> bool:
        """Is this connection to go, so that no more stay than are granted?"""
        if self._permits[address] - self._ceded[address] <= self._granted.at(address):
            return False
        self._ceded[address] += 1
        return True

    def _close_sessions(self, address: str, most: int) -> None:
        for pool in self._pools_at.get(address, ()):
            while most > 0 and pool.close_one_session(address):
                self._ceded[address] += 1
                most -= 1

    def _hand_out_permits(self, address: str) -> None:
        """Seats that came go to the pools that wait for them, in turn."""
        for pool in list(self._permit_demand.get(address, ())):
            if not pool.any_waiting():
                self._permit_demand[address].pop(pool, None)
                continue
            if not self.permit_available(address):
                self.set_demand(address, pool)
                return
            self._permit_demand[address].pop(pool, None)
            if not pool.connections:
                self._acquire(address)
                if pool.adopt(address):
                    continue
                self._release(address)
            pool.permit_acquired()

    # -- tasks and clocks --------------------------------------------------------------------

    def open_channel(self, stream: trio.abc.Stream) -> ByteChannel:
        """How a connection is sent to and waited for."""
        return (
            StreamChannel(stream) if self._reactor is None else self._reactor.open_channel(stream)
        )

    def start(self, task: Callable[..., Any], *args: Any) -> None:
        self._tasks += 1
        self._nursery.start_soon(self._run, task, *args)

    async def _run(self, task: Callable[..., Any], *args: Any) -> None:
        try:
            await contained(task, *args)
        finally:
            self._tasks -= 1
            if not self._tasks:
                self._all_done.set()

    async def keep_time(self) -> None:
        """Settle every question whose overall clock has run out. Runs until cancelled."""
        while True:
            first = next(iter(self._clocked), None)
            if first is None:
                self._clock_needed = trio.Event()
                await self._clock_needed.wait()
            elif first.deadline > self._now():
                await trio.sleep_until(first.deadline)
            else:
                try:
                    self._expire(first)
                except Exception:
                    log_fault(self._expire)
                    self._clocked.pop(first, None)
                    self.settle(first, Outcome.TIMED_OUT, "clock.overall")

    def _expire(self, probe: Probe) -> None:
        if self._looking_up.waits(probe) and probe.cause in NEVER_TRIED:
            self.settle(probe, LOOKUP_FAILED.outcome, LOOKUP_FAILED.rule)
        else:
            self.settle(probe, Outcome.TIMED_OUT, "clock.overall")

    async def close(self) -> None:
        """Say QUIT on every connection, within PARTING_S; nothing is asked any more."""
        self.closing = True
        for pool in self._pools.values():
            for session in pool.sessions:
                session.withdraw()
        with trio.move_on_after(CLOSING_S):
            while self._tasks:
                self._all_done = trio.Event()
                await self._all_done.wait()


def pool_key(addresses: tuple[str, ...]) -> tuple[str, ...]:
    """Exchanges with the same addresses are one mail host, whatever they are called."""
    return tuple(sorted(addresses))


@asynccontextmanager
async def open_dispatcher(
    settings: EngineSettings,
    *,
    routes: Routes,
    dial: Dial,
    rules: Rules,
    operators: MailOperators,
    mint: Callable[[], str] | None = None,
    observer: Observer = NO_OBSERVER,
    permits: ConnectionBudget | None = None,
) -> AsyncIterator[ProbeDispatcher]:
    """Layer 4, open for questions; leaving it says QUIT and closes every connection.

    `mint` makes the local part of the random address; the default's are unguessable.
    `permits` says how many connections may be held to an address; by default all that
    the settings allow are ours.
    """
    async with open_reactor() as lines, trio.open_nursery() as nursery:
        mint = mint or random_local
        dispatcher = ProbeDispatcher(
            settings, routes, dial, rules, operators, nursery, mint, observer, lines, permits
        )
        nursery.start_soon(supervised, dispatcher.keep_time)
        try:
            yield dispatcher
            await dispatcher.close()
        finally:
            dispatcher.closing = True
            nursery.cancel_scope.cancel()


def random_local() -> str:
    """20 letters and digits that begin with a letter: about 100 random bits."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    system = random.SystemRandom()
    return system.choice(letters) + "".join(system.choices(letters + "0123456789", k=19))
