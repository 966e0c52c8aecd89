"""What every operation may use: one frozen value, made once when the service starts."""

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol

from api.errors import Places
from api.keys import Draw
from api.limits import Capacity
from api.meter import Meter
from api.plans import PLANS, Plan, Plans
from api.recorder import Recorder
from api.visits import NOBODY, Porter
from engine import Engine
from storage.records import Account, Caller
from storage.store import Store


def utc_now() -> datetime:
    return datetime.now(UTC)


class Portal(Protocol):
    """The billing provider, as far as the portal needs it."""

    async def portal_url(self, account: Account, return_url: str | None) -> str | None:
        """Where the account's owner sees the bills; None where there is nothing billed."""
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
    portal: Portal | None = None
    porter: Porter = NOBODY

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
    portal: Portal | None = None,
    porter: Porter = NOBODY,
) -> Service:
    """Put the parts together. `addresses_max` are those under way at a time: the engine's.

    `porter` is told of every request.
    """
    capacity = Capacity(addresses_max or engine.settings.probes_max)
    meter = Meter(store, engine, recorder, plans, capacity, now)
    return Service(store, meter, recorder, plans, places, capacity, now, draw, portal, porter)
