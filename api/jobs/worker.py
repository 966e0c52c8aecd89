"""The job queue: verifies, counts and delivers what a request submitted with a 202.

A job is in the store before its 202 is sent. Each later step is one transaction:
verify and count, then the result of each callback attempt. Two outbox workers do these
steps (mailprobe.api.outbox.worker): after a crash another process continues a job
within LEASE_S. A callback may be repeated, is never lost, and a verification is never
counted twice.
"""

import logging
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from functools import partial

import trio
from msgspec import Struct

from mailprobe.engine import Answer, open_answers
from mailprobe.storage.base.claim_order import HANGS_AFTER
from mailprobe.storage.records import Attempt, Claim, Job, Work

from ..observability.spans import start_span
from ..outbox.worker import AttemptResult, Batch, Pace, Worker, WorkQueue, open_workers
from ..quota.charge import count_job
from ..quota.service import QuotaService
from .delivery import Delivered, WebhookSender
from .rules import (
    NotAWebhook,
    WebhookTarget,
    callback_backoff,
    callback_headers,
    check_webhook,
    child_of,
    payload_of,
    traceparent_of,
    verdict_on,
)

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


RECHECK_S = (300.0, 600.0)  # so 5 and 15 minutes after the first verification


def recheck_after_s(job: Job, answer: Answer) -> float | None:
    """Seconds until a job is verified again; None if this result is final."""
    if not job.recheck or job.tries >= len(RECHECK_S):
        return None
    return RECHECK_S[job.tries] if answer.is_passing else None


class JobBounds(Struct, frozen=True):
    """Concurrency limits: of this process, and of one account or host."""

    at_a_time: int
    each_max: int  # of an account (verify), of an account's host (deliver)
    account_max: int


BOUNDS: dict[Work, JobBounds] = {
    # an account with a long queue leaves capacity for others
    "verify": JobBounds(100, each_max=25, account_max=25),
    # a host that hangs holds 2 to 4 slots; an account whose hosts all hang holds a quarter
    "deliver": JobBounds(400, each_max=4, account_max=50),
}


