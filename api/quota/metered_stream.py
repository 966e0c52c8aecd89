"""The metered stream: reserves units, streams the engine's answers, settles what was used.

`open_metered()` wraps the engine's stream in its reservation and settlement, so that no
listener can forget either; `spend_known()` does both in one transaction when all answers
are known already. Lines of a stream are settled before they are delivered: a process that
is killed has counted every line that a client saw. A request that dies is settled with the
answers that it had.
"""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import datetime

import trio

from mailprobe.api.quota.pricing import is_billable
from mailprobe.api.quota.service import PIECEMEAL, Grant, QuotaService
from mailprobe.engine import Answer, Answers, Verdict, known_answers, open_answers
from mailprobe.storage.contract import StoreUnavailable
from mailprobe.storage.records import Caller, FirstAnswer, UsageRow

log = logging.getLogger("mailprobe.metering")

DELIVERY_S = 10.0  # lines wait for an unavailable store; then the stream is cut off

OnAnswers = Callable[[Sequence[Answer]], Awaitable[None]]
MakeFirst = Callable[[Sequence[Answer]], FirstAnswer | None]  # of all answers, in their order


class Metered:
    """The engine's answers, each counted as the reader takes it; for one reader."""

    def __init__(self, answers: Answers, on_consumed: OnAnswers, left: int) -> None:
        self._answers = answers
        self._on_consumed = on_consumed
        self._left = left
        self.first: FirstAnswer | None = None  # kept in the transaction that settles

    def __len__(self) -> int:
        return len(self._answers)

    @property
    def whole(self) -> bool:
        """Has the reader taken all answers?"""
        return not self._left

    def __aiter__(self) -> "Metered":
        return self

    async def __anext__(self) -> Answer:
        answer = await anext(self._answers)
        await self._on_consumed([answer])
        self._left -= 1
        return answer

    async def next_ready(self) -> list[Answer]:
        """Wait for and return all answers that are ready; an empty list at the end."""
        ready = await self._answers.next_ready()
        await self._on_consumed(ready)
        self._left -= len(ready)
        return ready


def row_of(at: datetime, operation: str, verdict: Verdict, *, billable: bool = True) -> UsageRow:
    """Return the usage row of a result; `billable` is False if the client does not get it."""
    check = verdict.failed_check
    return UsageRow(
        at, operation, verdict.status, check, 1, billable and is_billable(check), verdict.latency_ms
    )


class _SettlementBatch:
    """Counts one grant's answers and settles them."""

    def __init__(self, quota: QuotaService, grant: Grant) -> None:
        self._quota = quota
        self._grant = grant
        self._delivered: list[UsageRow] = []  # not settled yet
        self._parts = 0
        self._ended = False
        self._under_way = grant.reservation.units
        self._account = grant.caller.account.id
        quota.capacity.enter(self._under_way, self._account)

    def add(self, answers: Sequence[Answer], *, billable: bool = True) -> None:
        now = self._quota.now()
        self._delivered += [
            row_of(now, self._grant.operation, answer.verdict, billable=billable)
            for answer in answers
        ]
        self._under_way -= len(answers)
        self._quota.capacity.release(len(answers), self._account)

    async def deliver(self, answers: Sequence[Answer]) -> None:
        """Count answers before the reader gets them; lines of a stream durably.

        Lines wait while the store is unavailable, as a line that is not counted would be
        lost with the process. Raises StoreUnavailable after DELIVERY_S.
        """
        self.add(answers)
        if self._grant.operation == PIECEMEAL and answers:
            await self._settle_part(ends=not self._under_way)

    async def _settle_part(self, *, ends: bool) -> None:
        """Write in the request's own task, at half the cost, as long as the store answers."""
        rows, part = self._begin_part(ends=ends)
        try:
            await self._quota.try_part(self._grant, rows, part, ends=ends)
        except StoreUnavailable:
            await self._write_part_until_durable(rows, part, ends=ends)

    async def _write_part_until_durable(
        self, rows: Sequence[UsageRow], part: int, *, ends: bool
    ) -> None:
        settled = self._quota.settle_part(self._grant, rows, part, ends=ends)
        with trio.move_on_after(DELIVERY_S) as waiting:
            await settled.wait()
        if waiting.cancelled_caught:
            log.error("stream cut off: its lines cannot be counted")
            raise StoreUnavailable("the lines of a stream could not be counted")

    def _begin_part(self, *, ends: bool) -> tuple[list[UsageRow], int]:
        """Return the rows to settle next and the part's number; the caller must write them."""
        rows, self._delivered = self._delivered, []
        self._parts += 1
        self._ended = ends
        return rows, self._parts - 1

    async def settle(self, first: FirstAnswer | None) -> None:
        """Settle a stream that ended in order; durable on return."""
        if self._grant.operation != PIECEMEAL:
            await self._quota.settle(self._grant, self._delivered, first)
        elif not self._ended:
            await self._settle_part(ends=True)

    def settle_abandoned(self) -> None:
        """Settle a stream that was cut off, in the background; only delivered lines are billable."""
        if self._ended:
            return
        if self._grant.operation != PIECEMEAL:
            self._delivered = [replace(row, billable=False) for row in self._delivered]
        rows, part = self._begin_part(ends=True)
        self._quota.settle_part(self._grant, rows, part, ends=True)

    def close(self) -> None:
        """Free the capacity of addresses without an answer."""
        self._quota.capacity.release(self._under_way, self._account)
        self._under_way = 0


