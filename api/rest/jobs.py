"""The operations on jobs: a verification that runs in the background, and its state."""

from contextlib import suppress
from dataclasses import replace
from uuid import uuid4

import msgspec
import trio

from mailprobe.api.jobs.rules import NotAWebhook, check_webhook, payload_of
from mailprobe.api.observability.request_context import present_trace
from mailprobe.api.operations.operation import ECHOED_CHARACTERS_MAX, Call, OperationReply, reply
from mailprobe.api.quota.charge import Submission, charge
from mailprobe.api.refusals import InvalidRequest, JobNotFound
from mailprobe.api.sandbox.addresses import DOMAIN, verify
from mailprobe.api.schema import (
    AsyncVerifyResponse,
    JobAttempt,
    JobResponse,
    VerifyEmailCallback,
    VerifyEmailResult,
    VerifyRequest,
)
from mailprobe.api.service import Service
from mailprobe.storage.records import Caller, Job, JobOrder

_payload = msgspec.json.Decoder(VerifyEmailCallback)


async def submit_job(
    service: Service, call: Call, body: VerifyRequest, *, explain: bool
) -> OperationReply:
    """Submit a job; reply 202 once it is stored durably."""
    if explain:
        raise _malformed(
            "The query parameter evidence cannot be 1 together with webhook or async.",
            "Leave evidence out, or leave the others out and get the evidence in the answer.",
        )
    try:
        order = _order(call.caller.account.id, body)
    except NotAWebhook as error:
        raise _malformed(
            f"The field webhook is not valid: {error}.",
            "Send a public https:// URL with a host name, without user or password.",
        ) from None
    if service.jobs is None:
        raise _malformed(
            "This service runs no background jobs, so webhook and async must be absent.",
            "Leave them out: the result comes in the answer, within about 3 seconds.",
        )
    if call.caller.key.is_test:
        order = _with_sandbox_result(service, order)
    promised = reply(202, AsyncVerifyResponse(order.id))
    charged = call.charge = charge(service.quota, call.caller, Submission(order), call.admission)
    async with charged:
        charged.first = call.first_answer(promised)
    service.jobs.wake()
    call.mark_kept()
    return promised


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
    order = _with_sandbox_result(service, _order(caller.account.id, body))
    async with charge(service.quota, caller, Submission(order, is_trial=True)):
        pass
    if service.jobs is not None:
        service.jobs.wake()
    return order.id


def _with_sandbox_result(service: Service, order: JobOrder) -> JobOrder:
    """The order with the result that a test key gets."""
    began = trio.current_time()
    decided = verify(
        order.email, 0, service.quota.engine.lists, began=began, asks_hosts=order.asks_hosts
    )
    verdict = decided.verification.verdict(order.email, trio.current_time())
    return replace(order, payload=payload_of(verdict, order.id))


def _order(account_id: str, body: VerifyRequest) -> JobOrder:
    """The job that a request asks for. Raises NotAWebhook."""
    # a text longer than any address is cut before it is stored; its result stays the same
    job_id, email = str(uuid4()), body.email[:ECHOED_CHARACTERS_MAX]
    if body.webhook is None:
        return JobOrder(job_id, email, None, "", recheck=body.recheck, asks_hosts=body.smtp)
    target = check_webhook(body.webhook)
    # per account and authority: a receiver that hangs delays only its own account's callbacks
    receiver = f"{account_id} {target.authority}"
    secret = body.webhook_secret
    return JobOrder(
        job_id, email, target.url, receiver, secret, recheck=body.recheck, asks_hosts=body.smtp,
        trace=present_trace(),
    )  # fmt: skip


def _response(job: Job, attempts: list[JobAttempt]) -> JobResponse:
    result = None
    with suppress(msgspec.ValidationError):  # the payload of a list's callback
        if job.payload is not None:
            verdict = msgspec.structs.asdict(_payload.decode(job.payload))
            del verdict["job_id"]
            result = VerifyEmailResult(**verdict)
    return JobResponse(
        job_id=job.id,
        status=job.state,
        created_at=job.created_at,
        ended_at=job.ended_at,
        result=result,
        attempts=attempts,
        next_attempt_at=job.due_at if job.state == "delivering" else None,
    )


def _malformed(why: str, fix: str) -> InvalidRequest:
    return InvalidRequest(why, was_json=True, fix=fix)
