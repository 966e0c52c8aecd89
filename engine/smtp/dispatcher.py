"""Layer 4: accepts probes and settles each of them once.

The dispatcher keeps the overall deadline of each probe, finds the pool of its exchange,
fails over to the next exchange, and counts the probes under way. A probe is settled by
its deadline at the latest, even if its connection still waits; a later reply is dropped.
"""

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from itertools import chain
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
from mailprobe.engine.smtp.address_lookups import (
    LOOKUP_FAILED,
    NEVER_TRIED,
    NO_ADDRESS,
    NOT_PUBLIC,
    AddressLookups,
)
from mailprobe.engine.smtp.catchall import (
    RANDOM_UNANSWERED,
    DomainAcceptance,
    Domains,
    random_local,
)
from mailprobe.engine.smtp.connection_budget import ConnectionBudget, OwnBudget
from mailprobe.engine.smtp.controls import CHANGED_RULE
from mailprobe.engine.smtp.deadlines import Deadlines
from mailprobe.engine.smtp.host_memory import HostMemory
from mailprobe.engine.smtp.left_connections import LeftConnections
from mailprobe.engine.smtp.operators import MailOperators
from mailprobe.engine.smtp.patience import overall_s
from mailprobe.engine.smtp.permits import Permits
from mailprobe.engine.smtp.pool.catchall_tests import continue_test, refused_as_unknown
from mailprobe.engine.smtp.pool.hedges import Hedges
from mailprobe.engine.smtp.pool.pool import Pool
from mailprobe.engine.smtp.pools import Pools
from mailprobe.engine.smtp.probe import Cause, Probe
from mailprobe.engine.smtp.refusal_budget import RefusalBudget, RefusalBudgets, SpentBudget
from mailprobe.engine.smtp.replies.rules import Rules
from mailprobe.engine.smtp.throttle import RestingHost
from mailprobe.engine.verdict import LADDER, Outcome

UNANSWERED = (Outcome.TIMED_OUT, Outcome.CONVERSATION_FAILED)
OVERALL_CLOCK = "clock.overall"  # the rule of what was not answered by its deadline
PERMIT_CLOCK = "clock.permit"  # likewise, because no permit was free
_TIMED_OUT = Outcome.TIMED_OUT  # to look each up takes 0.12 µs in Python 3.11
_UNDELIVERABLE = Outcome.UNDELIVERABLE
CHANGED = (Outcome.HOST_CHANGED, CHANGED_RULE)
CLOSING_S = 1.0  # for QUIT and its answers when the engine closes