@asynccontextmanager
async def open_granted(
    quota: QuotaService, grant: Grant, texts: Sequence[str], *, explain: bool = False
) -> AsyncIterator[Metered]:
    """Open the stream of a grant; leaving the block settles it.

    After a normal exit everything is durable, and the stream's `first` is kept in the same
    transaction. After an exception, answers are counted and unused units are freed in the
    background.
    """
    batch = _SettlementBatch(quota, grant)
    account = grant.caller.account.id
    try:
        with quota.holding(grant.reservation):
            async with open_answers(
                quota.engine, texts, account=account, explain=explain
            ) as answers:
                stream = Metered(answers, batch.deliver, len(texts))
                try:
                    yield stream
                finally:
                    await _collect_remaining(answers, batch)
    except BaseException:
        batch.settle_abandoned()
        raise
    finally:
        batch.close()
    await batch.settle(stream.first)


async def _collect_remaining(answers: Answers, batch: _SettlementBatch) -> None:
    """Count results that the reader did not take; they are not billable."""
    with trio.CancelScope(shield=True):
        while len(answers):
            batch.add(await answers.next_ready(), billable=False)


@asynccontextmanager
async def open_metered(
    quota: QuotaService,
    caller: Caller,
    texts: Sequence[str],
    *,
    operation: str,
    headers: MutableMapping[str, str],
    explain: bool = False,
) -> AsyncIterator[Metered]:
    """Reserve, stream, settle. Raises a Refusal or StoreUnavailable before the block begins."""
    grant = await quota.reserve(caller, len(texts), operation, headers)
    async with open_granted(quota, grant, texts, explain=explain) as answers:
        yield answers


async def spend_known(
    quota: QuotaService,
    caller: Caller,
    texts: Sequence[str],
    *,
    operation: str,
    headers: MutableMapping[str, str],
    explain: bool = False,
    make_first: MakeFirst | None = None,
) -> list[Answer] | None:
    """Count and return the answers, in order, if all are known; else do nothing and return None.

    What `make_first` returns is kept in the same transaction. Raises a Refusal, or
    StoreUnavailable: then no client may see the answers.
    """
    known = known_answers(quota.engine, texts, explain=explain)
    if known is None:
        return None
    now = quota.now()
    rows = [row_of(now, operation, answer.verdict) for answer in known.answers]
    first = make_first(known.answers) if make_first else None
    await quota.spend(caller, rows, operation, headers, first)
    known.notify(quota.engine.observer)
    return known.answers


@asynccontextmanager
async def open_counted(answers: Sequence[Answer]) -> AsyncIterator[Metered]:
    """Open a stream of answers that were counted before."""
    stream = Answers(lambda: None)
    for answer in answers:
        stream.put(answer)
    stream.end()
    yield Metered(stream, _count_nothing, len(answers))


async def _count_nothing(answers: Sequence[Answer]) -> None:
    """They were counted before."""
