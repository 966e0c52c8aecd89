"""The mail hosts as one egress knows them, and what it may do there.

How a host treats one egress says little of another, so each has hosts, permits, tolerances and
back-offs of its own. The key of a host is the egress and its addresses.
"""

from collections.abc import Iterator, Sequence
from itertools import chain

import trio
from msgspec import Struct

from ...background import ContainedTasks
from ...dns.messages import Addresses, MailExchange
from ...dns.routes import Routes
from ...egress import DEFAULT_NAME, Egress
from ...net.dialer import Dial
from ...net.reactor import Reactor, StreamChannel
from ...settings import EngineSettings
from ..address_lookups import other_family
from ..catchall import Domains
from ..connection_budget import ConnectionBudget, OwnBudget
from ..controls import EgressControls, HostControls, SharedControls
from ..host.engine_shared_cache import EngineSharedCache
from ..host.hedges import Hedges
from ..host.host import Host, HostKnowledge, Probes
from ..host.host_shared_cache import HostSharedCache, egress_of
from ..host.hosts import Hosts
from ..host.left_connections import LeftConnections
from ..host.opening import ConnectionOpener
from ..host.permits import Permits
from ..host.resting import HostFindings
from ..host.serving import EgressNetwork, run_connection
from ..host_memory import HostMemory
from ..host_policy import first_terms
from ..leases.ledger import RefusalLedger
from ..leases.refusal_leases import RefusalLeases
from ..pairing import Renamings
from ..probe import Probe
from ..tolerance.hosts import Attach, Tolerances

CLOSING_S = 1.0  # for QUIT and its answers when the engine closes


class NewHosts(Struct, frozen=True):
    """Makes the mail hosts of one egress, with what each of them begins with."""

    _egress: "EgressHosts"
    _controls: SharedControls | None  # None where it is the only one
    _tolerances: Tolerances

    def ordinary(self, addresses: tuple[str, ...], name: str, key: str) -> Host:
        egress, shared = self._egress, self._controls
        known = HostKnowledge(
            first_terms(egress.settings.mail_from),
            Renamings(),
            HostControls(None if shared is None else EgressControls(egress.name, shared)),
            self._tolerances.find(addresses, name),
        )
        host = Host(addresses, name, key, egress, known, patient=False)
        if egress.host_memory.is_struck(name):
            host.rest.struck_elsewhere()
        return host

    def patient(self, addresses: tuple[str, ...], name: str, key: str) -> Host:
        """The counterpart of an ordinary one."""
        egress = self._egress
        [other] = filter(None, [egress.hosts.peek(addresses)])  # see host_at()
        return Host(addresses, name, other.identity.key, egress, other.known, patient=True)


