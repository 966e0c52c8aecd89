"""Who may have how many units: weighed, granted, extended and settled.

The grant is made in one transaction with the weighing. Settling is done by a
task of the service, so that a request that dies is settled like any other.
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
from mailprobe.storage.contract import Store, StoreUnavailable, units_of
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

LEASE_S = 20.0  # a request that died gives its units back so soon
EXTEND_EVERY_S = 5.0
JOBS_UNDELIVERED_MAX = 10_000  # of an account: each is a row with a payload, and waits for days

PIECEMEAL = "stream"  # its answers are handed over one by one, all others' at the end


T = TypeVar("T")
CheckLimits = Callable[[Ledger], Refusal | None]

# told of a caller whose usage has changed, or (True) whom the hard cap has refused
Watch = Callable[[Caller, bool], None]


def not_observed(caller: Caller, capped: bool) -> None:
    """The watch of a service without alerts."""


@dataclass(frozen=True, slots=True)
class Grant:
    """Units that may be used, for one operation."""

    reservation: Reservation
    operation: str

    @property
    def caller(self) -> Caller:
        return self.reservation.caller


class Leases(dict[str, tuple[Reservation, float]]):
    """The reservations of requests under way by id, and since when each is held."""

    kept = False  # a task extends them


def _check_jobs(ledger: Ledger) -> Refusal | None:
    too_many = ledger.undelivered >= JOBS_UNDELIVERED_MAX
    return TooManyJobs(JOBS_UNDELIVERED_MAX) if too_many else None


@dataclass(frozen=True, slots=True)
class QuotaService:
    """Weighs, grants and settles; one for the whole service."""

    store: Store
    engine: Engine
    background_writes: BackgroundWrites
    plans: Plans
    capacity: Capacity
    now: Callable[[], datetime]
    metered: bool = False  # what is billable is reported to the billing provider
    watch: Watch = not_observed
    leases: Leases = field(default_factory=Leases)

    def plan(self, caller: Caller) -> PricingPlan:
        return self.plans[caller.account.tier]

    # granting

    async def reserve(
        self, caller: Caller, units: int, operation: str, headers: MutableMapping[str, str]
    ) -> Grant:
        """Grant so many units or raise the Refusal; `headers` get what is left of the limits.

        A 429 is logged, and takes no units. Where there is no room the request
        waits in its account's turn before it is refused.
        """
        account = caller.account.id

        def keep(check_limits_all: CheckLimits) -> Awaitable[Reservation | Refusal]:
            return self.store.reserve(caller, units, check_limits_all, lease_s=LEASE_S)

        with self.capacity.requesting(account, units) as room:
            granted = await self._check_limits(caller, units, headers, keep, room)
        if isinstance(granted, Overloaded):
            async with self.capacity.waiting(account, units) as room:
                if room.is_there:
                    granted = await self._check_limits(caller, units, headers, keep, room)
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
        """Grant and count at once what is known already, or raise the Refusal.

        `first` is kept in the same transaction. As `reserve` and `settle` in one transaction, durable before the answer is sent:
        no reservation is ever left by a request that dies. It asks for no room, because
        nothing will be under way.
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

        await trio.lowlevel.checkpoint_if_cancelled()  # who is gone pays for nothing
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
        """The same for a job, whose unit is reserved as long as it is pending.

        It is kept whether there is room just now or not: it runs when there is.
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
        room: CapacityTicket | None = None,
        *,
        billable: bool = True,
        also: CheckLimits = lambda ledger: None,
    ) -> T | Refusal:
        """Have the store keep the grant, in one transaction with its weighing.

        Without `room` the request needs none.
        """
        plan, cap = self.plan(caller), caller.account.hard_cap_micros

        def check_limits_all(ledger: Ledger) -> Refusal | None:
            no: Refusal | None = check_limits(
                plan, ledger, units, hard_cap_micros=cap, billable=billable
            )
            no = no or also(ledger)
            if no is None and room is not None and not room.is_there:
                no = Overloaded()
            headers.update(limit_headers(plan, ledger, 0 if no else units))
            return no

        kept = await keep(check_limits_all)
        if room is not None:
            room.is_granted = isinstance(kept, Reservation)
        admitted()
        return kept

    async def log_refusal(self, caller: Caller, refusal: Refusal, operation: str) -> None:
        """A 429 is one row, or a share in one; a refusal stays one where it cannot be logged."""
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
            log.warning("a refusal was not logged: the store cannot be asked")

    async def count_malformed(
        self,
        caller: Caller,
        headers: MutableMapping[str, str],
        first: FirstAnswer | None = None,
    ) -> bool:
        """A malformed single verify: one unit, never billable. Was it counted, and `first` kept?

        It is malformed whatever the limits say; where they leave no unit for it, it
        is logged as the refusal that it would have met.
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
        """A malformed list: one unit of the minute, none of the month, and no row is kept.

        So whoever sends what is dear to read meets his limit. Beyond it, as above.
        """

        def keep(check_limits_all: CheckLimits) -> Awaitable[Reservation | Refusal]:
            return self.store.reserve(caller, 1, check_limits_all, lease_s=LEASE_S)

        granted = await self._check_limits(caller, 1, headers, keep, billable=False)
        if isinstance(granted, Reservation):
            await self.background_writes.write_shielded(lambda: self.store.settle(granted, []))
        else:
            await self.log_refusal(caller, granted, operation)

    async def notify_limits(self, caller: Caller, headers: MutableMapping[str, str]) -> None:
        """What is left of the limits, for an answer that weighed nothing."""
        try:
            ledger = await self.store.ledger(caller)
        except StoreUnavailable:
            return
        headers.update(limit_headers(self.plan(caller), ledger))

    # settling

    async def settle(
        self, grant: Grant, rows: Sequence[UsageRow], first: FirstAnswer | None = None
    ) -> None:
        """Make durable what was used, and `first` with it, before the answer is sent.

        An answer that cannot be counted is not given: StoreUnavailable is raised,
        and the lease gives its units back.
        """

        async def write() -> None:
            await self.store.settle(grant.reservation, rows, metered=self.metered, first=first)
            self.watch(grant.caller, False)

        await self.background_writes.write_shielded(write)

    async def try_part(
        self, grant: Grant, rows: Sequence[UsageRow], part: int, *, ends: bool
    ) -> None:
        """Write a part now, once: to be insisted on where StoreUnavailable is raised."""
        await self.background_writes.write_shielded(
            lambda: self._write_part(grant, rows, part, ends=ends)
        )

    def settle_part(
        self, grant: Grant, rows: Sequence[UsageRow], part: int, *, ends: bool
    ) -> trio.Event:
        """Have a part written until it succeeds; the event tells that it is, or was given up.

        For what cannot be taken back: lines of a stream that is under way, and
        whatever a request had when it died.
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
        """Have the lease extended as long as the block lasts."""
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
        """One task for all requests: most are over long before their lease is worth a thought.

        A lease is extended for the first time after one to two rounds, well before it ends.
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
            log.warning("a lease was not extended: the store cannot be asked")
