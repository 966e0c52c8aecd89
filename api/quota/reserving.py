"""Checks limits and reserves units: what the kinds of charges share, see `charge()`.

Limits are checked in the transaction that reserves.
"""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Literal, NoReturn, TypeVar

from mailprobe.storage.records import Caller, FirstAnswer, Ledger, Reservation, UsageRow

from ..admission.held import Admission
from ..refusals import Overloaded, Refusal
from .capacity import CapacityTicket
from .limits import LimitsLeft, limits_left
from .policy import check_limits
from .service import CheckLimits, QuotaService
from .settlement import settle

# Of an operation in the usage log.
UsageName = Literal["verify", "batch", "stream", "live", "list", "form"]

T = TypeVar("T")


class Charge:
    """What the kinds of charges share: the check of limits, and the log of what they refuse."""

    def __init__(
        self, quota: QuotaService, caller: Caller, operation: UsageName, admission: Admission
    ) -> None:
        self._quota = quota
        self._admission = admission
        self._caller = caller
        self._operation = operation
        self.limits: LimitsLeft | None = None  # after the check; None before, or without the store
        self.first: FirstAnswer | None = None  # stored in the transaction that settles

    async def _check(
        self,
        units: int,
        reserve: Callable[[CheckLimits], Awaitable[T | Refusal]],
        *,
        capacity: CapacityTicket | None = None,
        billable: bool = True,
        also: CheckLimits | None = None,
    ) -> T | Refusal:
        """Check the limits in the transaction in which `reserve` reserves; return its result.

        Without `capacity` the request needs none: no work follows.
        """
        plan, cap = self._quota.plan(self._caller), self._caller.account.hard_cap_micros
        calls_max = self._quota.calls_max(self._caller)
        billable = billable and not self._caller.key.is_test

        def check(ledger: Ledger) -> Refusal | None:
            """Decide in the database's thread; texts are made later, from `limits`."""
            refusal: Refusal | None = check_limits(
                plan, ledger, units, hard_cap_micros=cap, calls_max=calls_max, billable=billable
            )
            if refusal is None and also is not None:
                refusal = also(ledger)
            if refusal is None and capacity is not None and not capacity.is_free:
                refusal = Overloaded()
            self.limits = limits_left(plan, ledger, 0 if refusal else units)
            return refusal

        reserved = await reserve(check)
        if capacity is not None and isinstance(reserved, Reservation):
            capacity.use()
        self._admission.admitted()
        return reserved

    async def _reserve(
        self,
        units: int,
        *,
        lease_s: float,
        capacity: CapacityTicket | None = None,
        billable: bool = True,
        also: CheckLimits | None = None,
    ) -> Reservation | Refusal:
        """Reserve the units, or return the refusal."""
        reserve = partial(self._quota.store.reserve, self._caller, units, lease_s=lease_s)
        return await self._check(units, reserve, capacity=capacity, billable=billable, also=also)

    async def _count_minute(
        self, units: int, *, also: CheckLimits | None = None
    ) -> Reservation | Refusal:
        """Count units of the key's minute alone: the reservation ends as it is made."""

        return await self._reserve(units, lease_s=0, billable=False, also=also)

    async def _keep_first(self, counted: Reservation) -> None:
        """Store the answer of a request that counted units of the minute alone."""
        first, quota = self.first, self._quota
        if first is not None:
            await quota.background_writes.write_shielded(
                lambda: settle(quota, counted, [], first=first)
            )

    async def _spend(self, rows: Sequence[UsageRow], *, billable: bool = True) -> Refusal | None:
        """Reserve and settle in one transaction, with `first`; return the refusal.

        A request that dies leaves no reservation. Durable on return.
        """
        quota, caller = self._quota, self._caller
        refused: Refusal | None = None

        async def write() -> None:
            nonlocal refused
            refused = await self._check(len(rows), spend, billable=billable)
            if refused is None:
                quota.watch(caller, False)

        def spend(check: CheckLimits) -> Awaitable[Refusal | None]:
            reported = quota.reports_usage_of(caller)
            return quota.store.spend(
                caller, rows, check, emit_meter_event=reported, first=self.first
            )

        await quota.background_writes.write_shielded(write)
        return refused

    async def _refuse(self, refusal: Refusal) -> NoReturn:
        """Log a refusal, and raise it."""
        await self._log(refusal)
        raise refusal

    async def _log(self, refusal: Refusal) -> None:
        """Log a refusal in the usage of the account, where a test key leaves no trace."""
        if not self._caller.key.is_test:
            await self._quota.log_refusal(self._caller, refusal, self._operation)
