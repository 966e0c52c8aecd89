"""The parts that every operation may use, as one frozen value made at the start."""

import secrets
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Protocol

import msgspec
from msgspec.structs import asdict

from mailprobe.engine import Engine
from mailprobe.storage import utc_now
from mailprobe.storage.records import Account, Caller
from mailprobe.storage.store import Store

from .admission.overload import AdmissionQueue
from .admission.request_bodies import BodyBudget
from .doctor.latest import MachineChecks
from .egress.control import StoredControl
from .error_table import Links
from .forms.proof_of_work import ProofOfWork
from .forms.visitors import Networks, VisitorLimit, is_in, visitor_address
from .keys import Draw, KeyUses
from .observability.metrics import Load
from .observability.reputation import ReputationCounter
from .observability.request_context import NO_REQUEST_LOG, RequestLog
from .observability.throughput import Throughput
from .quota.background_writes import BackgroundWrites
from .quota.bounced import BouncedAddresses
from .quota.capacity import LISTED, Capacity
from .quota.list_limits import LIST_LIMITS, ListLimits
from .quota.pauses import FleetPauses
from .quota.plans import PLANS, Plans
from .quota.self_protection import SelfProtection
from .quota.service import QuotaService, Watch, not_observed
from .store_health import StoreCheck


class Payments(Protocol):
    """The port to the billing provider."""

    @property
    def receives_events(self) -> bool:
        """Are the provider's webhook events accepted here?"""
        ...

    async def portal_url(self, account: Account, return_url: str | None) -> str | None:
        """Return the URL of the account's billing portal; None if nothing is billed.

        Made on demand, never logged. Raises ProviderUnavailable.
        """
        ...

    async def receive_event(self, octets: bytes, signature: str) -> None:
        """Check the signature of a provider event and apply it.

        Raises InvalidRequest for a wrong signature, ProviderUnavailable if the provider must
        send the event again, NoSuchRoute if no events are accepted.
        """
        ...


class JobService(Protocol):
    """Asynchronous verification, as its request handler needs it."""

    def wake(self) -> None:
        """A job was stored: start it now."""
        ...

    def stop(self) -> None:
        """Start no more jobs; running ones get a few seconds to end."""
        ...


class AlertService(Protocol):
    """Mails about reached thresholds, as the dashboard needs them."""

    @property
    def has_relay(self) -> bool:
        """Are mails sent?"""
        ...

    async def send_test(self, caller: Caller) -> None:
        """Send the account a test mail, at most one a minute. Raises StoreUnavailable."""
        ...


class OpenIdFailed(Exception):
    """The provider, or what came in its name, proves no address. The message has no secret."""


class OpenIdAttempt(msgspec.Struct, frozen=True):
    """A sign-in at a provider under way, which a signed cookie of the browser keeps."""

    state: str
    nonce: str
    verifier: str
    page: str  # where to go afterwards


class SignInMailService(Protocol):
    """Mails with links that sign in. They are sent soon, and not waited for."""

    def send_link(self, to: str, token: str, until: datetime) -> None: ...

    def send_invitation(self, to: str, token: str, until: datetime, role: str, by: str) -> None: ...


class OpenIdService(Protocol):
    """Sign-in by an OpenID provider."""

    @property
    def name(self) -> str:
        """The provider's host."""
        ...

    async def url_of(self, attempt: OpenIdAttempt) -> str:
        """Where the browser goes to sign in. Raises OpenIdFailed."""
        ...

    async def email_of(self, attempt: OpenIdAttempt, answer: Mapping[str, str]) -> str:
        """The verified address of whoever signed in. Raises OpenIdFailed."""
        ...


class RecentAccounts:
    """Accounts whose assistants this process has answered; the oldest are forgotten.

    It only ticks off a step for beginners, so it need not outlive the process.
    """

    ACCOUNTS_MAX = 1_000

    def __init__(self) -> None:
        self._ids: dict[str, None] = {}

    def add(self, account_id: str) -> None:
        self._ids[account_id] = None
        if len(self._ids) > self.ACCOUNTS_MAX:
            del self._ids[next(iter(self._ids))]

    def __contains__(self, account_id: str) -> bool:
        return account_id in self._ids


class Deployment(msgspec.Struct, frozen=True):
    """Where and how a service runs, for its operator."""

    started_at: datetime  # of this process
    workers: int = 1
    database: str = ""  # without a password
    folders: Mapping[str, Path] = msgspec.field(default_factory=dict)  # by what is in them
    workers_alive: Callable[[], int] | None = None  # None: the workers share no counters
    checks: MachineChecks | None = None
    throughput: Throughput | None = None  # None: it is not counted


