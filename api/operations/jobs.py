"""The operations on jobs: a verification that runs in the background, and its state."""

from contextlib import suppress
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from mailprobe.storage.records import Caller, Job, JobState

from ..quota.charge import Submission, charge
from ..refusals import JobNotFound
from ..sandbox.addresses import DOMAIN
from ..schema import Instant, says
from ..service import Service
from .examples import AT, ID, SOON
from .operation import (
    KEYED,
    Call,
    ItemId,
    Operation,
    OperationReply,
    ToolForm,
    ToolText,
    reply,
)
from .verify import (
    RESULT,
    VerifyEmailResult,
    VerifyRequest,
    order_of,
    with_sandbox_result,
)


class JobAttempt(Struct, frozen=True):
    """One attempt to call back: the HTTP status of the answer, or the error if there was none."""

    number: Annotated[int, says("The number of the attempt, from 1.")]
    at: Annotated[Instant, says("When it began, or was done.")]
    took_ms: Annotated[int, Meta(description="Milliseconds that it took.", ge=0)]
    status: Annotated[int | None, says("The HTTP status of the answer, if there was one.")] = None
    error: Annotated[str | None, says("Why there was no answer.")] = None


class JobResponse(Struct, frozen=True, kw_only=True):
    """A job. `result` is there once it is verified, `next_attempt_at` while a callback is due."""

    job_id: Annotated[
        str,
        says("The id of the job: /v1/jobs/{id} has its state, and the callback repeats it."),
    ]
    status: Annotated[
        JobState,
        says(
            "`pending`: not verified yet. `delivering`: verified, and the callback is not "
            "delivered. `done`: verified, and delivered if there is a webhook. `failed`: given up."
        ),
    ]
    created_at: Annotated[Instant, says("When it was created.")]
    attempts: Annotated[
        list[JobAttempt],
        says("The attempts to call back, in order; at most the last hundred."),
    ]
    result: Annotated[VerifyEmailResult | None, says("The result, when it is known.")] = None
    next_attempt_at: Annotated[Instant | None, says("When the callback is posted next.")] = None
    ended_at: Annotated[
        Instant | None,
        says("When it ended: the result is known, and its callback delivered or given up."),
    ] = None


_payload = msgspec.json.Decoder(VerifyEmailResult)  # without the job's id


async def get_job(service: Service, call: Call) -> OperationReply:
    """A job of the account and of the key's kind: its state, its result when there is one, each attempt to call back."""
    job_id = call.path_id()
    job = await service.store.job(job_id) if job_id else None
    if job is None or not call.caller.may_see(job.account_id, is_test=job.is_test):
        raise JobNotFound
    attempts = [
        JobAttempt(each.number, each.at, each.took_ms, each.status, each.error)
        for each in await service.store.attempts(job.id)
    ]
    return reply(200, _response(job, attempts))


async def send_test_callback(
    service: Service, caller: Caller, webhook: str, secret: str | None
) -> str:
    """Call back with the result of a sandbox address; return the id of the job.

    It costs nothing, and is a job as any other: tried again, shown, and sent again. Raises
    NotAWebhook, RateLimited, TooManyJobs, StoreUnavailable.
    """
    body = VerifyRequest(f"deliverable@{DOMAIN}", webhook, secret)
    order = with_sandbox_result(service, order_of(caller.account.id, body))
    async with charge(service.quota, caller, Submission(order, is_trial=True)):
        pass
    if service.jobs is not None:
        service.jobs.wake()
    return order.id


def _response(job: Job, attempts: list[JobAttempt]) -> JobResponse:
    result = None
    with suppress(msgspec.ValidationError):  # the payload of a list's callback
        if job.payload is not None:
            result = _payload.decode(job.payload)
    return JobResponse(
        job_id=job.id,
        status=job.state,
        created_at=job.created_at,
        ended_at=job.ended_at,
        result=result,
        attempts=attempts,
        next_attempt_at=job.due_at if job.state == "delivering" else None,
    )


class JobId(ItemId, frozen=True):
    """The id of a job."""

    id: Annotated[str, says("The job_id of verify_email.")]


GET_TOOL = ToolForm(
    ToolText(
        "A background verification",
        "The state of a verification that was started with webhook or async, its result once "
        "there is one, and the attempts to call back.",
        only_reads=True,
        repeats_freely=True,
    ),
    JobId,
)
OPERATIONS = (
    Operation(
        "get_job", "GET", "/v1/jobs/{id}", "A job: its state, result and attempts",
        get_job, "standard", JobResponse, section="jobs", may=(*KEYED, JobNotFound), wide=GET_TOOL,
        examples=(
            JobResponse(
                job_id=str(ID), status="done", created_at=AT, ended_at=SOON, result=RESULT,
                attempts=[JobAttempt(1, SOON, 84, 204)],
            ),
        ),
    ),
)  # fmt: skip
