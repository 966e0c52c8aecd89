"""Layer 4: from a question to what became of it.

The desk at which every question is asked and settled. It keeps the overall
clock of each, finds the pool of its exchange, sends it on to the next exchange
when one fails, and counts what is under way. Nothing is reported later than
the overall clock: whatever a connection is still waiting for, its question is
settled by then, and the late reply finds nobody.
"""

import random
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import trio

from mailprobe.engine.background import contained, log_fault, supervised
from mailprobe.engine.dns.messages import AddressAnswer, Addresses, MailExchange, NoAddress
from mailprobe.engine.dns.routes import Routes
from mailprobe.engine.evidence import ConnectionAttempt
from mailprobe.engine.fair_queue import FairQueue
from mailprobe.engine.net.dialer import Dial, is_public
from mailprobe.engine.net.reactor import ByteChannel, Reactor, StreamChannel, open_reactor
from mailprobe.engine.observer import NO_OBSERVER, EngineStatistics, Observer
from mailprobe.engine.settings import EngineSettings
from mailprobe.engine.smtp.address_lookups import AddressLookups
from mailprobe.engine.smtp.catchall import Domains
from mailprobe.engine.smtp.connection_budget import ConnectionBudget, OwnBudget
from mailprobe.engine.smtp.host_memory import HostMemory
from mailprobe.engine.smtp.operators import MailOperators
from mailprobe.engine.smtp.permits import Permits
from mailprobe.engine.smtp.pool.pool import Pool
from mailprobe.engine.smtp.pools import Pools
from mailprobe.engine.smtp.probe import Cause, Probe
from mailprobe.engine.smtp.replies.rules import Rules
from mailprobe.engine.verdict import LADDER, Outcome

CLOSING_S = 1.0  # for QUIT and its answers when the engine closes

NO_ADDRESS = Cause(Outcome.CONVERSATION_FAILED, "exchange.no-address", "no address to connect to")
NOT_PUBLIC = Cause(Outcome.CONVERSATION_FAILED, "exchange.not-public", "no public address")
LOOKUP_FAILED = Cause(Outcome.RESOLVER_FAILED, "exchange.lookup-failed", "its look-up failed")
NEVER_TRIED = (None, NO_ADDRESS, NOT_PUBLIC, LOOKUP_FAILED)  # no exchange had an address for us


class ProbeDispatcher:
    """Every question under way, and the pools that answer them."""

    # Of more than 30 attributes Python keeps a dict for each object, and looks each up: 6 µs an address.
    __slots__ = (
        "_admitted",
        "_admitting",
        "_all_done",
        "_answering",
        "_awaiting_proof",
        "_clock_needed",
        "_clocked",
        "_hedging",
        "_looking_up",
        "_now",
        "_nursery",
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
        "host_memory",
        "observer",
        "permits",
        "pools",
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
        self._hedging: set[str] = set()  # exchanges that are looked up for it
        self.host_memory = HostMemory(self._now)
        self.pools = Pools(operators, self.host_memory, self._new_pool, self._now)
        self.permits = Permits(
            settings.host_connections,
            OwnBudget(settings.host_connections) if permits is None else permits,
            self.pools.at_address,
            self.capacity_freed,
        )
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
        now, pools = trio.current_time(), self.pools.values()
        return EngineStatistics(
            probes=self.under_way,
            probes_in_flight=len(self._waiting),
            probes_waiting=sum(len(pool.waiting) for pool in pools),
            connections=self.permits.in_use,
            hosts=len(pools),
            hosts_backing_off=sum(pool.backoff.active(now) for pool in pools),
            hosts_waiting=self.permits.demand,
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
        return self.pools.find(usable, exchange.name)

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
                self.pools.find(usable, name).join((probe,), self._now())
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
                other = self.pools.find(usable, name)
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

    def _new_pool(self, addresses: tuple[str, ...], name: str, host: str) -> Pool:
        return Pool(addresses, name, host, self)

    def stop(self) -> None:
        self.closing = True
        self.permits.close()

    async def close(self) -> None:
        """Say QUIT on every connection, within PARTING_S; nothing is asked any more."""
        self.stop()
        for pool in self.pools.values():
            for session in pool.sessions:
                session.withdraw()
        with trio.move_on_after(CLOSING_S):
            while self._tasks:
                self._all_done = trio.Event()
                await self._all_done.wait()


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
            dispatcher.stop()
            nursery.cancel_scope.cancel()


def random_local() -> str:
    """20 letters and digits that begin with a letter: about 100 random bits."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    system = random.SystemRandom()
    return system.choice(letters) + "".join(system.choices(letters + "0123456789", k=19))
