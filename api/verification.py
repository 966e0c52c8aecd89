"""The three ways to verify: one address, a batch in its order, a stream as results come.

Each is a collector over the one metered stream.
"""

from collections.abc import Sequence

import msgspec
import trio

from api.metering import open_granted, open_metered
from api.refusals import InvalidRequest
from api.requests import NDJSON, Call, Lines, Reply, reply
from api.schema import BatchRequest, BatchVerifyResponse, VerifyEmailResult, VerifyRequest
from api.service import Service
from engine import Answer, Verdict

_encoder = msgspec.json.Encoder()


async def verify_email(service: Service, call: Call) -> Reply:
    """One address, its result."""
    body: VerifyRequest = call.body
    _check_webhook(body)
    explain = wants_evidence(call, "request")
    (answer,) = await _collect(service, call, [body.email], "verify", explain)
    return reply(200, _result(answer))


async def verify_batch(service: Service, call: Call) -> Reply:
    """Up to fifty addresses, their results in the order of the request."""
    began = trio.current_time()
    body: BatchRequest = call.body
    explain = wants_evidence(call, "batch")
    answers = await _collect(service, call, body.emails, "batch", explain)
    latency_ms = round((trio.current_time() - began) * 1000)
    results = [_result(answer) for answer in answers]
    return reply(200, BatchVerifyResponse(results, len(results), latency_ms))


async def verify_stream(service: Service, call: Call) -> Reply:
    """Up to fifty addresses, a line for each as soon as its result is there."""
    body: BatchRequest = call.body
    explain = wants_evidence(call, "streaming")
    grant = await service.meter.reserve(call.caller, len(body.emails), "stream", call.headers)
    lines = Lines(
        open=lambda: open_granted(service.meter, grant, body.emails, explain=explain),
        encode=encode_lines,
    )
    # no proxy may hold a line back until a buffer of its own is full
    return Reply(200, lines, {"X-Accel-Buffering": "no"}, NDJSON)


async def _collect(
    service: Service, call: Call, texts: Sequence[str], operation: str, explain: bool
) -> list[Answer]:
    """All answers, in the order of the texts."""
    collected: dict[int, Answer] = {}
    async with open_metered(
        service.meter, call.caller, texts,
        operation=operation, headers=call.headers, explain=explain,
    ) as answers:  # fmt: skip
        async for answer in answers:
            collected[answer.place] = answer
    return [collected[place] for place in range(len(texts))]


def encode_lines(answers: Sequence[Answer]) -> bytes:
    """One line of JSON for each, every one with its end."""
    return _encoder.encode_lines([_result(answer) for answer in answers])


def _result(answer: Answer) -> Verdict:
    if answer.evidence is None:
        return answer.verdict
    return VerifyEmailResult(**msgspec.structs.asdict(answer.verdict), evidence=answer.evidence)


def wants_evidence(call: Call, section: str) -> bool:
    """Was evidence asked for? Nothing but `?evidence=1` or `0` is understood."""
    said = set(call.query.get("evidence", ["0"]))
    if said in ({"0"}, {"1"}):
        return said == {"1"}
    raise InvalidRequest("The query parameter evidence must be 1 or 0.", section, was_json=True)


def _check_webhook(body: VerifyRequest) -> None:
    """A callback cannot be promised yet, so it is not silently forgotten either."""
    if body.webhook is None:
        return
    if not body.webhook.startswith("https://"):
        raise InvalidRequest("The field webhook must begin with https://.", was_json=True)
    raise InvalidRequest(
        "Asynchronous verification is not available yet, so the field webhook must be absent.",
        was_json=True,
        fix="Leave webhook out: the result comes in the answer, within about 3 seconds.",
    )
