"""What every operation may use: one frozen value, made once when the service starts."""

import secrets
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Protocol

from mailprobe.api.http.overload import Anteroom
from mailprobe.api.http.request_bodies import Intake
from mailprobe.api.keys import Draw
from mailprobe.api.observability.request_context import NOBODY, Porter
from mailprobe.api.quota.background_writes import Recorder
from mailprobe.api.quota.capacity import Capacity
from mailprobe.api.quota.plans import PLANS, Plan, Plans
from mailprobe.api.quota.service import Meter, Watch, nobody_watches
from mailprobe.api.rest.errors import Places
from mailprobe.api.store_health import StoreCheck
from mailprobe.engine import Engine
from mailprobe.storage.contract import Store
from mailprobe.storage.records import Account, Caller, FirstAnswer, Job, JobOrder


def utc_now() -> datetime:
    return datetime.now(UTC)


class Payments(Protocol):
    """The port to the billing provider."""

    @property
    def takes_events(self) -> bool:
        """Does the provider tell of its subscriptions here?"""
        ...

    async def portal_url(self, account: Account, return_url: str | None) -> str | None:
        """Where the account's owner sees the bills; None where there is nothing billed.

        Made on demand, never logged. Raises ProviderUnavailable.
        """
        ...

    async def take_event(self, octets: bytes, signature: str) -> None:
        """What the provider tells of a subscription, checked and believed.

        Raises InvalidRequest for what the provider did not sign, ProviderUnavailable
        where it must tell it again later, NoSuchRoute where nothing is expected.
        """
        ...


class Jobs(Protocol):
    """Asynchronous verification, as far as its handler needs it."""

    async def promise(
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
    meter: Meter
    recorder: Recorder
    plans: Plans
    places: Places
    capacity: Capacity
    now: Callable[[], datetime]
    draw: Draw
    store_check: StoreCheck
    payments: Payments | None = None  # None: nothing is billed through a provider
    jobs: Jobs | None = None  # None: nothing runs in the background
    porter: Porter = NOBODY
    anteroom: Anteroom = field(default_factory=Anteroom)  # of all its doors
    intake: Intake = field(default_factory=Intake)  # the same

    def plan(self, caller: Caller) -> Plan:
        return self.plans[caller.account.tier]


def new_service(
    *,
    store: Store,
    engine: Engine,
    recorder: Recorder,
    places: Places,
    plans: Plans = PLANS,
    addresses_max: int | None = None,
    now: Callable[[], datetime] = utc_now,
    draw: Draw = secrets.randbelow,
    payments: Payments | None = None,
    metered: bool = False,
    watch: Watch = nobody_watches,
    porter: Porter = NOBODY,
) -> Service:
    """Put the parts together. `addresses_max` are those under way at a time: the engine's.

    `metered`: what is billable is reported to the billing provider. `watch` is told
    of every caller whose usage has changed, `porter` of every request.
    """
    capacity = Capacity(addresses_max or engine.settings.probes_max)
    meter = Meter(store, engine, recorder, plans, capacity, now, metered, watch)
    return Service(
        store, meter, recorder, plans, places, capacity, now, draw, StoreCheck(store, recorder),
        payments, porter=porter,
    )  # fmt: skip