class ProbeDispatcher:
    """Every probe under way."""

    # With more than 30 attributes Python keeps a slower dict for each object: 6 µs per address.
    __slots__ = (
        "_admitted",
        "_admitting",
        "_all_done",
        "_answering",
        "_awaiting_proof",
        "_clocks",
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
        "budgets",
        "closing",
        "dial",
        "domains",
        "hedges",
        "host_memory",
        "left_connections",
        "observer",
        "operators",
        "patient_pools",
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
        mint: Callable[[int], str],
        observer: Observer = NO_OBSERVER,
        reactor: Reactor | None = None,
        permits: ConnectionBudget | None = None,
    ) -> None:
        self.settings = settings
        self.observer = observer
        self._watched = observer is not NO_OBSERVER
        self.rules = rules
        self.operators = operators
        self.budgets = RefusalBudgets(partial(RefusalBudget, *operators.refusals_of("")[::-1]))
        self.dial = dial
        self.domains = Domains(settings.cache_s, mint)
        self.closing = False
        self._routes = routes
        self._nursery = nursery
        self._reactor = reactor
        self._probes_max = settings.probes_max
        self._now = trio.lowlevel.current_clock().current_time
        # Of ordinary probes, and of patient ones: indexed by `Probe.patient`.
        self._clocks = tuple(Deadlines(overall_s(settings, patient)) for patient in (False, True))
        self._admitted: set[Probe] = set()
        self._awaiting_proof = 0  # admitted probes whose reply is not proven yet
        self._waiting: FairQueue[Probe] = FairQueue()
        self._admitting = False
        self._room_listeners: tuple[Callable[[Pool | None], None], ...] = ()
        self._answering = 0  # batches whose replies are being processed
        self._room_at: dict[Pool | None, None] = {}  # capacity freed meanwhile
        self.host_memory = HostMemory(self._now)
        self.pools = Pools(operators, self.host_memory, self._new_pool, self._now)
        self.patient_pools = Pools(
            operators, self.host_memory, self._new_patient_pool, self._now, self.pools.at_address
        )
        self.permits = Permits(
            settings.host_connections,
            OwnBudget(settings.host_connections) if permits is None else permits,
            self.pools.at_address,
            self.capacity_freed,
            self._stop_clocks,
            self._begin_clocks,
            settings.probe_s,
        )
        self.left_connections = LeftConnections(self.permits, self.start)
        self.hedges = Hedges(routes, self.pools, self._usable, self.start)
        self._looking_up = AddressLookups(routes, self._found, self._next_exchange)
        self._tasks = 0
        self._all_done = trio.Event()

    # -- submitting and settling --------------------------------------------------------------

    @property
    def under_way(self) -> int:
        """Probes that are admitted and have no reply yet."""
        return len(self._admitted) - self._awaiting_proof

    @property
    def full(self) -> bool:
        # Here and below `under_way` is written out: that saves a call or more for each reply.
        return len(self._admitted) - self._awaiting_proof >= self._probes_max

    @property
    def at_capacity(self) -> bool:
        """More than half of `probes_max` is in use: keep queues at lock-step sessions short."""
        return 2 * (len(self._admitted) - self._awaiting_proof) > self._probes_max

    @property
    def room(self) -> int:
        """How many more probes may be admitted."""
        return self._probes_max - len(self._admitted) + self._awaiting_proof

    def room_for(self, *, patient: bool) -> int:
        """How many more probes a list may begin: patient ones leave half of the places to others."""
        if not patient:
            return self.room
        return min(self.room, max(1, self._probes_max // 2) - len(self._clocks[patient]))

    def hosts_backing_off(self) -> list[RestingHost]:
        """The mail hosts that are left alone now, and why."""
        now = self._now()
        return [
            RestingHost(
                pool.name,
                pool.backoff_cause.words,
                pool.backoff_cause.about_us,
                pool.backoff.until - now,
            )
            for pool in self._all_pools()
            if pool.backoff.active(now) and pool.backoff_cause is not None
        ]

    def spent_budgets(self) -> list[SpentBudget]:
        """The hosts that have refused recipients within the hour, and tolerate so many more."""
        now = self._now()
        found = {pool.host: pool for pool in self.pools.values() if pool.budget.is_bounded}
        return [
            SpentBudget(pool.name, pool.budget.label, refused, pool.budget.left(now))
            for pool in found.values()
            if (refused := pool.budget.refused(now))
        ]

    def statistics(self) -> EngineStatistics:
        """Return current counts. Visits every host: call it once a second, not per address."""
        now, pools = trio.current_time(), list(self._all_pools())
        return EngineStatistics(
            probes=self.under_way,
            probes_in_flight=len(self._waiting),
            probes_waiting=sum(len(pool.waiting) for pool in pools),
            connections=self.permits.in_use,
            hosts=len(self.pools),
            hosts_backing_off=sum(pool.backoff.active(now) for pool in pools),
            hosts_waiting=self.permits.demand,
        )

    def submit(self, probe: Probe) -> None:
        """Start the probe's deadline and queue it; `on_settled` is called once."""
        self._clocks[probe.patient].begin((probe,))
        self._waiting.join(probe.asker, probe)
        self._admit()

    def submit_to(self, pool: Pool, probes: Sequence[Probe]) -> None:
        """Submit probes whose first exchange has this pool; at most `room` of them."""
        if self._admitting or self._waiting.count or len(probes) > self.room:
            for probe in probes:
                self.submit(probe)
            return
        now = self._now()
        if probes:
            self._clocks[probes[0].patient].begin(probes)  # they are of one stream
        for probe in probes:
            self._admitted.add(probe)
            if self._watched or probe.notes is not None:
                self._recall_addresses(probe)
            probe.exchange_index = 0
        self._admitting = True  # probes settled at once admit others only afterwards
        try:
            pool.join(probes, now)
            self.permits.waits.joined(pool, probes)
        finally:
            self._admitting = False
        if self._waiting.count:
            self._admit()

    def _stop_clocks(self, probes: Sequence[Probe]) -> None:
        """These wait for a permit, however long: they do not count as under way meanwhile."""
        full = self.full
        for probe in probes:
            self._clocks[probe.patient].stop(probe)
            self._admitted.discard(probe)
        if self._waiting.count:
            self._admit()
        if full and not self.full:
            self.capacity_freed(None)

    def _begin_clocks(self, probes: Sequence[Probe]) -> None:
        for patient, clocks in enumerate(self._clocks):
            if of_kind := [probe for probe in probes if probe.patient == patient]:
                clocks.begin(of_kind)
        self._admitted.update(probes)

    def pool_of(self, exchange: MailExchange, *, patient: bool = False) -> Pool | None:
        """The exchange's pool for such probes; None if its addresses are unknown or not public."""
        known = self._routes.cached_addresses(exchange.name)
        if not isinstance(known, Addresses) or not (usable := self._usable(known.ips)):
            return None
        return self._pool_at(usable, exchange.name, patient=patient)

    def _pool_at(self, addresses: tuple[str, ...], name: str, *, patient: bool) -> Pool:
        """The host's pool; a patient probe has another one unless the host is known to be quick."""
        pool = self.pools.find(addresses, name)
        if not patient or pool.is_quick:
            return pool
        twin = self.patient_pools.find(addresses, name)
        pool.twin, twin.twin = twin, pool
        return twin

    def _all_pools(self) -> Iterator[Pool]:
        return chain(self.pools.values(), self.patient_pools.values())

    def _recall_addresses(self, probe: Probe) -> None:
        self.observer.recalled("addresses")
        if probe.notes is not None and not probe.notes.lookup_took:
            probe.notes.cached.append("addresses")

    def settle(self, probe: Probe, outcome: Outcome, rule: str) -> None:
        """Settle the probe unless it is settled already."""
        if probe.outcome is not None:
            return
        if outcome is _TIMED_OUT and probe.pool is not None:
            probe.pool.slow = True
        if probe.accepted and not LADDER[outcome].valid and outcome is not Outcome.HOST_CHANGED:
            # It was sent again only for the catch-all test, and the reply was another.
            outcome, rule = Outcome.DELIVERABLE_UNTESTED, RANDOM_UNANSWERED
        elif (
            probe.refused is not None
            and outcome in UNANSWERED
            and probe.refused[0] is not Outcome.UNDELIVERABLE  # which is to be proved
        ):
            outcome, rule = probe.refused  # it was sent again only because of a limit
        elif rule == OVERALL_CLOCK and self.permits.were_lacking(probe, self.settings):
            outcome, rule = Outcome.NO_CONNECTION_FREE, PERMIT_CLOCK
        probe.outcome = outcome
        probe.rule = rule
        pool: Pool | None = probe.pool
        try:
            self._remove(probe)
        except Exception:  # a bug in a host's bookkeeping must not keep the answer from the caller
            log_fault(self._remove)
        if probe.accepted:
            continue_test(probe.domain_here)
        elif outcome is _UNDELIVERABLE and pool is not None:
            domain: DomainAcceptance = probe.domain_here
            if domain.unknown_mailbox == probe.mailbox:
                refused_as_unknown(pool, domain)
        try:
            probe.on_settled(probe)
        except Exception:  # in the caller's callback: it must not affect other callers
            log_fault(probe.on_settled)

    def suspend_clock(self, probe: Probe) -> None:
        """A list's probe is answered, and waits for what confirms the answer: however long."""
        if probe.stopped_at is None:
            self._clocks[probe.patient].stop(probe)

    def restart_clock(self, probe: Probe) -> None:
        """It is sent again, so its deadline begins anew."""
        if probe.stopped_at is not None:
            self._clocks[probe.patient].begin([probe])

    def abandon(self, probes: Iterable[Probe]) -> None:
        """The caller has gone: drop the probes without a report."""
        abandoned = [probe for probe in probes if not probe.settled]
        for probe in abandoned:  # mark all first, so that none is admitted in place of another
            probe.outcome = Outcome.TIMED_OUT
            probe.rule = "abandoned"
        for probe in abandoned:
            self._remove(probe)

    def _remove(self, probe: Probe) -> None:
        admitted = self._admitted
        full = len(admitted) - self._awaiting_proof >= self._probes_max
        self._clocks[probe.patient].end(probe)
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
            if self._answering:  # capacity_freed() inlined: this runs once for each answer
                self._room_at[pool] = None
            else:
                for notify in self._room_listeners:
                    notify(pool)
        if full:
            if self._answering:
                self._room_at[None] = None
            elif not self.full:
                self.capacity_freed(None)

    def defer(self, pool: Pool, count: int) -> None:
        """`count` probes have a reply and wait for its proof: admit others in their place."""
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
        """`count` of them are settled or queued again."""
        self._awaiting_proof -= count
        pool.backlog -= count

    def capacity_freed(self, pool: Pool | None) -> None:
        """Notify the listeners of capacity freed at `pool`; `None` means global capacity.

        While replies of a batch are processed, notifications are collected and sent once, so
        that the probes they admit go into one write.
        """
        if self._answering:
            self._room_at[pool] = None
        else:
            for notify in self._room_listeners:
                notify(pool)

    def begin_answers(self) -> None:
        """Collect notifications of freed capacity until end_answers()."""
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

    def subscribe_capacity(self, listener: Callable[[Pool | None], None]) -> None:
        self._room_listeners = (*self._room_listeners, listener)

    def unsubscribe_capacity(self, listener: Callable[[Pool | None], None]) -> None:
        self._room_listeners = tuple(each for each in self._room_listeners if each != listener)

    def _admit(self) -> None:
        """Admit waiting probes while there is room. Those settled at once make room for others."""
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
        """The exchange tried last failed: try the next one, or settle."""
        if probe.settled:
            return
        if probe.stopped_at is not None:  # it does not wait for a permit any more
            self._begin_clocks([probe])
        probe.cause = cause
        if cause.outcome is _TIMED_OUT and probe.pool is not None:
            probe.pool.slow = True
        final = cause.outcome not in (Outcome.TIMED_OUT, Outcome.CONVERSATION_FAILED)
        if final or probe.exhausted:
            self.settle(probe, cause.outcome, cause.rule)
        else:
            self._next_exchange(probe)

    # -- trying the exchanges in order --------------------------------------------------------

    def _next_exchange(self, probe: Probe) -> None:
        if probe.pool is not None:
            probe.pool.present -= 1
            probe.pool = None
        while probe.exchange_index + 1 < len(probe.exchanges):
            probe.exchange_index += 1
            exchange = probe.exchanges[probe.exchange_index]
            known = self._routes.cached_addresses(exchange.name)
            if known is None:
                self._looking_up.begin(probe, probe.exchange_index)
                return
            self._recall_addresses(probe)
            if self._enter(probe, exchange.name, known):
                return
        if not self._looking_up.waits(probe):  # else a look-up may still find one
            cause = probe.cause or NO_ADDRESS
            self.settle(probe, cause.outcome, cause.rule)

    def _found(self, probe: Probe, place: int, answer: AddressAnswer) -> None:
        """The look-up of an exchange is done: try it, or go on if it was the latest one begun."""
        last, probe.exchange_index = probe.exchange_index, place
        if not self._enter(probe, probe.exchanges[place].name, answer):
            probe.exchange_index = last
            if place == last or not self._looking_up.waits(probe):
                self._next_exchange(probe)

    def _enter(self, probe: Probe, name: str, answer: AddressAnswer) -> bool:
        """Queue the probe at the exchange's pool; False if it has no usable address."""
        if isinstance(answer, Addresses):
            if usable := self._usable(answer.ips):
                self._looking_up.drop(probe)
                pool = self._pool_at(usable, name, patient=probe.patient)
                pool.join((probe,), self._now())
                self.permits.waits.joined(pool, (probe,))
                return True
            cause = NOT_PUBLIC
        else:
            cause = NO_ADDRESS if isinstance(answer, NoAddress) else LOOKUP_FAILED
        if probe.notes is not None:
            probe.notes.tried.append(ConnectionAttempt(name, None, cause.words))
        # The cause of an exchange that was tried says more than of one that could not be.
        if probe.cause in NEVER_TRIED:
            probe.cause = cause
        return False

    def _usable(self, ips: tuple[str, ...]) -> tuple[str, ...]:
        if self.settings.allow_private:
            return ips
        return tuple(ip for ip in ips if is_public(ip))

    # -- tasks and clocks --------------------------------------------------------------------

    def open_channel(self, stream: trio.abc.Stream) -> ByteChannel:
        """A byte channel over the stream, on the reactor if there is one."""
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

    async def keep_time(self, *, patient: bool) -> None:
        """Settle every probe of this kind at its deadline. Runs until cancelled."""
        await self._clocks[patient].keep(self._expire, self._time_out)

    def _expire(self, probe: Probe) -> None:
        if self._looking_up.waits(probe) and probe.cause in NEVER_TRIED:
            self.settle(probe, LOOKUP_FAILED.outcome, LOOKUP_FAILED.rule)
        elif probe.unconfirmed is not None:
            has_changed = probe.pool.controls.has_changed(self._now())
            self.settle(probe, *(CHANGED if has_changed else probe.unconfirmed))
        else:
            self._time_out(probe)

    def _time_out(self, probe: Probe) -> None:
        self.settle(probe, Outcome.TIMED_OUT, OVERALL_CLOCK)

    def _new_pool(self, addresses: tuple[str, ...], name: str, host: str) -> Pool:
        return Pool(addresses, name, host, self)

    def _new_patient_pool(self, addresses: tuple[str, ...], name: str, host: str) -> Pool:
        twin = self.pools[addresses]  # see _pool_at()
        pool = Pool(addresses, name, twin.host, self, patient=True)
        pool.share(twin)
        return pool

    def stop(self) -> None:
        self.closing = True
        self.permits.close()
        self.left_connections.close()

    async def close(self) -> None:
        """Send QUIT on every connection, within `CLOSING_S`."""
        self.stop()
        for pool in self._all_pools():
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
    mint: Callable[[int], str] | None = None,
    observer: Observer = NO_OBSERVER,
    permits: ConnectionBudget | None = None,
) -> AsyncIterator[ProbeDispatcher]:
    """Layer 4. Leaving the block sends QUIT and closes every connection.

    `mint` makes the local part of a random address, of shape 0 or 1; the default is unguessable.
    `permits` is the connection budget; by default it is all that the settings allow.
    """
    async with open_reactor() as reactor, trio.open_nursery() as nursery:
        mint = mint or random_local
        dispatcher = ProbeDispatcher(
            settings, routes, dial, rules, operators, nursery, mint, observer, reactor, permits
        )
        for patient in (False, True):
            nursery.start_soon(supervised, partial(dispatcher.keep_time, patient=patient))
        try:
            yield dispatcher
            await dispatcher.close()
        finally:
            dispatcher.stop()
            nursery.cancel_scope.cancel()
