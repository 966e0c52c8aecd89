"""The quota service: checks limits, reserves units, extends reservations and settles them.

Limits are checked in the transaction that reserves. Settlement does not run in the
request's cancel scope, so that a request that dies is settled like any other.
"""

import logging
from collections.abc import Awaitable, Callable, Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import TypeVar

import trio

from mailprobe.api.http.overload import admitted
from mailprobe.api.quota.background_writes import BackgroundWrites
from mailprobe.api.quota.capacity import Capacity, CapacityTicket
from mailprobe.api.quota.headers import limit_headers
from mailprobe.api.quota.plans import Plans, PricingPlan
from mailprobe.api.quota.policy import check_limits
from mailprobe.api.rest.refusals import (
    HardCapReached,
    Overloaded,
    QuotaExhausted,
    RateLimited,
    Refusal,
    TooManyJobs,
)
from mailprobe.engine import Engine
from mailprobe.engine.background import contained
from mailprobe.storage.checks import units_of
from mailprobe.storage.contract import Store, StoreUnavailable
from mailprobe.storage.records import (
    Caller,
    FirstAnswer,
    Job,
    JobOrder,
    Ledger,
    Reservation,
    UsageRow,
)

log = logging.getLogger("mailprobe.meter")

LEASE_S = 20.0  # a dead request's units are free again after this time
EXTEND_EVERY_S = 5.0
JOBS_UNDELIVERED_MAX = 10_000  # per account: each is a row with a payload, kept for days

PIECEMEAL = "stream"  # the operation that delivers its answers one by one

T = TypeVar("T")
CheckLimits = Callable[[Ledger], Refusal | None]

# called with a caller whose usage has changed, or (True) that the hard cap has refused
Watch = Callable[[Caller, bool], None]


def not_observed(caller: Caller, capped: bool) -> None:
    """The `watch` of a service without alerts."""


@dataclass(frozen=True, slots=True)
class Grant:
    """Units reserved for one operation."""

    reservation: Reservation
    operation: str

    @property
    def caller(self) -> Caller:
        return self.reservation.caller


class Leases(dict[str, tuple[Reservation, float]]):
    """Reservations of requests under way, by id, each with its start on trio's clock."""

    kept = False  # a task is extending them


def _check_jobs(ledger: Ledger) -> Refusal | None:
    too_many = ledger.undelivered >= JOBS_UNDELIVERED_MAX
    return TooManyJobs(JOBS_UNDELIVERED_MAX) if too_many else None