class EgressHosts:
    """The mail hosts by one egress. Implements `ConnectionEgress` for them."""

    __slots__ = (
        *("closing", "domains", "findings", "hedges", "host_memory", "hosts", "is_out"),
        *("left_connections", "name", "network", "patient_hosts", "permits", "probes"),
        *("settings", "tasks"),
    )

    def __init__(
        self,
        probes: Probes,
        egress: Egress,
        settings: EngineSettings,
        routes: Routes,
        dial: Dial,
        nursery: trio.Nursery,
        reactor: Reactor | None,
        domains: Domains,
        controls: SharedControls | None,
        permits: ConnectionBudget | None,
        fleet: EngineSharedCache | None,
        refusals: RefusalLedger | Attach | None,
    ) -> None:
        """`settings` have the names of this egress. `controls` are None where it is the only one."""
        self.probes = probes
        self.name = egress.name
        self.settings = settings
        self.network = EgressNetwork(
            routes,
            dial,
            StreamChannel if reactor is None else reactor.open_channel,
            "" if egress.source is None else ":" if ":" in egress.source else ".",
            settings.allow_private,
        )
        tolerances = Tolerances(
            refusals
            if refusals is None or callable(refusals)
            else RefusalLeases(refusals, self.client).attach
        )
        self.domains = domains
        self.closing = False
        self.is_out = False  # paused or in quarantine
        now = trio.lowlevel.current_clock().current_time
        self.host_memory = HostMemory(now)
        new = NewHosts(self, controls, tolerances)
        self.hosts = Hosts(self.host_memory, new.ordinary, now)
        self.patient_hosts = Hosts(self.host_memory, new.patient, now, self.hosts.at_address)
        self.findings: HostFindings | None = None
        if fleet is not None:
            self.findings = HostSharedCache(
                *(fleet, self.client, settings.cache_s, routes, domains, self.host_memory),
                (self.hosts, self.patient_hosts),
            )
        self.permits = Permits(
            settings.host_connections,
            OwnBudget(settings.host_connections) if permits is None else permits,
            self.hosts.at_address,
            probes.turn,
            settings.probe_s,
        )
        self.tasks = ContainedTasks(nursery)
        self.left_connections = LeftConnections(self.permits, self.tasks.start)
        self.hedges = Hedges(routes, self.hosts, self.network.usable, self.tasks.start)

    @property
    def client(self) -> str:
        """As other processes know this egress."""
        return egress_of(self.settings) if self.name == DEFAULT_NAME else self.name

    # -- finding a host --------------------------------------------------------------------------

    def all_hosts(self) -> Iterator[Host]:
        return chain(self.hosts.values(), self.patient_hosts.values())

    def host_of(self, exchange: MailExchange, *, patient: bool = False) -> Host | None:
        """The exchange's host for such probes; None if its addresses are unknown or not public."""
        known = self.network.routes.cached_addresses(exchange.name)
        if not isinstance(known, Addresses) or not (usable := self.network.usable(known.ips)):
            return None
        return self.host_at(usable, exchange.name, patient=patient)

    def host_at(self, addresses: tuple[str, ...], name: str, *, patient: bool) -> Host:
        """The host at these addresses; a patient probe has another one unless it is known to be quick."""
        host = self.hosts.find(addresses, name)
        if not patient or host.times.is_quick:
            return host
        counterpart = self.patient_hosts.find(addresses, name)
        host.staffing.pair_with(counterpart)
        counterpart.staffing.pair_with(host)
        return counterpart

    def reaches(self, exchange: MailExchange) -> bool:
        """Can this egress connect to addresses of the exchange's family, as far as we know?"""
        known = self.network.routes.cached_addresses(exchange.name)
        return not isinstance(known, Addresses) or bool(self.network.of_family(known.ips))

    def is_refused_at(self, exchange: MailExchange, domain: str) -> bool:
        """Do we leave this host, or the domain there, alone because it refused this egress?"""
        known = self.network.routes.cached_addresses(exchange.name)
        if isinstance(known, Addresses):
            host = self.hosts.peek(self.network.usable(known.ips))
            if host is not None:
                return self.is_refused(host, domain)
        cause = self.host_memory.name_backoff(exchange.name, trio.current_time())
        return cause is not None and cause.about_us

    def is_refused(self, host: Host, domain: str) -> bool:
        """Likewise, for a host that is known."""
        now = trio.current_time()
        cause = (
            host.rest.cause
            if host.rest.backoff.active(now)
            else self.domains.refusal(host.identity.key, domain, now)
        )
        return cause is not None and cause.about_us

    async def other_addresses(self, host: Host, account: str) -> tuple[str, ...]:
        """The usable addresses of the exchange in the family that the host has none of."""
        found = await other_family(
            self.network.routes, host.identity.name, host.identity.addresses, account
        )
        return self.network.usable(found)

    # -- what happens there ----------------------------------------------------------------------

    def join(self, host: Host, probes: Sequence[Probe]) -> None:
        """Queue probes at one of its hosts."""
        host.join(probes, trio.current_time())
        if host.staffing.is_silent:
            self.hedges.hedge(host, probes)
        if host in self.permits.waits.present:
            self.permits.waits.joined(host, probes)

    def admit_probes(self, *, is_out: bool) -> None:
        """Admit probes, or stop: then those that wait here for a connection are settled.

        Another egress asks instead. Conversations that are under way are ended as usual.
        """
        self.is_out = is_out
        for host in list(self.all_hosts()) if is_out else ():
            for probe in host.waiting.live():
                host.waiting.requeue(probe, last=True)
            host.staffing.sessions.close_idle()

    def connect(self, host: Host, permit_at: str | None) -> None:
        """Open one more connection of the host."""
        open_one = ConnectionOpener(host, host.staffing.openings, self).open
        self.tasks.start(run_connection, host, self, open_one, permit_at)

    def stop(self) -> None:
        self.closing = True
        self.permits.close()
        self.left_connections.close()

    async def close(self) -> None:
        """Send QUIT on every connection, within `CLOSING_S`."""
        self.stop()
        for host in self.all_hosts():
            host.staffing.sessions.withdraw_all()
        with trio.move_on_after(CLOSING_S):
            await self.tasks.wait()
