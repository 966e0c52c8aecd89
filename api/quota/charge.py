"""Spends units: `charge()` is the one way, whatever a request is.

    async with charge(quota, caller, Verifications("batch", texts)) as charged:
        answers = await charged.in_order()
        charged.first = ...  # the answer to keep for a request with an idempotency key
    charged.limits  # what is left, for the response's headers; after a refusal as well

Limits are checked in the transaction that reserves. When units are reserved and
settled depends on the kind of request:

    Verifications       entering reserves, unless all answers are known; leaving settles
      delivered in parts  each part is settled before its lines leave
      all known           reserved and settled in one transaction, nothing stays reserved
    Submission          leaving stores the job, which holds its unit; `count_job` settles it
      a trial             leaving stores the job; nothing is counted but the trials of a minute
    UndecodableRequest    leaving counts it; a refusal is logged, the client gets its 400
    ChunkAddresses      of a list: entering reserves, storing answers settles them
    ChunkRecheck        of a list: costs no units, and needs capacity
    of a test key         entering counts units of the key's minute; nothing else is counted

`first` is stored in the transaction that settles. A block that fails settles in the background
what it had, and gives back the rest. Settlement does not run in the request's cancel scope, so
a request that dies is settled like any other. Raises a Refusal, or StoreUnavailable: then no
client may see the answers.
"""

from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import TracebackType
from typing import overload

import trio
from msgspec import Struct

from mailprobe.engine import Answer, Answers, KnownAnswers, Verdict, known_answers, open_answers
from mailprobe.storage.records import Caller, Claim, Job, JobOrder, Ledger, Reservation, UsageRow

from ..http.received_request import NO_ADMISSION, Admission
from ..refusals import Overloaded, RateLimited, Refusal, TooManyJobs
from ..sandbox.addresses import refusal_for
from ..sandbox.stream import open_sandbox_answers
from .limits import passes_at, units_in
from .list_charge import (
    ChargedChunk,
    ChargedRecheck,
    ChunkAddresses,
    ChunkRecheck,
)
from .reservation import Charge, Settlement, UsageName, row_of
from .service import LEASE_S, CheckLimits, QuotaService

TRIALS_A_MINUTE = 5  # of a key: each calls a machine that may be somebody else's
JOBS_UNDELIVERED_MAX = 10_000  # per account: each is a row with a payload, kept for days


class Verifications(Struct, frozen=True):
    """Addresses to verify: a unit each. `in_parts`: answers leave as they come, as lines.

    `waits`: the caller waits for the limit of the minute, so its refusal is not logged.
    Without `asks_hosts` layer 4 is left out. With `asks_bounced` hosts are asked about addresses
    that bounced as about any other.
    """

    operation: UsageName
    texts: Sequence[str]
    explain: bool = False
    in_parts: bool = False
    waits: bool = False
    asks_hosts: bool = True
    asks_bounced: bool = False


class Submission(Struct, frozen=True):
    """A job to store: one unit, reserved while the job is pending.

    `is_trial`: a test callback, whose result is made up; it counts towards TRIALS_A_MINUTE alone.
    """

    order: JobOrder
    is_trial: bool = False


class UndecodableRequest(Struct, frozen=True):
    """A request that cannot be decoded: one unit of the minute, never billable.

    `counts_month`: it is logged, and counts as a unit of the month as well. Else no row is
    kept; so a caller that sends what is expensive to parse reaches its limit.
    """

    operation: UsageName
    counts_month: bool


@overload
def charge(
    quota: QuotaService, caller: Caller, spending: Verifications, admission: Admission = ...
) -> "ChargedAnswers": ...
@overload
def charge(
    quota: QuotaService, caller: Caller, spending: Submission, admission: Admission = ...
) -> "ChargedJob": ...
@overload
def charge(
    quota: QuotaService, caller: Caller, spending: UndecodableRequest, admission: Admission = ...
) -> "ChargedRequest": ...
@overload
def charge(quota: QuotaService, caller: Caller, spending: ChunkAddresses) -> ChargedChunk: ...
@overload
def charge(quota: QuotaService, caller: Caller, spending: ChunkRecheck) -> ChargedRecheck: ...
def charge(
    quota: QuotaService,
    caller: Caller,
    spending: Verifications | Submission | UndecodableRequest | ChunkAddresses | ChunkRecheck,
    admission: Admission = NO_ADMISSION,
) -> "ChargedAnswers | ChargedJob | ChargedRequest | ChargedChunk | ChargedRecheck":
    """Return the block that spends the units of one request.

    `admission`: the request leaves the admission queue once its limits are checked.
    """
    match spending:
        case Verifications():
            kind = SandboxAnswers if caller.key.is_test else ChargedAnswers
            return kind(quota, caller, spending, admission)
        case Submission():
            return ChargedJob(quota, caller, spending, admission)
        case UndecodableRequest():
            return ChargedRequest(quota, caller, spending, admission)
        case ChunkAddresses():
            return ChargedChunk(quota, caller, spending)
        case ChunkRecheck():
            return ChargedRecheck(quota, caller, spending)


