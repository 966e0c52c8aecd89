"""The three ways to verify: one address, a batch in its order, a stream as results come.

Each is a collector over the one metered stream.
"""

from collections.abc import Callable, Sequence
from hashlib import sha256
from uuid import UUID, uuid4, uuid5

import msgspec
import trio

from api.metering import open_counted, open_granted, open_metered, spend_known
from api.refusals import InvalidRequest
from api.requests import NDJSON, Call, Lines, Reply, reply
from api.schema import (
    AsyncVerifyResponse,
    BatchRequest,
    BatchVerifyResponse,
    VerifyEmailResult,
    VerifyRequest,
)
from api.service import Service
from api.webhooks import NotAWebhook, check_webhook
from engine import Answer, Verdict
from engine.evidence import EvidenceBudget
from storage.records import JobOrder

JOBS = UUID("8f2d3c56-6a0e-4f7b-9d43-0c6a5b1e7f20")  # the namespace of ids made from keys

_encoder = msgspec.json.Encoder()


async def verify_email(service: Service, call: Call) -> Reply:
    """One address, its result; with a webhook the result is posted there when it is known."""
    body: VerifyRequest = call.body
    explain = wants_evidence(call, "request")
    if body.webhook is not None:
        return await _promise(service, call, body, explain)
    (answer,) = await _collect(service, call, [body.email], "verify", explain)
    return reply(200, _result(answer, EvidenceBudget()))


async def verify_batch(service: Service, call: Call) -> Reply:
    """Up to fifty addresses, their results in the order of the request."""
    began = trio.current_time()
    body: BatchRequest = call.body
    explain = wants_evidence(call, "batch")
    answers = await _collect(service, call, body.emails, "batch", explain)
    latency_ms = round((trio.current_time() - began) * 1000)
    budget = EvidenceBudget()
    results = [_result(answer, budget) for answer in answers]
    return reply(200, BatchVerifyResponse(results, len(results), latency_ms))


async def verify_stream(service: Service, call: Call) -> Reply:
    """Up to fifty addresses, a line for each as soon as its result is there."""
    body: BatchRequest = call.body
    explain = wants_evidence(call, "streaming")
    meter, texts, encode = service.meter, body.emails, encoder_of_lines()
    known = await spend_known(
        meter, call.caller, texts, operation="stream", headers=call.headers, explain=explain
    )
    if known is not None:
        lines = Lines(open=lambda: open_counted(known), encode=encode)
    else:
        grant = await meter.reserve(call.caller, len(texts), "stream", call.headers)
        lines = Lines(
            open=lambda: open_granted(meter, grant, texts, explain=explain), encode=encode
        )
    # no proxy may hold a line back until a buffer of its own is full
    return Reply(200, lines, {"X-Accel-Buffering": "no"}, NDJSON)


async def _collect(
    service: Service, call: Call, texts: Sequence[str], operation: str, explain: bool
) -> list[Answer]:
    """All answers, in the order of the texts."""
    known = await spend_known(
        service.meter, call.caller, texts,
        operation=operation, headers=call.headers, explain=explain,
    )  # fmt: skip
    if known is not None:
        return known
    collected: dict[int, Answer] = {}
    async with open_metered(
        service.meter, call.caller, texts,
        operation=operation, headers=call.headers, explain=explain,
    ) as answers:  # fmt: skip
        async for answer in answers:
            collected[answer.place] = answer
    return [collected[place] for place in range(len(texts))]


def encoder_of_lines() -> Callable[[Sequence[Answer]], bytes]:
    """For the lines of one stream: a line of JSON for each answer, every one with its end."""
    budget = EvidenceBudget()

    def encode(answers: Sequence[Answer]) -> bytes:
        return _encoder.encode_lines([_result(answer, budget) for answer in answers])

    return encode


def _result(answer: Answer, budget: EvidenceBudget) -> Verdict:
    if answer.evidence is None:
        return answer.verdict
    evidence = budget.fit(answer.evidence)
    return VerifyEmailResult(**msgspec.structs.asdict(answer.verdict), evidence=evidence)


def wants_evidence(call: Call, section: str) -> bool:
    """Was evidence asked for? Nothing but `?evidence=1` or `0` is understood."""
    said = set(call.query.get("evidence", ["0"]))
    if said in ({"0"}, {"1"}):
        return said == {"1"}
    raise InvalidRequest("The query parameter evidence must be 1 or 0.", section, was_json=True)


async def _promise(service: Service, call: Call, body: VerifyRequest, explain: bool) -> Reply:
    """202 once the job is durably kept."""
    if explain:
        raise _malformed(
            "The query parameter evidence cannot be 1 together with a webhook.",
            "Leave evidence out, or leave webhook out and get the evidence in the answer.",
        )
    try:
        target = check_webhook(body.webhook or "")
    except NotAWebhook as error:
        raise _malformed(
            f"The field webhook will not do: {error}.",
            "Send a public https:// URL with a host name, without user or password.",
        ) from None
    if service.jobs is None:
        raise _malformed(
            "This service runs nothing in the background, so the field webhook must be absent.",
            "Leave webhook out: the result comes in the answer, within about 3 seconds.",
        )
    # a customer's receiver that hangs is that customer's trouble, and its other port is another
    receiver = f"{call.caller.account.id} {target.authority}"
    order = JobOrder(_job_id(call), body.email, target.url, receiver, body.webhook_secret)
    job = await service.jobs.promise(call.caller, order, call.headers)
    return reply(202, AsyncVerifyResponse(job.id))


def _malformed(why: str, fix: str) -> InvalidRequest:
    return InvalidRequest(why, was_json=True, fix=fix)


def _job_id(call: Call) -> str:
    """A new one; where the request has an Idempotency-Key, the one that a repeat would get too.

    So a request that is repeated because the process died before it had kept its
    answer finds its job, and nothing is verified or billed twice.
    """
    key = call.sent.get("idempotency-key")
    if key is None:
        return str(uuid4())
    body: VerifyRequest = call.body
    name = msgspec.json.encode([call.caller.account.id, key, msgspec.structs.astuple(body)])
    return str(uuid5(JOBS, sha256(name).hexdigest()))