class JobQueue:
    """Accepts and runs jobs; made by `open_jobs()`."""

    def __init__(
        self,
        quota: QuotaService,
        webhook_sender: WebhookSender,
        *,
        retry_s: Sequence[float],
        rng: random.Random,
    ) -> None:
        self._store = quota.store
        self._quota = quota
        self._sender = webhook_sender
        self._backoff = callback_backoff(retry_s)
        self._now = quota.now
        self._rng = rng
        self._verifier = self._worker("verify")
        self._deliverer = self._worker("deliver")
        self.workers = (self._verifier, self._deliverer)

    def wake(self) -> None:
        """A job was stored: verify it now, or call back if its result is known."""
        self._verifier.wake()
        self._deliverer.wake()

    def stop(self) -> None:
        """Claim no more jobs, and finish those in progress within DRAIN_S."""
        for worker in self.workers:
            worker.stop()

    # working

    def _worker(self, work: Work) -> Worker[Claim]:
        bounds = BOUNDS[work]
        pace = Pace(
            bounds.at_a_time, lease_s=LEASE_S, extend_every_s=EXTEND_EVERY_S, poll_s=POLL_S,
            store_pause_s=PAUSE_S, drain_s=DRAIN_S,
        )  # fmt: skip
        queue = WorkQueue(
            f"jobs to {work}",
            pace,
            claim=partial(self._claim, work),
            extend=partial(self._store.extend_claim, lease_s=LEASE_S),
            attempt=self._verify if work == "verify" else self._deliver,
            name_of=lambda claim: claim.job.id,
            after_bug=self._after_bug if work == "verify" else None,
        )
        return Worker(queue, chance=self._rng.random)

    async def _claim(self, work: Work, limit: int) -> Sequence[Claim]:
        bounds = BOUNDS[work]
        protection = self._quota.protection
        if work == "verify" and protection.holds_requests:
            if not protection.lets_pass("job"):
                return ()
            limit = 1
        return await self._store.claim_jobs(
            work,
            limit=limit,
            each_max=bounds.each_max,
            account_max=bounds.account_max,
            lease_s=LEASE_S,
        )

    def _after_bug(self, claim: Claim) -> AttemptResult | None:
        """Give up a job whose verification has failed INTERNAL_TRIES_MAX times."""
        if claim.fence < INTERNAL_TRIES_MAX:
            return None
        return AttemptResult(partial(self._store.abandon_job, claim))

    # verifying

    async def _verify(self, claim: Claim, _: Batch[Claim]) -> AttemptResult:
        job = claim.job
        with start_span("verify job", "consumer", job.trace or "", {"mailprobe.job.id": job.id}):
            answer = await self._verify_all(claim)
        wait_s = recheck_after_s(job, answer)
        if wait_s is not None:
            due_at = self._now() + timedelta(seconds=wait_s)
            return AttemptResult(partial(self._store.postpone_job, claim, due_at), wait_s)
        payload = payload_of(answer.verdict, job.id)

        async def record() -> None:
            if await count_job(self._quota, claim, answer.verdict, payload):
                self._deliverer.wake()

        return AttemptResult(record)

    async def _verify_all(self, claim: Claim) -> Answer:
        """Verify by the same stream as all clients; it counts towards this process's capacity.

        A job that is verified again gives slow hosts more time.
        """
        capacity, job = self._quota.capacity, claim.job
        capacity.enter(1)
        try:
            async with open_answers(
                self._quota.engine,
                [job.email],
                account=job.account_id,
                patient=job.tries > 0,
                bounced=await self._quota.bounced.among(claim.caller, [job.email]),
                asks_hosts=job.asks_hosts,
            ) as answers:
                answer = await anext(answers)
                self._quota.protection.note(job.account_id, [answer])
                return answer
        finally:
            capacity.release(1)

    # delivering

    async def _deliver(self, claim: Claim, _: Batch[Claim]) -> AttemptResult:
        job = claim.job
        async with trio.open_nursery() as beside:
            beside.start_soon(self._wake_once_it_hangs)
            attempt, retry_after_s = await self._send_callback(claim, self._now())
            beside.cancel_scope.cancel()
        state, wait_s = verdict_on(
            attempt.status,
            tries=attempt.number,
            backoff=self._backoff,
            chance=self._rng.random(),
            retry_after_s=retry_after_s,
        )
        due_at = None if wait_s is None else self._now() + timedelta(seconds=wait_s)
        log.info(
            "callback attempted: attempt=%d status=%s error=%s",
            attempt.number, attempt.status, attempt.error,
            extra={"job": job.id, "host": job.host.rpartition(" ")[2], "state": state},
        )  # fmt: skip
        record = partial(self._store.job_attempted, claim, attempt, state=state, due_at=due_at)
        return AttemptResult(record, retry_in_s=wait_s)

    async def _wake_once_it_hangs(self) -> None:
        """Claim again: a call that hangs leaves room to the account's other receivers."""
        await trio.sleep(HANGS_AFTER.total_seconds())
        self._deliverer.wake()

    async def _send_callback(self, claim: Claim, at: datetime) -> tuple[Attempt, float | None]:
        job, number = claim.job, claim.job.tries + 1
        if claim.undecryptable:
            log.error(
                "callback secret unreadable: job=%s encrypted with another secret key", job.id
            )
            return Attempt(number, at, 0, None, ENCRYPTED), None
        try:
            target = check_webhook(job.webhook or "")
        except NotAWebhook as error:  # the rules have become stricter since it was accepted
            return Attempt(number, at, 0, None, str(error)), None
        payload = job.payload or b""
        headers = callback_headers(job.id, payload, claim.secret, at)
        delivered = await self._deliver_traced(job, target, headers, payload)
        attempt = Attempt(number, at, delivered.took_ms, delivered.status, delivered.error)
        return attempt, delivered.retry_after_s

    async def _deliver_traced(
        self, job: Job, target: WebhookTarget, headers: dict[str, str], payload: bytes
    ) -> Delivered:
        """Deliver as a span in the trace of the job's request, which the receiver can carry on.

        The span has no URL: its path and query are often a secret.
        """
        noted: dict[str, str | int] = {
            "http.request.method": "POST",
            "server.address": target.host,
            "server.port": target.port,
            "mailprobe.job.id": job.id,
        }
        if job.tries:
            noted["http.request.resend_count"] = job.tries
        with start_span("POST", "client", job.trace or "", noted) as span:
            trace = span.trace or child_of(job.trace, self._rng.randrange(1, 1 << 64))
            delivered = await self._sender.deliver(target, headers | traceparent_of(trace), payload)
            if delivered.status is None:
                span.failed("no_answer", delivered.error or "")
                return delivered
            span.note({"http.response.status_code": delivered.status})
            if delivered.status >= 400:
                span.failed(str(delivered.status))
            return delivered


@asynccontextmanager
async def open_jobs(
    quota: QuotaService,
    webhook_sender: WebhookSender,
    *,
    retry_s: Sequence[float],
    rng: random.Random,
) -> AsyncIterator[JobQueue]:
    """Run jobs for the duration of the block; leaving it waits up to DRAIN_S for unfinished ones."""
    queue = JobQueue(quota, webhook_sender, retry_s=retry_s, rng=rng)
    async with open_workers(*queue.workers):
        yield queue
