"""The three operations that verify: one address, a batch in its order, a stream.

Each consumes the one metered stream.
"""

from collections.abc import Callable, Sequence
from uuid import uuid4

import msgspec
import trio

from mailprobe.api.jobs.rules import NotAWebhook, check_webhook
from mailprobe.api.quota.metered_stream import open_counted, open_granted, open_metered, spend_known
from mailprobe.api.rest.messages import (
    ECHOED_CHARACTERS_MAX,
    NDJSON,
    Call,
    OperationReply,
    StreamedLines,
    reply,
)
from mailprobe.api.rest.refusals import InvalidRequest, Section
from mailprobe.api.rest.schema import (
    AsyncVerifyResponse,
    BatchRequest,
    BatchVerifyResponse,
    VerifyEmailResult,
    VerifyRequest,
)
from mailprobe.api.service import Service
from mailprobe.engine import Answer, Verdict
from mailprobe.engine.evidence import EvidenceBudget
from mailprobe.storage.records import FirstAnswer, JobOrder

_encoder = msgspec.json.Encoder()


async def verify_email(service: Service, call: Call) -> OperationReply:
    """One address, its result; with a webhook the result is posted there when it is known."""
    body: VerifyRequest = call.body
    explain = evidence_requested(call, "request")
    if body.webhook is not None:
        return await _submit_job(service, call, body, explain)

    def make(answers: Sequence[Answer]) -> OperationReply:
        return reply(200, _result(answers[0], EvidenceBudget()))

    return await _answer_whole(service, call, [body.email], "verify", make, explain)


async def verify_batch(service: Service, call: Call) -> OperationReply:
    """Up to fifty addresses, their results in the order of the request."""
    began = trio.current_time()
    body: BatchRequest = call.body
    explain = evidence_requested(call, "batch")

    def make(answers: Sequence[Answer]) -> OperationReply:
        latency_ms = round((trio.current_time() - began) * 1000)
        budget = EvidenceBudget()
        results = [_result(answer, budget) for answer in answers]
        return reply(200, BatchVerifyResponse(results, len(results), latency_ms))

    return await _answer_whole(service, call, body.emails, "batch", make, explain)


async def verify_stream(service: Service, call: Call) -> OperationReply:
    """Up to fifty addresses, a line for each as soon as its result is there."""
    body: BatchRequest = call.body
    explain = evidence_requested(call, "streaming")
    quota, texts, encode = service.quota, body.emails, encoder_of_lines()
    known = await spend_known(
        quota, call.caller, texts, operation="stream", headers=call.headers, explain=explain
    )
    if known is not None:
        lines = StreamedLines(open=lambda: open_counted(known), encode=encode)
    else:
        grant = await quota.reserve(call.caller, len(texts), "stream", call.headers)
        lines = StreamedLines(
            open=lambda: open_granted(quota, grant, texts, explain=explain), encode=encode
        )
    # keeps a proxy from buffering lines
    return OperationReply(200, lines, {"X-Accel-Buffering": "no"}, NDJSON)


async def _answer_whole(
    service: Service,
    call: Call,
    texts: Sequence[str],
    operation: str,
    make: Callable[[Sequence[Answer]], OperationReply],
    explain: bool,
) -> OperationReply:
    """Verify all texts and return the reply of `make`; it is stored with their settlement."""
    made: list[OperationReply] = []

    def make_first(answers: Sequence[Answer]) -> FirstAnswer | None:
        made.append(make(answers))
        return call.first_answer(made[0])

    known = await spend_known(
        service.quota, call.caller, texts,
        operation=operation, headers=call.headers, explain=explain, make_first=make_first,
    )  # fmt: skip
    if known is None:
        collected: dict[int, Answer] = {}
        async with open_metered(
            service.quota, call.caller, texts,
            operation=operation, headers=call.headers, explain=explain,
        ) as answers:  # fmt: skip
            async for answer in answers:
                collected[answer.position] = answer
            answers.first = make_first([collected[position] for position in range(len(texts))])
    call.mark_kept()
    return made[0]


def encoder_of_lines() -> Callable[[Sequence[Answer]], bytes]:
    """Return the encoder of one stream: a line of JSON for each answer, with its line end."""
    budget = EvidenceBudget()

    def encode(answers: Sequence[Answer]) -> bytes:
        return _encoder.encode_lines([_result(answer, budget) for answer in answers])

    return encode


def _result(answer: Answer, budget: EvidenceBudget) -> Verdict:
    if answer.evidence is None:
        return answer.verdict
    evidence = budget.fit(answer.evidence)
    return VerifyEmailResult(**msgspec.structs.asdict(answer.verdict), evidence=evidence)


def evidence_requested(call: Call, section: Section) -> bool:
    """Whether the query asks for evidence. Raises InvalidRequest for values but 0 and 1."""
    values = set(call.query.get("evidence", ["0"]))
    if values in ({"0"}, {"1"}):
        return values == {"1"}
    raise InvalidRequest("The query parameter evidence must be 1 or 0.", section, was_json=True)


async def _submit_job(
    service: Service, call: Call, body: VerifyRequest, explain: bool
) -> OperationReply:
    """Submit a job; reply 202 once it is stored durably."""
    if explain:
        raise _malformed(
            "The query parameter evidence cannot be 1 together with a webhook.",
            "Leave evidence out, or leave webhook out and get the evidence in the answer.",
        )
    try:
        target = check_webhook(body.webhook or "")
    except NotAWebhook as error:
        raise _malformed(
            f"The field webhook is not valid: {error}.",
            "Send a public https:// URL with a host name, without user or password.",
        ) from None
    if service.jobs is None:
        raise _malformed(
            "This service runs no background jobs, so the field webhook must be absent.",
            "Leave webhook out: the result comes in the answer, within about 3 seconds.",
        )
    # per account and authority: a receiver that hangs delays only its own account's callbacks
    receiver = f"{call.caller.account.id} {target.authority}"
    # a text longer than any address is cut before it is stored; its result stays the same
    email = body.email[:ECHOED_CHARACTERS_MAX]
    order = JobOrder(str(uuid4()), email, target.url, receiver, body.webhook_secret)
    promised = reply(202, AsyncVerifyResponse(order.id))
    first = call.first_answer(promised)
    await service.jobs.submit(call.caller, order, call.headers, first)
    call.mark_kept()
    return promised


def _malformed(why: str, fix: str) -> InvalidRequest:
    return InvalidRequest(why, was_json=True, fix=fix)
