"""The quota service: the parts that spending units needs, and the leases of reservations.

Units are spent by `charge()` alone (mailprobe.api.quota.charge).
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime

import trio
from msgspec import Struct, field

from mailprobe.engine import Engine
from mailprobe.engine.background import contained
from mailprobe.storage.contract import StoreUnavailable
from mailprobe.storage.records import Caller, Ledger, Reservation, UsageRow
from mailprobe.storage.store import Store

from ..refusals import HardCapReached, QuotaExhausted, RateLimited, Refusal
from .background_writes import BackgroundWrites
from .bounced import BouncedAddresses
from .capacity import Capacity
from .limits import LimitsLeft, limits_left
from .pauses import FleetPauses
from .plans import Plans, PricingPlan, is_reported
from .self_protection import SelfProtection

log = logging.getLogger("mailprobe.quota")

LEASE_S = 20.0  # a dead request's units are free again after this time
EXTEND_EVERY_S = 5.0

CheckLimits = Callable[[Ledger], Refusal | None]

# called with a caller whose usage has changed, or (True) that the hard cap has refused
Watch = Callable[[Caller, bool], None]


def not_observed(caller: Caller, capped: bool) -> None:
    """The `watch` of a service without alerts."""


class Leases(dict[str, tuple[Reservation, float]]):
    """Reservations of requests under way, by id, each with its start on trio's clock."""

    kept = False  # a task is extending them


class QuotaService(Struct, frozen=True):
    """The parts that spend units; one per process.

    Methods raise StoreUnavailable where the store does, if they do not say otherwise.
    """

    store: Store
    engine: Engine
    background_writes: BackgroundWrites
    plans: Plans
    capacity: Capacity  # of requests and jobs
    list_capacity: Capacity
    now: Callable[[], datetime]
    bounced: BouncedAddresses
    reports_usage: bool = False  # billable units go to the billing provider
    watch: Watch = not_observed
    leases: Leases = field(default_factory=Leases)
    protection: SelfProtection = field(default_factory=SelfProtection)
    pauses: FleetPauses = field(default_factory=FleetPauses)

    def plan(self, caller: Caller) -> PricingPlan:
        """The plan of the caller's account; of a test key or a publishable one what holds for it."""
        plan = self.plans[caller.account.tier]
        if caller.key.is_publishable and caller.key.rate_per_min is not None:
            plan = plan.for_publishable_keys(caller.key.rate_per_min)
        return plan.for_test_keys() if caller.key.is_test else plan

    def calls_max(self, caller: Caller) -> int | None:
        """The calls of the billing period after which this key stops, below the account's hard cap."""
        cap = caller.account.hard_cap_micros
        if cap is None or not caller.key.is_publishable:
            return None
        return self.plans[caller.account.tier].publishable_calls_max(cap)

    def reports_usage_of(self, caller: Caller) -> bool:
        """Do the caller's billable units go to the billing meter?

        Those of the free tier never do, and a test key has none.
        """
        return self.reports_usage and is_reported(caller.account.tier) and not caller.key.is_test

    async def limits_of(self, caller: Caller) -> LimitsLeft | None:
        """Return what is left of the limits; None if the store is unavailable."""
        try:
            return limits_left(self.plan(caller), await self.store.ledger(caller))
        except StoreUnavailable:
            return None

    async def log_refusal(self, caller: Caller, refusal: Refusal, operation: str) -> None:
        """Log a 429 as a row, or as part of one; without the store it is not logged."""
        if isinstance(refusal, HardCapReached) and not caller.key.is_publishable:
            self.watch(caller, True)
        if not isinstance(refusal, RateLimited | QuotaExhausted):
            return
        code = "rate_limit_exceeded"
        if isinstance(refusal, QuotaExhausted):
            code = "monthly_quota_exceeded"
        row = UsageRow(refusal.asked_at, operation, None, code, 0, False, 0)
        try:
            await self.store.log_refusal(caller, row)
        except StoreUnavailable:
            log.warning("refusal not recorded: store unavailable")

    @contextmanager
    def holding(self, reservation: Reservation) -> Iterator[None]:
        """Extend the reservation's lease while the block lasts."""
        held = self.leases
        held[reservation.id] = reservation, trio.current_time()
        if not held.kept:
            held.kept = True
            self.background_writes.run_beside(self._keep_leases)
        try:
            yield
        finally:
            del held[reservation.id]

    async def _keep_leases(self) -> None:
        """Extend all leases, in one task: most requests end before theirs needs extending.

        A lease is extended first after one to two EXTEND_EVERY_S, well before it ends.
        """
        try:
            while self.leases:
                await trio.sleep(EXTEND_EVERY_S)
                old = trio.current_time() - EXTEND_EVERY_S
                async with trio.open_nursery() as nursery:
                    for reservation, since in list(self.leases.values()):
                        if since <= old:
                            nursery.start_soon(contained, self._extend, reservation)
        finally:
            self.leases.kept = False

    async def _extend(self, reservation: Reservation) -> None:
        try:
            await self.store.extend(reservation, lease_s=LEASE_S)
        except StoreUnavailable:
            log.warning("lease not extended: store unavailable")
