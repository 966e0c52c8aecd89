"""What every operation may use: one frozen value, made once when the service starts."""

import secrets
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Protocol

from mailprobe.api.http.overload import AdmissionQueue
from mailprobe.api.http.request_bodies import BodyBudget
from mailprobe.api.keys import Draw
from mailprobe.api.observability.request_context import NO_REQUEST_LOG, RequestLog
from mailprobe.api.quota.background_writes import BackgroundWrites
from mailprobe.api.quota.capacity import Capacity
from mailprobe.api.quota.plans import PLANS, Plans, PricingPlan
from mailprobe.api.quota.service import QuotaService, Watch, not_observed
from mailprobe.api.rest.errors import Links
from mailprobe.api.store_health import StoreCheck
from mailprobe.engine import Engine
from mailprobe.storage.contract import Store
from mailprobe.storage.records import Account, Caller, FirstAnswer, Job, JobOrder


def utc_now() -> datetime:
    return datetime.now(UTC)


class Payments(Protocol):
    """The port to the billing provider."""

    @property
    def receives_events(self) -> bool:
        """Does the provider tell of its subscriptions here?"""
        ...

    async def portal_url(self, account: Account, return_url: str | None) -> str | None:
        """Where the account's owner sees the bills; None where there is nothing billed.

        Made on demand, never logged. Raises ProviderUnavailable.
        """
        ...

    async def receive_event(self, octets: bytes, signature: str) -> None:
        """What the provider tells of a subscription, checked and believed.

        Raises InvalidRequest for what the provider did not sign, ProviderUnavailable
        where it must tell it again later, NoSuchRoute where nothing is expected.
        """
        ...


class JobService(Protocol):
    """Asynchronous verification, as far as its handler needs it."""

    async def submit(
        self,
        caller: Caller,
        order: JobOrder,
        headers: MutableMapping[str, str],
        first: FirstAnswer | None = None,
    ) -> Job:
        """Grant one unit and keep the job, and `first` with it, durably; its work begins at once. Raises a Refusal."""
        ...

    def stop(self) -> None:
        """Begin no more work; what is under way has a few seconds to end."""
        ...


@dataclass(frozen=True, slots=True)
class Service:
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
    payments: Payments | None = None  # None: nothing is billed through a provider
    jobs: JobService | None = None  # None: nothing runs in the background
    request_log: RequestLog = NO_REQUEST_LOG
    admission_queue: AdmissionQueue = field(default_factory=AdmissionQueue)  # of all its doors
    intake: BodyBudget = field(default_factory=BodyBudget)  # the same

    def plan(self, caller: Caller) -> PricingPlan:
        return self.plans[caller.account.tier]


def new_service(
    *,
    store: Store,
    engine: Engine,
    background_writes: BackgroundWrites,
    places: Links,
    plans: Plans = PLANS,
    addresses_max: int | None = None,
    now: Callable[[], datetime] = utc_now,
    draw: Draw = secrets.randbelow,
    payments: Payments | None = None,
    metered: bool = False,
    watch: Watch = not_observed,
    request_log: RequestLog = NO_REQUEST_LOG,
) -> Service:
    """Put the parts together. `addresses_max` are those under way at a time: the engine's.

    `metered`: what is billable is reported to the billing provider. `watch` is told
    of every caller whose usage has changed, `request_log` of every request.
    """
    capacity = Capacity(addresses_max or engine.settings.probes_max)
    quota = QuotaService(store, engine, background_writes, plans, capacity, now, metered, watch)
    return Service(
        store, quota, background_writes, plans, places, capacity, now, draw, StoreCheck(store, background_writes),
        payments, request_log=request_log,
    )  # fmt: skip