class Build(msgspec.Struct, frozen=True):
    """Which program this is."""

    version: str
    commit: str
    schema: int  # of its database

    def headers(self) -> dict[str, str]:
        """The same as response headers."""
        return {f"Mailprobe-{name.title()}": str(value) for name, value in asdict(self).items()}


class Service(msgspec.Struct, frozen=True):
    """The parts of a running service, for its handlers."""

    store: Store
    quota: QuotaService
    background_writes: BackgroundWrites
    plans: Plans
    links: Links
    capacity: Capacity
    now: Callable[[], datetime]
    draw: Draw
    store_check: StoreCheck
    payments: Payments | None = None  # None: no billing provider
    alerts: AlertService | None = None  # None: no alerts
    sign_in_mails: SignInMailService | None = None  # None: no mail is set up
    openid: OpenIdService | None = None  # None: no provider is set
    jobs: JobService | None = None  # None: no jobs
    lists: JobService | None = None  # None: no lists
    takes_test_keys: bool = True
    reputation: ReputationCounter | None = None  # None: nothing is counted
    key_uses: KeyUses = msgspec.field(default_factory=KeyUses)
    operators: frozenset[str] | None = None  # ids or e-mail addresses; None: the first account
    tools_url: str = ""  # public, of the tool server; empty: there is none
    assistants: RecentAccounts = msgspec.field(default_factory=RecentAccounts)
    about_probes: str | None = None  # Markdown of /about-probes; None: made from our settings
    deployment: Deployment | None = None  # None: nothing is known
    request_log: RequestLog = NO_REQUEST_LOG
    admission_queue: AdmissionQueue = msgspec.field(
        default_factory=AdmissionQueue
    )  # of all listeners
    intake: BodyBudget = msgspec.field(default_factory=BodyBudget)  # of all listeners
    list_limits: ListLimits = LIST_LIMITS
    visitors: VisitorLimit = msgspec.field(default_factory=VisitorLimit)  # of forms
    proof_of_work: ProofOfWork | None = None  # of forms; None: none is needed
    build: Build | None = None  # None: it is not shown
    egress_control: StoredControl | None = None  # None: there is no file of egresses
    trusted_proxies: Networks = ()  # whose X-Forwarded-For is believed

    def visitor(self, peer: str, forwarded_for: str) -> str:
        """The address of the client of a request that came from `peer`, behind trusted proxies too."""
        if forwarded_for and not is_in(peer, self.trusted_proxies):
            self.visitors.warn_of_proxy(peer)
        return visitor_address(peer, forwarded_for, self.trusted_proxies)

    def load(self) -> Load:
        """What this process has under way."""
        return Load(
            self.quota.engine.probing.overview.statistics(), self.capacity.addresses,
            self.capacity.addresses_max, self.background_writes.pending,
            self.quota.protection.blind,
            () if self.egress_control is None else tuple(self.egress_control.overview()),
            self.quota.pauses.drained,
        )  # fmt: skip


def new_service(
    *,
    store: Store,
    engine: Engine,
    background_writes: BackgroundWrites,
    links: Links,
    plans: Plans = PLANS,
    addresses_max: int | None = None,
    now: Callable[[], datetime] = utc_now,
    draw: Draw = secrets.randbelow,
    payments: Payments | None = None,
    reports_usage: bool = False,
    watch: Watch = not_observed,
    request_log: RequestLog = NO_REQUEST_LOG,
    takes_test_keys: bool = True,
    operators: frozenset[str] | None = None,
    form_proof_bits: int = 0,
    protection: SelfProtection | None = None,
    pauses: FleetPauses | None = None,
) -> Service:
    """Put the parts together.

    `addresses_max` limits the addresses under way, by default to the engine's `probes_max`.
    `reports_usage`: billable units go to the billing provider. `watch` is called with every
    caller whose usage has changed, `request_log` with every request. `form_proof_bits`: how much
    work a check of a form takes; 0 is none.
    """
    most = addresses_max or engine.settings.probes_max
    capacity, list_capacity = Capacity(most), Capacity(LISTED * most)
    quota = QuotaService(
        store, engine, background_writes, plans, capacity, list_capacity, now,
        BouncedAddresses(store), reports_usage, watch,
        protection=protection or SelfProtection(), pauses=pauses or FleetPauses(),
    )  # fmt: skip
    return Service(
        store, quota, background_writes, plans, links, capacity, now, draw, StoreCheck(store, background_writes),
        payments, request_log=request_log, takes_test_keys=takes_test_keys, operators=operators,
        proof_of_work=ProofOfWork(store.derived_key("form challenges"), form_proof_bits) if form_proof_bits else None,
    )  # fmt: skip
