"""The job worker: verifies, counts and delivers what a request submitted with a 202.

A job is in the store before its 202 is sent. Each later step is one transaction:
verify and count, then the result of each callback attempt. The workers of all
processes share the queue by claims with a lease, so after a crash another process
continues a job within LEASE_S. Delivery is at least once: a callback is repeated if
a process dies after delivery and before its record, or if the store is unavailable
for longer than a lease. It is never lost, and a verification is never counted twice.

A bug met in one job is logged and does not stop the others.
"""

import logging
import random
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from heapq import heappop, heappush

import msgspec
import trio

from mailprobe.api.jobs.delivery import WebhookSender
from mailprobe.api.jobs.rules import NotAWebhook, callback_headers, check_webhook, verdict_on
from mailprobe.api.quota.metered_stream import row_of
from mailprobe.api.quota.service import QuotaService
from mailprobe.api.rest.schema import VerifyEmailCallback
from mailprobe.engine import Answer, open_answers
from mailprobe.engine.background import contained, log_fault, supervised
from mailprobe.storage.contract import Store, StoreUnavailable
from mailprobe.storage.records import Attempt, Caller, Claim, FirstAnswer, Job, JobOrder, Work

log = logging.getLogger("mailprobe.jobs")

LEASE_S = 15.0  # after a crash, another process may claim the job
EXTEND_EVERY_S = 4.0
POLL_S = 5.0  # between polls for other processes' jobs
PAUSE_S = 1.0  # while the store is unavailable
DRAIN_S = 4.0  # a stop waits for unfinished work; it has 10 s in all
# printed by `mailprobe job show`
ENCRYPTED = (
    "its secret was encrypted with another key: put back the database's key file"
    " or MAILPROBE_SECRET_KEY, restart, then run 'mailprobe job resend'"
)
INTERNAL_TRIES_MAX = 5  # claims of a job that fails because of a bug
REMEMBERED_MAX = 10_000  # retries with a wake-up of their own; others wait for the next poll


@dataclass(frozen=True, slots=True)
class JobBounds:
    """Concurrency limits: of this process, and of one account or host."""

    at_a_time: int
    each_max: int  # of an account (verify), of an account's host (deliver)
    account_max: int


BOUNDS: dict[Work, JobBounds] = {
    # an account with a long queue leaves capacity for others
    "verify": JobBounds(100, each_max=25, account_max=25),
    # a host that hangs holds 4 slots; an account whose hosts all hang holds a quarter
    "deliver": JobBounds(200, each_max=4, account_max=50),
}

_encode = msgspec.json.Encoder().encode


