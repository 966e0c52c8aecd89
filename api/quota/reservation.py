"""A reservation: limits are checked and units reserved, then answers are counted and settled.

Limits are checked in the transaction that reserves. The lines of a stream are settled before
they are delivered: a process that is killed has counted every line that a client saw. What the
kinds of charges do with both: see `charge()`.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from functools import partial
from typing import Literal, NoReturn, Self, TypeVar

import trio
from msgspec.structs import replace

from mailprobe.engine import Answer, Answers, Verdict
from mailprobe.engine.verdict import light_of
from mailprobe.storage.contract import StoreUnavailable
from mailprobe.storage.list_records import ChunkPart
from mailprobe.storage.records import Caller, FirstAnswer, Ledger, Reservation, UsageRow

from ..http.received_request import Admission
from ..refusals import Overloaded, Refusal
from ..results.lights import LIGHT_COLOURS
from .background_writes import Write
from .capacity import CapacityTicket
from .limits import LimitsLeft, check_limits, limits_left
from .plans import is_billable
from .service import CheckLimits, QuotaService

log = logging.getLogger("mailprobe.quota")

DELIVERY_S = 10.0  # lines wait for an unavailable store; then the stream is cut off

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

    async def __aenter__(self) -> Self:
        return self

    async def _check(
        self,
        units: int,
        reserve: Callable[[CheckLimits], Awaitable[T | Refusal]],
        *,
        capacity: CapacityTicket | None = None,
        billable: bool = True,
        counts_month: bool = True,
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
                plan,
                ledger,
                units,
                hard_cap_micros=cap,
                calls_max=calls_max,
                billable=billable,
                counts_month=counts_month,
            )
            if refusal is None and also is not None:
                refusal = also(ledger)
            if refusal is None and capacity is not None and not capacity.is_free:
                refusal = Overloaded()
            granted = 0 if refusal else units
            self.limits = limits_left(plan, ledger, granted, counts_month=counts_month)
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
        of_minute_alone: bool = False,
        also: CheckLimits | None = None,
    ) -> Reservation | Refusal:
        """Reserve the units, or return the refusal."""
        reserve = partial(self._quota.store.reserve, self._caller, units, lease_s=lease_s)
        counts = not of_minute_alone
        return await self._check(
            units, reserve, capacity=capacity, billable=counts, counts_month=counts, also=also
        )

    async def _count_minute(
        self, units: int, *, also: CheckLimits | None = None
    ) -> Reservation | Refusal:
        """Count units of the key's minute alone: the reservation ends as it is made."""
        return await self._reserve(units, lease_s=0, of_minute_alone=True, also=also)

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


def row_of(at: datetime, operation: str, verdict: Verdict, *, billable: bool = True) -> UsageRow:
    """Return the usage row of a result; `billable` is False if the client does not get it."""
    check = verdict.failed_check
    return UsageRow(
        at, operation, verdict.status, check, 1, billable and is_billable(check), verdict.latency_ms,
        light=LIGHT_COLOURS[light_of(verdict)],
    )  # fmt: skip


async def settle(
    quota: QuotaService,
    reservation: Reservation,
    rows: Sequence[UsageRow],
    *,
    part: int = 0,
    ends: bool = True,
    first: FirstAnswer | None = None,
    chunk: ChunkPart | None = None,
) -> None:
    """Settle units of a reservation in one transaction, see `Store.settle`. Nothing else does."""
    caller = reservation.caller
    await quota.store.settle(
        reservation, rows, part=part, ends=ends, first=first, chunk=chunk,
        emit_meter_event=quota.reports_usage_of(caller),
    )  # fmt: skip
    if rows:
        quota.watch(caller, False)


class Settlement:
    """Counts the answers of one reservation and settles them; with `in_parts` line by line."""

    def __init__(
        self, quota: QuotaService, reservation: Reservation, operation: str, *, in_parts: bool
    ) -> None:
        self._quota = quota
        self._reservation = reservation
        self._operation = operation
        self._in_parts = in_parts
        self._delivered: list[UsageRow] = []  # not settled yet
        self._parts = 0
        self._ended = False
        self._under_way = reservation.units
        self._account = reservation.caller.account.id
        quota.capacity.enter(self._under_way, self._account)

    def add(self, answers: Sequence[Answer], *, billable: bool = True) -> None:
        now = self._quota.now()
        self._delivered += [
            row_of(now, self._operation, answer.verdict, billable=billable) for answer in answers
        ]
        self._under_way -= len(answers)
        self._quota.capacity.release(len(answers), self._account)

    async def deliver(self, answers: Sequence[Answer]) -> None:
        """Count answers before the reader gets them; lines of a stream durably.

        Lines wait while the store is unavailable, as a line that is not counted would be
        lost with the process. Raises StoreUnavailable after DELIVERY_S.
        """
        self.add(answers)
        if self._in_parts and answers:
            await self._settle_part(ends=not self._under_way)

    async def collect_remaining(self, answers: Answers) -> None:
        """Count results that the reader did not take; they are not billable."""
        with trio.CancelScope(shield=True):
            while answers.ready:
                self.add(await answers.next_ready(), billable=False)

    async def settle(self, first: FirstAnswer | None) -> None:
        """Settle a stream that ended in order; durable on return.

        Raises StoreUnavailable if it cannot be counted: the answer must not be sent, and the
        units are free again when the lease ends.
        """
        if not self._in_parts:
            await self._quota.background_writes.write_shielded(
                partial(settle, self._quota, self._reservation, self._delivered, first=first)
            )
        elif not self._ended:
            await self._settle_part(ends=True)

    def settle_abandoned(self) -> None:
        """Settle a stream that was cut off, in the background; only delivered lines are billable."""
        if self._ended:
            return
        if not self._in_parts:
            self._delivered = [replace(row, billable=False) for row in self._delivered]
        self._quota.background_writes.write_until_durable(self._begin_part(ends=True))

    def close(self) -> None:
        """Free the capacity of addresses without an answer."""
        self._quota.capacity.release(self._under_way, self._account)
        self._under_way = 0

    async def _settle_part(self, *, ends: bool) -> None:
        """Write in the request's own task, at half the cost, as long as the store answers."""
        write, writes = self._begin_part(ends=ends), self._quota.background_writes
        try:
            await writes.write_shielded(write)
        except StoreUnavailable:
            settled = writes.write_until_durable(write)
            with trio.move_on_after(DELIVERY_S) as waiting:
                await settled.wait()
            if waiting.cancelled_caught:
                log.error("stream cut off: store unavailable")
                raise StoreUnavailable("the lines of a stream could not be counted") from None

    def _begin_part(self, *, ends: bool) -> Write:
        """Return what settles the answers since the last part; the caller must run it."""
        rows, self._delivered = self._delivered, []
        part = self._parts
        self._parts += 1
        self._ended = ends
        return partial(settle, self._quota, self._reservation, rows, part=part, ends=ends)
