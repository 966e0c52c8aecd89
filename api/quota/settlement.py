"""The settlement of one reservation: counts its answers, as a whole or in parts.

The lines of a stream are settled before they are delivered: a process that is killed has
counted every line that a client saw.
"""

import logging
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial

import trio

from mailprobe.engine import Answer, Answers, Verdict
from mailprobe.engine.lights import light_of
from mailprobe.storage.contract import StoreUnavailable
from mailprobe.storage.list_records import ChunkPart
from mailprobe.storage.records import FirstAnswer, Reservation, UsageRow

from ..results.lights import LIGHT_COLOURS
from .background_writes import Write
from .pricing import is_billable
from .service import QuotaService

log = logging.getLogger("mailprobe.quota")

DELIVERY_S = 10.0  # lines wait for an unavailable store; then the stream is cut off


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
            while len(answers):
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