async def count_job(quota: QuotaService, claim: Claim, verdict: Verdict, payload: bytes) -> bool:
    """Settle the unit of a job, and make its callback due with `payload`; once, see `job_verified`.

    Raises StoreUnavailable.
    """
    row = row_of(quota.now(), "verify", verdict)
    counted = await quota.store.job_verified(
        claim, row, payload, emit_meter_event=quota.reports_usage_of(claim.caller)
    )
    if counted:
        quota.watch(claim.caller, False)
    return counted


class ChargedRequest(Charge):
    """A malformed request; `is_counted` after the block, else the limits left no unit for it."""

    def __init__(
        self,
        quota: QuotaService,
        caller: Caller,
        spending: UndecodableRequest,
        admission: Admission,
    ) -> None:
        super().__init__(quota, caller, spending.operation, admission)
        self._counts_month = spending.counts_month and not caller.key.is_test
        self.is_counted = False

    async def __aexit__(
        self, kind: object, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            return
        refused = await (self._count() if self._counts_month else self._limit())
        if refused is None:
            self.is_counted = True
        else:
            await self._log(refused)

    async def _count(self) -> Refusal | None:
        row = UsageRow(self._quota.now(), self._operation, None, "invalid_request", 1, False, 0)
        return await self._spend([row], billable=False)

    async def _limit(self) -> Refusal | None:
        counted = await self._count_minute(1)
        if isinstance(counted, Refusal):
            return counted
        await self._keep_first(counted)
        return None


class ChargedJob(Charge):
    """A job: stored with its reservation and `first` when the block is left."""

    def __init__(
        self, quota: QuotaService, caller: Caller, spending: Submission, admission: Admission
    ) -> None:
        super().__init__(quota, caller, "verify", admission)
        self._order, self._is_trial = spending.order, spending.is_trial

    async def __aexit__(
        self, kind: object, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """The job needs no capacity now: it runs when there is some."""
        if error is not None:
            return
        store, caller = self._quota.store, self._caller
        if not caller.key.is_test:
            self._quota.protection.check(self._caller.account.id)

        def create(check: CheckLimits) -> Awaitable[Job | Refusal]:
            return store.create_job(caller, self._order, check, first=self.first)

        if self._is_trial:
            tried = await create(self._check_trial)
            if isinstance(tried, Refusal):
                raise tried  # not logged: it is not a request for a verification
            return
        created = await self._check(1, create, also=self._check_job)
        if isinstance(created, Refusal):
            await self._refuse(created)

    def _check_trial(self, ledger: Ledger) -> Refusal | None:
        if units_in(ledger, ledger.window) >= TRIALS_A_MINUTE:
            passes = passes_at(ledger, ledger.window, TRIALS_A_MINUTE - 1)
            return RateLimited(TRIALS_A_MINUTE, ledger.asked_at, passes, 1)
        return self._check_job(ledger)

    def _check_job(self, ledger: Ledger) -> Refusal | None:
        if ledger.undelivered >= JOBS_UNDELIVERED_MAX:
            return TooManyJobs(JOBS_UNDELIVERED_MAX)
        if self._caller.key.is_test:
            return refusal_for([self._order.email], ledger.asked_at)
        return None


class ChargedAnswers(Charge):
    """The answers to the addresses of a request, each counted as the reader takes it; one reader.

    `reserve()` may be called before the block, to be refused before anything is sent. Without
    free capacity it waits in its account's queue before it is refused.
    """

    def __init__(
        self, quota: QuotaService, caller: Caller, spending: Verifications, admission: Admission
    ) -> None:
        super().__init__(quota, caller, spending.operation, admission)
        self._spending = spending
        self._left = len(spending.texts)  # not taken by the reader
        self._known: KnownAnswers | None = None
        self._bounced: Mapping[str, str] = {}
        self._unread: list[Answer] = []  # of those
        self._reservation: Reservation | None = None
        self._stream: AbstractAsyncContextManager[Answers]
        self._answers: Answers
        self._settlement: Settlement

    @property
    def whole(self) -> bool:
        """Has the reader taken all answers?"""
        return not self._left

    async def reserve(self) -> None:
        """Reserve the units; spend them if the answers are known and leave in parts."""
        spending = self._spending
        if not spending.asks_bounced:
            self._bounced = await self._quota.bounced.among(self._caller, spending.texts)
        self._known = known_answers(
            self._quota.engine,
            spending.texts,
            explain=spending.explain,
            asks_hosts=spending.asks_hosts,
            bounced=self._bounced,
        )
        if self._known is None:
            self._quota.protection.check(self._caller.account.id)
            self._reservation = await self._reserved()
            return
        self._unread = self._known.answers
        if self._spending.in_parts:
            await self._spend_known()

    async def __aenter__(self) -> "ChargedAnswers":
        if self._known is None and self._reservation is None:
            await self.reserve()
        if self._reservation is not None:
            self._stream = self._open(self._reservation)
            self._answers = await self._stream.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._reservation is not None:
            await self._stream.__aexit__(kind, error, trace)
        elif error is None and not self._spending.in_parts:
            await self._spend_known()

    # reading

    def __aiter__(self) -> "ChargedAnswers":
        return self

    async def __anext__(self) -> Answer:
        if self._known is None:
            answer = await anext(self._answers)
            await self._deliver([answer])
        else:
            await trio.lowlevel.checkpoint_if_cancelled()
            if not self._unread:
                raise StopAsyncIteration
            answer, self._unread = self._unread[0], self._unread[1:]
        self._left -= 1
        return answer

    async def next_ready(self) -> list[Answer]:
        """Wait for and return all answers that are ready; an empty list at the end."""
        if self._known is None:
            ready = await self._answers.next_ready()
            await self._deliver(ready)
        else:
            await trio.lowlevel.checkpoint_if_cancelled()
            ready, self._unread = self._unread, []
        self._left -= len(ready)
        return ready

    async def in_order(self) -> list[Answer]:
        """Return all answers, in the order of the texts."""
        answers: list[Answer] = []
        while self._left:
            ready = await self.next_ready()
            assert ready, "the stream has fewer answers than texts"
            answers += ready
        answers.sort(key=lambda answer: answer.position)
        return answers

    async def _deliver(self, answers: Sequence[Answer]) -> None:
        self._quota.protection.note(self._caller.account.id, answers)
        await self._settlement.deliver(answers)

    # reserving

    async def _reserved(self) -> Reservation:
        account, units = self._caller.account.id, len(self._spending.texts)
        capacities = self._quota.capacity

        with capacities.requesting(account, units) as capacity:
            reserved = await self._reserve(units, lease_s=LEASE_S, capacity=capacity)
        if isinstance(reserved, Overloaded):
            async with capacities.waiting(account, units) as capacity:
                if capacity.is_free:
                    reserved = await self._reserve(units, lease_s=LEASE_S, capacity=capacity)
        if isinstance(reserved, Refusal):
            await self._refuse(reserved)
        return reserved

    async def _log(self, refusal: Refusal) -> None:
        if not (self._spending.waits and isinstance(refusal, (RateLimited, Overloaded))):
            await super()._log(refusal)

    async def _spend_known(self) -> None:
        """It needs no capacity, as no work follows."""
        assert self._known is not None
        now, operation = self._quota.now(), self._operation
        rows = [row_of(now, operation, answer.verdict) for answer in self._known.answers]
        await trio.lowlevel.checkpoint_if_cancelled()  # a client that is gone is not charged
        refused = await self._spend(rows)
        if refused is not None:
            await self._refuse(refused)
        self._known.notify(self._quota.engine.observer)

    @asynccontextmanager
    async def _open(self, reservation: Reservation) -> AsyncIterator[Answers]:
        """Open the engine's stream; leaving the block settles it.

        After a normal exit everything is durable. After an exception, answers are counted and
        unused units are freed in the background.
        """
        spending, account = self._spending, self._caller.account.id
        settlement = self._settlement = Settlement(
            self._quota, reservation, spending.operation, in_parts=spending.in_parts
        )
        try:
            with self._quota.holding(reservation):
                async with open_answers(
                    self._quota.engine,
                    spending.texts,
                    account=account,
                    explain=spending.explain,
                    asks_hosts=spending.asks_hosts,
                    bounced=self._bounced,
                ) as answers:
                    try:
                        yield answers
                    finally:
                        await settlement.collect_remaining(answers)
        except BaseException:
            settlement.settle_abandoned()
            raise
        finally:
            settlement.close()
        await settlement.settle(self.first)


class SandboxAnswers(ChargedAnswers):
    """The answers to the addresses of a test key: no packet, no capacity, no row of usage."""

    async def reserve(self) -> None:
        """Count the units of the minute; the texts may ask for a refusal."""
        texts = self._spending.texts
        counted = await self._count_minute(
            len(texts), also=lambda ledger: refusal_for(texts, ledger.asked_at)
        )
        if isinstance(counted, Refusal):
            await self._refuse(counted)
        self._reservation = counted

    @asynccontextmanager
    async def _open(self, reservation: Reservation) -> AsyncIterator[Answers]:
        spending = self._spending
        async with open_sandbox_answers(
            self._quota.engine.lists,
            spending.texts,
            explain=spending.explain,
            asks_hosts=spending.asks_hosts,
        ) as answers:
            yield answers
        await self._keep_first(reservation)

    async def _deliver(self, answers: Sequence[Answer]) -> None:
        """Nothing is counted as it is delivered."""
