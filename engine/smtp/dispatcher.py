"""Layer 4: accepts probes and settles each of them once.

The dispatcher keeps the overall deadline of each probe, finds the pool of its exchange,
fails over to the next exchange, and counts the probes under way. A probe is settled by
its deadline at the latest, even if its connection still waits; a later reply is dropped.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

import trio

from ..background import contained_until, log_fault
from ..dns.messages import AddressAnswer, Addresses, MailExchange, NoAddress
from ..dns.routes import Routes
from ..egress import DEFAULT_NAME, Egress
from ..evidence import ConnectionAttempt
from ..net.dialer import Dial
from ..net.public_addresses import is_public
from ..net.reactor import ByteChannel, Reactor, StreamChannel
from ..observer import NO_OBSERVER, EngineStatistics, Observer
from ..settings import EngineSettings
from ..verdict import LADDER, Outcome
from .address_lookups import (
    LOOKUP_FAILED,
    LOOKUP_LAGGED,
    NEVER_TRIED,
    NO_ADDRESS,
    NOT_PUBLIC,
    OTHER_FAMILY,
    AddressLookups,
)
from .backoff import RestingHost
from .catchall import RANDOM_UNANSWERED, DomainAcceptance, Domains
from .connection_budget import ConnectionBudget, OwnBudget
from .controls import (
    CHANGED_RULE,
    CHANGED_S,
    UNCONFIRMED_RULE,
    SharedControls,
)
from .host_memory import HostMemory
from .leases.ledger import RefusalLedger
from .leases.refusal_leases import RefusalLeases
from .operators import MailOperators
from .pool.catchall_tests import continue_test, refused_as_unknown
from .pool.engine_shared_cache import EngineSharedCache
from .pool.hedges import Hedges
from .pool.host_shared_cache import HostSharedCache, egress_of
from .pool.left_connections import LeftConnections
from .pool.opening import ConnectionOpener
from .pool.overview import resting_hosts, spent_budgets
from .pool.permits import Permits
from .pool.pool import Pool
from .pool.pools import Pools
from .pool.resting import HostFindings
from .pool.serving import run_connection
from .probe import AWAITS_EGRESS, EGRESS_OUT_RULE, Cause, Probe, Relief
from .replies.rules import Rules
from .tolerance.hosts import SpentBudget, Tolerances
from .tolerance.limits import BAN_RULE
from .turn import Turn

UNANSWERED = (Outcome.TIMED_OUT, Outcome.CONVERSATION_FAILED)
OVERDUE = Cause(Outcome.TIMED_OUT, "clock.overall", "no answer by its deadline")
EGRESS_OUT = Cause(Outcome.NO_EGRESS, EGRESS_OUT_RULE, "its egress may ask no more")
PERMIT_CLOCK = "clock.permit"  # likewise, because no permit was free
CHANGED = (Outcome.HOST_CHANGED, CHANGED_RULE)
CLOSING_S = 1.0  # for QUIT and its answers when the engine closes


class ProbeDispatcher:
    """Every probe under way by one egress."""

    # With more than 30 attributes Python keeps a slower dict for each object: 6 µs per address.
    __slots__ = (
        *("_all_done", "address_lookups", "_marker", "_now", "_nursery", "_reactor", "_relief"),
        *("_routes", "tasks", "tolerances", "turn"),
        *("_watched", "client", "closing", "controls", "dial", "domains", "egress"),
        *("hedges", "findings", "host_memory", "is_out", "left_connections", "observer"),
        *("opening_clock", "operators", "patient_pools", "permits", "pools", "rules", "settings"),
    )

    def __init__(
        self,
        settings: EngineSettings,
        routes: Routes,
        dial: Dial,
        rules: Rules,
        operators: MailOperators,
        nursery: trio.Nursery,
        mint: Callable[[int], str] | None,
        observer: Observer = NO_OBSERVER,
        reactor: Reactor | None = None,
        permits: ConnectionBudget | None = None,
        egress: Egress | None = None,
        domains: Domains | None = None,
        controls: SharedControls | None = None,
        turn: Turn[Pool] | None = None,
        relief: Relief | None = None,
        fleet: EngineSharedCache | None = None,
        refusals: RefusalLedger | None = None,
    ) -> None:
        """From `domains` to `relief`: of several dispatchers, one for each egress."""
        self.settings = settings
        egress = egress or Egress()
        self.egress = egress.name
        # What the addresses have in them that it can connect to; empty: it can to all.
        self._marker = "" if egress.source is None else ":" if ":" in egress.source else "."
        self.observer = observer
        self._watched = observer is not NO_OBSERVER
        self.rules = rules
        self.operators = operators
        # As other processes know this egress.
        self.client = egress_of(settings) if egress.name == DEFAULT_NAME else egress.name
        leases = None if refusals is None else RefusalLeases(refusals, self.client)
        self.tolerances = Tolerances(None if leases is None else leases.attach)
        self.dial = dial
        self.domains = Domains(settings.cache_s, mint) if domains is None else domains
        self.controls = None if controls is None else controls.by(egress.name)
        self.closing = False
        self.is_out = False  # its egress is paused or in quarantine
        self._routes = routes
        self.opening_clock = routes.clock
        self._nursery = nursery
        self._reactor = reactor
        self._relief = relief
        self._now = trio.lowlevel.current_clock().current_time
        self.turn = Turn[Pool](settings) if turn is None else turn
        self.host_memory = HostMemory(self._now)
        self.pools = Pools(operators, self.host_memory, self._new_pool, self._now)
        self.patient_pools = Pools(
            operators, self.host_memory, self._new_patient_pool, self._now, self.pools.at_address
        )
        self.findings: HostFindings | None = None
        if fleet is not None:
            both = self.pools, self.patient_pools
            kept_s, memory = settings.cache_s, self.host_memory
            facts = HostSharedCache(fleet, self.client, kept_s, routes, self.domains, memory, both)
            self.domains.listen(facts)
            self.findings = facts
        self.permits = Permits(
            settings.host_connections,
            OwnBudget(settings.host_connections) if permits is None else permits,
            self.pools.at_address,
            self.turn,
            settings.probe_s,
        )
        self.left_connections = LeftConnections(self.permits, self.start)
        self.hedges = Hedges(routes, self.pools, self._usable, self.start)
        self.address_lookups = AddressLookups(
            routes, self._found, self._next_exchange, self.turn.run
        )
        self.tasks = 0
        self._all_done = trio.Event()

    # -- submitting and settling --------------------------------------------------------------

    def hosts_backing_off(self) -> list[RestingHost]:
        """The mail hosts that are left alone now, and why."""
        return resting_hosts(self.all_pools(), self.host_memory, self._now())

    def spent_budgets(self) -> list[SpentBudget]:
        """The hosts that have refused recipients within the hour, and what they tolerate."""
        return spent_budgets(self.pools.values(), self.client, self._now())

    def statistics(self) -> EngineStatistics:
        """Return current counts. Visits every host: call it once a second, not per address."""
        now, pools = trio.current_time(), list(self.all_pools())
        return EngineStatistics(
            probes=self.turn.under_way,
            probes_in_flight=len(self.turn.waiting),
            probes_waiting=sum(len(pool.waiting) for pool in pools),
            connections=self.permits.in_use,
            hosts=len(self.pools),
            hosts_backing_off=sum(pool.rest.backoff.active(now) for pool in pools),
            hosts_waiting=self.permits.demand,
        )

    def submit(self, probe: Probe) -> None:
        """Start the probe's deadline and queue it; `on_settled` is called once, in a turn.

        The caller runs the turn once it has submitted all that it has.
        """
        self.turn.begin((probe,))
        self.queue(probe)

    def queue(self, probe: Probe) -> None:
        """Try its exchanges once there is a place for it. Its clock has begun."""
        probe.belong_to(self)
        self.turn.queue(probe)

    def submit_to(self, pool: Pool, probes: Sequence[Probe]) -> None:
        """Submit probes whose first exchange has this pool; at most `room` of them. See submit()."""
        if not self.turn.begin_together(probes):
            for probe in probes:
                self.submit(probe)
            return
        for probe in probes:
            probe.belong_to(self)
            if self._watched or probe.notes is not None:
                self._recall_addresses(probe)
            probe.try_exchange(0)
        self._join(pool, probes)

    def _join(self, pool: Pool, probes: Sequence[Probe]) -> None:
        pool.join(probes, self._now())
        if pool.is_silent:
            self.hedges.hedge(pool, probes)
        self.permits.waits.joined(pool, probes)

    def pool_of(self, exchange: MailExchange, *, patient: bool = False) -> Pool | None:
        """The exchange's pool for such probes; None if its addresses are unknown or not public."""
        known = self._routes.cached_addresses(exchange.name)
        if not isinstance(known, Addresses) or not (usable := self._usable(known.ips)):
            return None
        return self._pool_at(usable, exchange.name, patient=patient)

    def pools_of(
        self, domain: str, exchanges: Sequence[MailExchange], count: int, *, patient: bool
    ) -> list[Pool | None]:
        """The pools of the first exchanges of a domain; see pool_of()."""
        return [self.pool_of(exchange, patient=patient) for exchange in exchanges[:count]]

    def reaches(self, exchange: MailExchange) -> bool:
        """Can this egress connect to addresses of the exchange's family, as far as we know?"""
        known = self._routes.cached_addresses(exchange.name)
        return not isinstance(known, Addresses) or bool(self._of_family(known.ips))

    def is_refused_at(self, exchange: MailExchange, domain: str) -> bool:
        """Do we leave this host, or the domain there, alone because it refused this egress?"""
        known = self._routes.cached_addresses(exchange.name)
        if isinstance(known, Addresses):
            pool = self.pools.peek(self._usable(known.ips))
            if pool is not None:
                return self.is_refused(pool, domain)
        cause = self.host_memory.name_backoff(exchange.name, self._now())
        return cause is not None and cause.about_us

    def is_refused(self, pool: Pool, domain: str) -> bool:
        """Likewise, by the pool of the host."""
        now = self._now()
        cause = (
            pool.rest.cause
            if pool.rest.backoff.active(now)
            else self.domains.refusal(pool.host, domain, now)
        )
        return cause is not None and cause.about_us

    def _pool_at(self, addresses: tuple[str, ...], name: str, *, patient: bool) -> Pool:
        """The host's pool; a patient probe has another one unless the host is known to be quick."""
        pool = self.pools.find(addresses, name)
        if not patient or pool.times.is_quick:
            return pool
        counterpart = self.patient_pools.find(addresses, name)
        pool.pair_with(counterpart)
        return counterpart

    def all_pools(self) -> Iterator[Pool]:
        return chain(self.pools.values(), self.patient_pools.values())

    def _recall_addresses(self, probe: Probe) -> None:
        self.observer.recalled("addresses")
        if probe.notes is not None and not probe.notes.lookup_took:
            probe.notes.cached.append("addresses")

    def settle(self, probe: Probe, outcome: Outcome, rule: str) -> None:
        """Settle the probe unless it is settled already."""
        if probe.outcome is not None:
            return
        if outcome is Outcome.TIMED_OUT and probe.pool is not None:
            probe.pool.times.note_slow()
        if probe.accepted and outcome is not Outcome.HOST_CHANGED:
            if not LADDER[outcome].valid:
                # It was sent again only for the catch-all test, and the reply was another.
                outcome, rule = Outcome.DELIVERABLE_UNTESTED, RANDOM_UNANSWERED
            if outcome is Outcome.DELIVERABLE_UNTESTED and probe.of_record and probe.has_patience:
                outcome, rule = Outcome.UNCONFIRMED, UNCONFIRMED_RULE
        elif (
            probe.refused is not None
            and outcome in UNANSWERED
            and probe.refused[0] is not Outcome.UNDELIVERABLE  # which is to be proved
        ):
            outcome, rule = probe.refused  # it was sent again only because of a limit
        elif rule == OVERDUE.rule and self.permits.were_lacking(probe, self.settings):
            outcome, rule = Outcome.NO_CONNECTION_FREE, PERMIT_CLOCK
        if outcome is Outcome.HOST_CHANGED:
            probe.retry_after(CHANGED_S)
        if self._watched:
            self._report(probe, outcome, rule)
        if self._relief is not None and self._relieved(probe, outcome, rule):
            return
        pool: Pool | None = probe.pool
        probe.settle(outcome, rule)
        try:
            if self.address_lookups.pending:
                self.address_lookups.drop(probe)
            self.turn.end(probe, pool)
        except Exception:  # a bug in a host's bookkeeping must not keep the answer from the caller
            log_fault(self.turn.end)
        if probe.accepted:
            continue_test(probe.domain_here)
        elif outcome is Outcome.UNDELIVERABLE and pool is not None:
            domain: DomainAcceptance = probe.domain_here
            if domain.at.unknown_mailbox == probe.mailbox:
                refused_as_unknown(pool, domain)

    def _report(self, probe: Probe, outcome: Outcome, rule: str) -> None:
        place = max(0, probe.exchange_index)
        name = probe.exchanges[place].name if place < len(probe.exchanges) else ""
        self.observer.probe_decided(self.egress, self.operators.id_of(name), outcome, rule)

    def _relieved(self, probe: Probe, outcome: Outcome, rule: str) -> bool:
        """Does another egress go on? A bug there must not keep the answer from the caller."""
        assert self._relief is not None
        try:
            return self._relief.relieve(self.egress, probe, outcome, rule)
        except Exception:
            log_fault(self._relief.relieve)
            return False

    def abandon(self, probes: Iterable[Probe]) -> None:
        """The caller has gone: drop the probes without a report."""
        latest = [probe.latest for probe in probes]
        abandoned = [probe for probe in latest if not probe.settled]
        for probe in abandoned:
            pool: Pool | None = probe.pool
            probe.settle(Outcome.TIMED_OUT, "abandoned")
            (probe.dispatcher or self).address_lookups.drop(probe)
            self.turn.end(probe, pool, is_reported=False)
        for probe in abandoned:
            # Was it to carry its domain's test? Then another one does, and may need a connection.
            if probe.accepted and (carrier := continue_test(probe.domain_here)) is not None:
                carrier.staff()
        self.turn.run()

    def admit_probes(self, *, is_out: bool) -> None:
        """From now on, or no longer: then what waits here for a connection is settled.

        Another egress asks instead. Conversations that are under way are ended as usual.
        """
        self.is_out = is_out
        for pool in list(self.all_pools()) if is_out else ():
            for probe in pool.waiting.pop_all():
                if not pool.session_ended(probe):
                    pool.requeue_last(probe)
            pool.sessions.close_idle()

    def withdrawn(self, probe: Probe) -> bool:
        """Is another egress to ask? Then the probe is settled here: by what an exchange said, if any."""
        relief = self._relief if self.is_out else None
        if relief is None or not relief.is_withdrawn_from(self.egress, probe):
            return False
        if probe.accepted or not self._relieved(probe, Outcome.NO_EGRESS, EGRESS_OUT_RULE):
            cause = EGRESS_OUT if probe.cause in NEVER_TRIED else probe.cause
            self.settle(probe, cause.outcome, cause.rule)
        return True

    def fail_over(self, probe: Probe, cause: Cause) -> None:
        """The exchange tried last failed: try the next one, or settle.

        If it refuses this egress, another one asks it before a less preferred exchange is asked.
        """
        if probe.settled:
            return
        if probe.stopped_at is not None:  # it does not wait for a permit any more
            self.turn.count_places([probe])
        probe.fail(cause)
        if cause.outcome is Outcome.TIMED_OUT and probe.pool is not None:
            probe.pool.times.note_slow()
        failed = cause.outcome in (Outcome.TIMED_OUT, Outcome.CONVERSATION_FAILED)
        final = not failed or cause.rule == BAN_RULE  # a backup would not judge in its place
        if final or probe.exhausted:
            self.settle(probe, cause.outcome, cause.rule)
        elif (
            self._relief is None
            or not (cause.about_us and probe.next_exchange)
            or not self._relieved(probe, cause.outcome, cause.rule)
        ):
            self._next_exchange(probe)

    # -- from one egress to another ----------------------------------------------------------

    def pass_on(self, probe: Probe, outcome: Outcome, rule: str, *, doubted: bool = False) -> Probe:
        """Another egress asks again: return its probe, which has the place and the deadline of this.

        For the sessions that still have it, this probe is settled: with this outcome.
        """
        if probe.stopped_at is not None:
            self.turn.count_places([probe])
        successor = probe.successor_by(self.egress, doubted=doubted)
        probe.end(outcome, rule, successor)
        self.turn.pass_on(probe, successor)
        self.address_lookups.drop(probe)
        pool: Pool | None = probe.pool
        if pool is not None:
            pool.leave()
            probe.leave_host()
            self.turn.mark_freed(pool)
        return successor

    def start_probe(self, probe: Probe) -> None:
        """The probe has a place: try its first exchange."""
        self._next_exchange(probe)

    # -- trying the exchanges in order --------------------------------------------------------

    def _next_exchange(self, probe: Probe) -> None:
        if probe.pool is not None:
            pool: Pool = probe.pool
            pool.leave()
            probe.leave_host()
        if self.withdrawn(probe):
            return
        while probe.exchange_index + 1 < len(probe.exchanges):
            probe.try_exchange(probe.exchange_index + 1)
            exchange = probe.exchanges[probe.exchange_index]
            known = self._routes.cached_addresses(exchange.name)
            if known is None:
                self.address_lookups.begin(probe, probe.exchange_index)
                return
            self._recall_addresses(probe)
            if self._enter(probe, exchange.name, known):
                return
        if not self.address_lookups.waits(probe):  # else a look-up may still find one
            cause = probe.cause or NO_ADDRESS
            self.settle(probe, cause.outcome, cause.rule)

    def _found(self, probe: Probe, place: int, answer: AddressAnswer) -> None:
        """The look-up of an exchange is done: try it, or go on if it was the latest one begun."""
        if self.withdrawn(probe):
            return
        last = probe.exchange_index
        probe.try_exchange(place)
        if not self._enter(probe, probe.exchanges[place].name, answer):
            probe.try_exchange(last)
            if place == last or not self.address_lookups.waits(probe):
                self._next_exchange(probe)

    def _enter(self, probe: Probe, name: str, answer: AddressAnswer) -> bool:
        """Queue the probe at the exchange's pool; False if it has no usable address."""
        if isinstance(answer, Addresses):
            if usable := self._usable(answer.ips):
                self.address_lookups.drop(probe)
                pool = self._pool_at(usable, name, patient=probe.patient)
                self._join(pool, (probe,))
                return True
            cause = NOT_PUBLIC if self._of_family(answer.ips) else OTHER_FAMILY
        elif isinstance(answer, NoAddress):
            cause = NO_ADDRESS
        else:
            cause = LOOKUP_LAGGED if answer.by_lag else LOOKUP_FAILED
        if probe.notes is not None:
            probe.notes.tried.append(ConnectionAttempt(name, None, cause.words))
        # The cause of an exchange that was tried says more than of one that could not be.
        if probe.cause in NEVER_TRIED:
            probe.fail(cause)
        return False

    async def other_addresses(self, pool: Pool, account: str) -> tuple[str, ...]:
        """The usable addresses of the host's exchange in the family that the pool has none of."""
        return self._usable(
            await self.address_lookups.other_family(pool.name, pool.addresses, account)
        )

    def _usable(self, ips: tuple[str, ...]) -> tuple[str, ...]:
        ips = self._of_family(ips)
        return ips if self.settings.allow_private else tuple(filter(is_public, ips))

    def _of_family(self, ips: tuple[str, ...]) -> tuple[str, ...]:
        """From an IPv4 address only IPv4 can be reached."""
        return tuple(ip for ip in ips if self._marker in ip)

    # -- tasks and clocks --------------------------------------------------------------------

    def open_channel(self, stream: trio.abc.Stream) -> ByteChannel:
        """A byte channel over the stream, on the reactor if there is one."""
        return self._reactor.open_channel(stream) if self._reactor else StreamChannel(stream)

    def connect(self, pool: Pool, permit_at: str | None) -> None:
        """Open one more connection of the pool."""
        self.start(run_connection, pool, self, ConnectionOpener(pool, self).open, permit_at)

    def start(self, task: Callable[..., Any], *args: Any) -> None:
        self.tasks += 1
        self._nursery.start_soon(contained_until, self._ended, task, *args)

    def _ended(self) -> None:
        """A task has ended."""
        self.tasks -= 1
        if not self.tasks:
            self._all_done.set()

    def expire(self, probe: Probe) -> None:
        """Its deadline has passed."""
        if self.address_lookups.waits(probe) and probe.cause in NEVER_TRIED:
            cause = self.address_lookups.cause_at_deadline(probe)
            self.settle(probe, cause.outcome, cause.rule)
        elif probe.unconfirmed is not None:
            has_changed = probe.pool.controls.has_changed(self._now())
            self.settle(probe, *(CHANGED if has_changed else probe.unconfirmed))
        else:
            self.time_out(probe)

    def time_out(self, probe: Probe) -> None:
        cause = probe.cause if probe.cause is AWAITS_EGRESS else OVERDUE
        self.settle(probe, cause.outcome, cause.rule)

    def _new_pool(self, addresses: tuple[str, ...], name: str, host: str) -> Pool:
        pool = Pool(addresses, name, host, self)
        if self.host_memory.is_struck(name):
            pool.rest.struck_elsewhere()
        return pool

    def _new_patient_pool(self, addresses: tuple[str, ...], name: str, host: str) -> Pool:
        counterpart = self.pools[addresses]  # see _pool_at()
        pool = Pool(addresses, name, counterpart.host, self, patient=True)
        pool.share(counterpart)
        return pool

    def stop(self) -> None:
        self.closing = True
        self.permits.close()
        self.left_connections.close()

    async def close(self) -> None:
        """Send QUIT on every connection, within `CLOSING_S`."""
        self.stop()
        for pool in self.all_pools():
            pool.sessions.withdraw_all()
        with trio.move_on_after(CLOSING_S):
            while self.tasks:
                self._all_done = trio.Event()
                await self._all_done.wait()
