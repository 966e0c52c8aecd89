"""Spends the units of a list: those of one chunk, as its answers come.

    async with ListCharge(quota, claim, addresses) as charged:
        while ready := await charged.next_answers():
            await charged.store(ready)

Each call of `store` counts answers and stores them in one transaction, so that what a killed
process has stored is counted, and nothing else. A limit is no failure of a list but a wait:
the refusal is raised and not logged.
"""

from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from types import TracebackType

import trio

from mailprobe.api.quota.limits import LimitsLeft
from mailprobe.api.quota.policy import check_limits
from mailprobe.api.quota.service import LEASE_S, QuotaService
from mailprobe.api.quota.settlement import row_of
from mailprobe.api.refusals import Overloaded, Refusal
from mailprobe.api.results.chunk_lines import encode_results
from mailprobe.api.sandbox.addresses import refusal_for
from mailprobe.api.sandbox.stream import open_sandbox_answers
from mailprobe.engine import Answer, Answers, open_answers
from mailprobe.engine.verdict import Status
from mailprobe.storage.lists.records import ChunkPart, ListClaim
from mailprobe.storage.records import JobOrder, Ledger, Reservation

GATHER_S = 0.25  # answers of so long are stored together
FREE_SHARE = 0.1  # of the key's minute: left to its other requests

USAGE_NAME = "list"  # of the operation in the usage log


def units_for_list(limits: LimitsLeft) -> int:
    """The units that a list may take of the key's minute now."""
    return limits.minute_left - int(limits.minute * FREE_SHARE)


async def store_callback(quota: QuotaService, claim: ListClaim, order: JobOrder) -> None:
    """Store the callback of a list, whose units are counted; a repetition changes nothing."""
    with suppress(ValueError):  # a process was killed after it had stored it
        await quota.store.create_job(claim.caller, order, lambda ledger: None)


class ListCharge:
    """The units and the answers of some addresses of a claimed chunk, by their numbers there."""

    def __init__(
        self, quota: QuotaService, claim: ListClaim, addresses: Mapping[int, str], *, is_rest: bool
    ) -> None:
        """`is_rest`: the chunk is answered with these addresses."""
        self._quota = quota
        self._claim = claim
        self._caller = claim.caller
        self._numbers = list(addresses)
        self._texts = list(addresses.values())
        self._is_rest = is_rest
        self._left = len(addresses)
        self._parts = 0
        self._block: AbstractAsyncContextManager[Answers]
        self._answers: Answers
        self._reservation: Reservation

    async def __aenter__(self) -> "ListCharge":
        """Reserve. Raises a Refusal, StoreUnavailable."""
        self._block = self._open()
        self._answers = await self._block.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._block.__aexit__(kind, error, trace)

    async def next_answers(self) -> list[Answer]:
        """Answers of up to GATHER_S; none at the end."""
        ready = await self._answers.next_ready()
        with trio.move_on_after(GATHER_S):
            while ready and len(ready) < self._left:
                ready += await self._answers.next_ready()
        return ready

    async def store(self, answers: Sequence[Answer]) -> None:
        """Store answers and count them, in one transaction. Durable on return."""
        self._left -= len(answers)
        quota, now = self._quota, self._quota.now()
        is_test = self._caller.key.is_test
        rows = [] if is_test else [row_of(now, USAGE_NAME, answer.verdict) for answer in answers]
        part = ChunkPart(
            self._claim.list.id,
            self._claim.chunk.place,
            self._claim.fence,
            encode_results((self._numbers[answer.position], answer) for answer in answers),
            Counter(answer.verdict.status for answer in answers),
            ends=self._is_rest and not self._left,
            passing=sum(answer.is_passing for answer in answers),
        )
        number = self._parts
        self._parts += 1
        await quota.background_writes.write_shielded(
            lambda: quota.store.settle(
                self._reservation, rows, part=number, ends=not self._left,
                emit_meter_event=not is_test and quota.reports_usage_of(self._caller), chunk=part,
            )
        )  # fmt: skip
        if not is_test:
            quota.watch(self._caller, False)

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[Answers]:
        quota, account = self._quota, self._caller.account.id
        if self._caller.key.is_test:
            self._reservation = await self._reserve(lease_s=0)
            async with open_sandbox_answers(quota.engine.lists, self._texts) as answers:
                yield answers
            return
        with quota.capacity.requesting(account, len(self._texts)) as ticket:
            if not ticket.is_free:
                raise Overloaded
            self._reservation = await self._reserve(lease_s=LEASE_S)
            ticket.is_used = True
        quota.capacity.enter(len(self._texts), account)
        try:
            with quota.holding(self._reservation):
                async with open_answers(
                    quota.engine, self._texts, account=account, deferred_start=True
                ) as answers:
                    yield answers
        finally:
            quota.capacity.release(len(self._texts), account)
            await self._release_rest()

    async def _reserve(self, *, lease_s: float) -> Reservation:
        plan, caller = self._quota.plan(self._caller), self._caller
        units, cap = len(self._texts), caller.account.hard_cap_micros

        def check(ledger: Ledger) -> Refusal | None:
            billable = not caller.key.is_test
            refusal: Refusal | None = check_limits(
                plan, ledger, units, hard_cap_micros=cap, billable=billable
            )
            if refusal is None and caller.key.is_test:
                refusal = refusal_for(self._texts, ledger.asked_at)
            return refusal

        reserved = await self._quota.store.reserve(caller, units, check, lease_s=lease_s)
        if isinstance(reserved, Refusal):
            raise reserved
        return reserved

    async def _release_rest(self) -> None:
        """Give back the units of addresses without an answer."""
        if self._left:
            part, reservation, store = self._parts, self._reservation, self._quota.store
            self._quota.background_writes.write_until_durable(
                lambda: store.settle(reservation, [], part=part, ends=True)
            )