@dataclass(frozen=True, slots=True)
class QuotaService:
    """Checks limits, reserves and settles units; one per process.

    Methods raise StoreUnavailable where the store does, if they do not say otherwise.
    """

    store: Store
    engine: Engine
    background_writes: BackgroundWrites
    plans: Plans
    capacity: Capacity
    now: Callable[[], datetime]
    metered: bool = False  # report billable units to the billing provider
    watch: Watch = not_observed
    leases: Leases = field(default_factory=Leases)

    def plan(self, caller: Caller) -> PricingPlan:
        return self.plans[caller.account.tier]

    # reserving

    async def reserve(
        self, caller: Caller, units: int, operation: str, headers: MutableMapping[str, str]
    ) -> Grant:
        """Reserve so many units, or raise a Refusal; `headers` get what is left of the limits.

        A 429 is logged and takes no units. Without free capacity the request waits in its
        account's queue before it is refused.
        """
        account = caller.account.id

        def keep(check_limits_all: CheckLimits) -> Awaitable[Reservation | Refusal]:
            return self.store.reserve(caller, units, check_limits_all, lease_s=LEASE_S)

        with self.capacity.requesting(account, units) as capacity:
            granted = await self._check_limits(caller, units, headers, keep, capacity)
        if isinstance(granted, Overloaded):
            async with self.capacity.waiting(account, units) as capacity:
                if capacity.is_free:
                    granted = await self._check_limits(caller, units, headers, keep, capacity)
        if isinstance(granted, Reservation):
            return Grant(granted, operation)
        await self.log_refusal(caller, granted, operation)
        raise granted

    async def spend(
        self,
        caller: Caller,
        rows: Sequence[UsageRow],
        operation: str,
        headers: MutableMapping[str, str],
        first: FirstAnswer | None = None,
    ) -> None:
        """Reserve and settle results that are known already, or raise a Refusal.

        One transaction, which keeps `first` too and is durable before the answer is sent: a
        request that dies leaves no reservation. It needs no capacity, as no work follows.
        """
        refused: Refusal | None = None

        async def write() -> None:
            nonlocal refused
            refused = await self._check_limits(caller, units_of(rows), headers, keep)
            if refused is None:
                self.watch(caller, False)

        def keep(check_limits_all: CheckLimits) -> Awaitable[Refusal | None]:
            return self.store.spend(
                caller, rows, check_limits_all, metered=self.metered, first=first
            )

        await trio.lowlevel.checkpoint_if_cancelled()  # a client that is gone is not charged
        await self.background_writes.write_shielded(write)
        if refused is not None:
            await self.log_refusal(caller, refused, operation)
            raise refused

    async def reserve_job(
        self,
        caller: Caller,
        order: JobOrder,
        headers: MutableMapping[str, str],
        first: FirstAnswer | None = None,
    ) -> Job:
        """Reserve one unit for a job and keep the job, or raise a Refusal.

        The unit is reserved while the job is pending. The job needs no capacity now: it runs
        when there is some.
        """

        def keep(check_limits_all: CheckLimits) -> Awaitable[Job | Refusal]:
            return self.store.create_job(caller, order, check_limits_all, first=first)

        granted = await self._check_limits(caller, 1, headers, keep, also=_check_jobs)
        if isinstance(granted, Job):
            return granted
        await self.log_refusal(caller, granted, "verify")
        raise granted

    async def _check_limits(
        self,
        caller: Caller,
        units: int,
        headers: MutableMapping[str, str],
        keep: Callable[[CheckLimits], Awaitable[T | Refusal]],
        capacity: CapacityTicket | None = None,
        *,
        billable: bool = True,
        also: CheckLimits = lambda ledger: None,
    ) -> T | Refusal:
        """Check the limits in the transaction in which `keep` reserves; return its result.

        Without `capacity` the request needs none.
        """
        plan, cap = self.plan(caller), caller.account.hard_cap_micros

        def check_limits_all(ledger: Ledger) -> Refusal | None:
            refusal: Refusal | None = check_limits(
                plan, ledger, units, hard_cap_micros=cap, billable=billable
            )
            refusal = refusal or also(ledger)
            if refusal is None and capacity is not None and not capacity.is_free:
                refusal = Overloaded()
            headers.update(limit_headers(plan, ledger, 0 if refusal else units))
            return refusal

        kept = await keep(check_limits_all)
        if capacity is not None:
            capacity.is_used = isinstance(kept, Reservation)
        admitted()
        return kept

    async def log_refusal(self, caller: Caller, refusal: Refusal, operation: str) -> None:
        """Log a 429 as a row, or as part of one; without the store it is not logged."""
        if isinstance(refusal, HardCapReached):
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
            log.warning("refusal not logged: the store is unavailable")

    async def count_malformed(
        self,
        caller: Caller,
        headers: MutableMapping[str, str],
        first: FirstAnswer | None = None,
    ) -> bool:
        """Count a malformed single verify as one unit, never billable, and keep `first`.

        Returns False where the limits leave no unit for it: then nothing is kept, and it is
        logged as a refusal. The request gets its 400 in both cases.
        """
        row = UsageRow(self.now(), "verify", None, "invalid_request", 1, False, 0)
        refused: Refusal | None = None

        async def write() -> None:
            nonlocal refused
            refused = await self._check_limits(caller, 1, headers, keep, billable=False)

        def keep(check_limits_all: CheckLimits) -> Awaitable[Refusal | None]:
            return self.store.spend(caller, [row], check_limits_all, first=first)

        await self.background_writes.write_shielded(write)
        if refused is not None:
            await self.log_refusal(caller, refused, "verify")
            return False
        self.watch(caller, False)
        return True

    async def limit_malformed(
        self, caller: Caller, operation: str, headers: MutableMapping[str, str]
    ) -> None:
        """Count a malformed list as one unit of the minute, none of the month; keep no row.

        So a caller that sends what is expensive to parse reaches its limit. Beyond the
        limit it is logged as a refusal.
        """

        def keep(check_limits_all: CheckLimits) -> Awaitable[Reservation | Refusal]:
            return self.store.reserve(caller, 1, check_limits_all, lease_s=LEASE_S)

        granted = await self._check_limits(caller, 1, headers, keep, billable=False)
        if isinstance(granted, Reservation):
            await self.background_writes.write_shielded(lambda: self.store.settle(granted, []))
        else:
            await self.log_refusal(caller, granted, operation)

    async def add_limit_headers(self, caller: Caller, headers: MutableMapping[str, str]) -> None:
        """Put what is left of the limits into `headers`; nothing if the store is unavailable."""
        try:
            ledger = await self.store.ledger(caller)
        except StoreUnavailable:
            return
        headers.update(limit_headers(self.plan(caller), ledger))

    # settling

    async def settle(
        self, grant: Grant, rows: Sequence[UsageRow], first: FirstAnswer | None = None
    ) -> None:
        """Make the used units and `first` durable before the answer is sent.

        Raises StoreUnavailable if they cannot be counted: the answer must not be sent, and
        the units are free again when the lease ends.
        """

        async def write() -> None:
            await self.store.settle(grant.reservation, rows, metered=self.metered, first=first)
            self.watch(grant.caller, False)

        await self.background_writes.write_shielded(write)

    async def try_part(
        self, grant: Grant, rows: Sequence[UsageRow], part: int, *, ends: bool
    ) -> None:
        """Try once to write a part; after StoreUnavailable, call `settle_part` with the same part."""
        await self.background_writes.write_shielded(
            lambda: self._write_part(grant, rows, part, ends=ends)
        )

    def settle_part(
        self, grant: Grant, rows: Sequence[UsageRow], part: int, *, ends: bool
    ) -> trio.Event:
        """Write a part until it succeeds; the event is set when it has, or was given up.

        For what cannot be undone: lines of a stream under way, and the results of a request
        that died.
        """
        return self.background_writes.write_until_durable(
            lambda: self._write_part(grant, rows, part, ends=ends)
        )

    async def _write_part(
        self, grant: Grant, rows: Sequence[UsageRow], part: int, *, ends: bool
    ) -> None:
        await self.store.settle(grant.reservation, rows, part=part, ends=ends, metered=self.metered)
        self.watch(grant.caller, False)

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
            log.warning("lease not extended: the store is unavailable")