class JobQueue:
    """Accepts and runs jobs; made by `open_jobs()`."""

    def __init__(
        self,
        store: Store,
        quota: QuotaService,
        webhook_sender: WebhookSender,
        *,
        retry_s: Sequence[float],
        now: Callable[[], datetime],
        rng: random.Random,
    ) -> None:
        self._store = store
        self._quota = quota
        self._sender = webhook_sender
        self._retry_s = retry_s
        self._now = now
        self._rng = rng
        self._wake_events = {work: trio.Event() for work in BOUNDS}
        self._dues: list[float] = []  # a heap of this process's retry times, trio clock
        self._stopping = False
        self.under_way = dict.fromkeys(BOUNDS, 0)

    async def submit(
        self,
        caller: Caller,
        order: JobOrder,
        headers: MutableMapping[str, str],
        first: FirstAnswer | None = None,
    ) -> Job:
        """Reserve one unit and store the job, and `first`. Raises Refusal, StoreUnavailable."""
        job = await self._quota.reserve_job(caller, order, headers, first)
        self._wake("verify")
        return job

    # working

    async def work_off(self, work: Work) -> None:
        """Claim and run due jobs until `stop()`; then finish those in progress, within DRAIN_S."""
        act = {"verify": self._verify, "deliver": self._deliver}[work]
        async with trio.open_nursery() as nursery:
            while not self._stopping:
                wake_event = self._wake_events[work]
                for claim in await self._claim(work):
                    self.under_way[work] += 1
                    nursery.start_soon(contained, self._do, work, act, claim)
                with trio.move_on_at(self._next_poll(work)):
                    await wake_event.wait()
            nursery.cancel_scope.deadline = trio.current_time() + DRAIN_S

    def _next_poll(self, work: Work) -> float:
        now = trio.current_time()
        while self._dues and self._dues[0] <= now:
            heappop(self._dues)
        if work == "deliver" and self._dues:
            return min(now + POLL_S, self._dues[0])
        return now + POLL_S

    def stop(self) -> None:
        self._stopping = True
        for work in BOUNDS:
            self._wake(work)

    def _wake(self, work: Work) -> None:
        self._wake_events[work].set()
        self._wake_events[work] = trio.Event()

    async def _claim(self, work: Work) -> list[Claim]:
        bounds = BOUNDS[work]
        capacity = bounds.at_a_time - self.under_way[work]
        if capacity <= 0:
            return []
        try:
            return await self._store.claim_jobs(
                work,
                limit=capacity,
                each_max=bounds.each_max,
                account_max=bounds.account_max,
                lease_s=LEASE_S,
            )
        except StoreUnavailable as error:
            log.warning("no job can be claimed: %s", error)
        except Exception:  # a row that cannot be read; the other claims end with their lease
            log_fault(self._claim)
        return []

    async def _do(self, work: Work, act: Callable[[Claim], Awaitable[None]], claim: Claim) -> None:
        """Run one job and keep its lease; after a bug it is retried INTERNAL_TRIES_MAX times."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._keep_claim, claim)
                await act(claim)
                nursery.cancel_scope.cancel()
        except Exception:
            log.exception("a bug of ours", extra={"job": claim.job.id})
            if work == "verify" and claim.fence >= INTERNAL_TRIES_MAX:
                await self._until_kept(lambda: self._store.abandon_job(claim))
        finally:
            self.under_way[work] -= 1
            self._wake(work)

    async def _keep_claim(self, claim: Claim) -> None:
        while True:
            await trio.sleep(EXTEND_EVERY_S)
            try:
                await self._store.extend_claim(claim, lease_s=LEASE_S)
            except StoreUnavailable:
                log.warning("a claim was not extended: the store cannot be asked")

    async def _until_kept(self, write: Callable[[], Awaitable[bool]]) -> bool:
        """Retry the write until the store accepts it; the fence rejects a stale one."""
        while True:
            try:
                return await write()
            except StoreUnavailable as error:
                log.warning("a job's outcome waits for the store: %s", error)
                await trio.sleep(PAUSE_S)

    # verifying

    async def _verify(self, claim: Claim) -> None:
        job = claim.job
        answer = await self._verify_all(job)
        row = row_of(self._now(), "verify", answer.verdict)
        reported = VerifyEmailCallback(**msgspec.structs.asdict(answer.verdict), job_id=job.id)
        payload = _encode(reported)
        if await self._until_kept(
            lambda: self._store.job_verified(claim, row, payload, metered=self._quota.metered)
        ):
            self._quota.watch(claim.caller, False)
            self._wake("deliver")

    async def _verify_all(self, job: Job) -> Answer:
        """Verify by the same stream as all clients; it counts towards this process's capacity."""
        capacity = self._quota.capacity
        capacity.enter(1)
        try:
            async with open_answers(
                self._quota.engine, [job.email], account=job.account_id
            ) as answers:
                return await anext(answers)
        finally:
            capacity.release(1)

    # delivering

    async def _deliver(self, claim: Claim) -> None:
        job = claim.job
        at = self._now()
        attempt, retry_after_s = await self._send_callback(claim, at)
        state, wait_s = verdict_on(
            attempt.status,
            tries=attempt.number,
            retry_s=self._retry_s,
            jitter=self._rng.uniform(-1, 1),
            retry_after_s=retry_after_s,
        )
        due_at = None
        if wait_s is not None:
            due_at = self._now() + timedelta(seconds=wait_s)
            if len(self._dues) < REMEMBERED_MAX:
                heappush(self._dues, trio.current_time() + wait_s)
        await self._until_kept(
            lambda: self._store.job_attempted(claim, attempt, state=state, due_at=due_at)
        )
        log.info(
            "callback %d: %s", attempt.number, attempt.error or attempt.status,
            extra={"job": job.id, "host": job.host.rpartition(" ")[2], "state": state},
        )  # fmt: skip

    async def _send_callback(self, claim: Claim, at: datetime) -> tuple[Attempt, float | None]:
        job, number = claim.job, claim.job.tries + 1
        if claim.undecryptable:
            log.error("a job's secret was encrypted with another key", extra={"job": job.id})
            return Attempt(number, at, 0, None, ENCRYPTED), None
        try:
            target = check_webhook(job.webhook)
        except NotAWebhook as error:  # the rules have become stricter since it was accepted
            return Attempt(number, at, 0, None, str(error)), None
        payload = job.payload or b""
        headers = callback_headers(job.id, payload, claim.secret, at)
        delivered = await self._sender.deliver(target, headers, payload)
        attempt = Attempt(number, at, delivered.took_ms, delivered.status, delivered.error)
        return attempt, delivered.retry_after_s


@asynccontextmanager
async def open_jobs(
    store: Store,
    quota: QuotaService,
    webhook_sender: WebhookSender,
    *,
    retry_s: Sequence[float],
    now: Callable[[], datetime],
    rng: random.Random,
) -> AsyncIterator[JobQueue]:
    """Run jobs for the duration of the block; leaving it waits up to DRAIN_S for unfinished ones."""
    queue = JobQueue(store, quota, webhook_sender, retry_s=retry_s, now=now, rng=rng)
    async with trio.open_nursery() as nursery:
        for work in BOUNDS:
            nursery.start_soon(supervised, queue.work_off, work)
        try:
            yield queue
        finally:
            queue.stop()