class ListRecheck:
    """Another answer to the addresses of a chunk that time may have cured. It costs no units."""

    def __init__(
        self, quota: QuotaService, claim: ListClaim, passing: Mapping[int, tuple[str, Status]]
    ) -> None:
        self._quota = quota
        self._claim = claim
        self._numbers = list(passing)
        self._texts = [text for text, _ in passing.values()]
        self._before = [status for _, status in passing.values()]

    async def run(self) -> None:
        """Verify them, and store the better answers. Raises Overloaded, StoreUnavailable."""
        quota, account, count = self._quota, self._claim.caller.account.id, len(self._texts)
        if self._claim.caller.key.is_test:
            await self._store([])
            return
        with quota.capacity.requesting(account, count) as ticket:
            if not ticket.is_free:
                raise Overloaded
            ticket.is_used = True
        quota.capacity.enter(count, account)
        patient = not self._claim.list.strict_clocks
        try:
            async with open_answers(
                quota.engine, self._texts, account=account, deferred_start=True, patient=patient
            ) as answers:
                better = [answer async for answer in answers if self._is_better(answer)]
        finally:
            quota.capacity.release(count, account)
        await self._store(better)

    def _is_better(self, answer: Answer) -> bool:
        """An accepted address stays so: only its test was to be repeated."""
        was_accepted = self._before[answer.position] == "deliverable"
        return not (answer.is_passing or (was_accepted and answer.verdict.status == "unknown"))

    async def _store(self, better: Sequence[Answer]) -> None:
        counts: Counter[str] = Counter(answer.verdict.status for answer in better)
        counts.subtract(self._before[answer.position] for answer in better)
        part = ChunkPart(
            self._claim.list.id,
            self._claim.chunk.place,
            self._claim.fence,
            encode_results((self._numbers[answer.position], answer) for answer in better),
            counts,
            ends=True,
            passing=-len(better),
        )

        async def write() -> None:
            await self._quota.store.record_part(part)

        await self._quota.background_writes.write_shielded(write)
