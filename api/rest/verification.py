"""The three operations that verify: one address, a batch in its order, a stream.

Each spends its units by one `charge()` (mailprobe.api.quota.charge).
"""

from collections.abc import Callable, Sequence

import msgspec
import trio

from mailprobe.api.operations.operation import NDJSON, Call, OperationReply, StreamedLines, reply
from mailprobe.api.quota.charge import Verifications, charge
from mailprobe.api.refusals import InvalidRequest, Section, UpgradeRequired
from mailprobe.api.rest.jobs import submit_job
from mailprobe.api.schema import BatchRequest, BatchVerifyResponse, VerifyEmailResult, VerifyRequest
from mailprobe.api.service import Service
from mailprobe.engine import Answer, Verdict
from mailprobe.engine.evidence import EvidenceBudget

_encoder = msgspec.json.Encoder()


async def verify_email(service: Service, call: Call) -> OperationReply:
    """One address, its result; with webhook or async the answer is a job's id at once."""
    body: VerifyRequest = call.body
    explain = evidence_requested(call, "request")
    if body.webhook is not None or body.runs_async:
        return await submit_job(service, call, body, explain=explain)

    def make(answers: Sequence[Answer]) -> OperationReply:
        return reply(200, result_of(answers[0], EvidenceBudget()))

    asks_bounced = _flag(call, "ask_bounced", "bounces")
    spending = Verifications(
        "verify", [body.email], explain, asks_hosts=body.smtp, asks_bounced=asks_bounced
    )
    return await answer_whole(service, call, spending, make)


async def verify_batch(service: Service, call: Call) -> OperationReply:
    """Up to fifty addresses, their results in the order of the request."""
    began = trio.current_time()
    body: BatchRequest = call.body
    explain = evidence_requested(call, "batch")

    def make(answers: Sequence[Answer]) -> OperationReply:
        latency_ms = round((trio.current_time() - began) * 1000)
        budget = EvidenceBudget()
        results = [result_of(answer, budget) for answer in answers]
        return reply(200, BatchVerifyResponse(results, len(results), latency_ms))

    spending = Verifications("batch", body.emails, explain, asks_hosts=body.smtp)
    return await answer_whole(service, call, spending, make)


async def verify_stream(service: Service, call: Call) -> OperationReply:
    """Up to fifty addresses, a line for each as soon as its result is there."""
    body: BatchRequest = call.body
    explain = evidence_requested(call, "streaming")
    spending = Verifications("stream", body.emails, explain, in_parts=True, asks_hosts=body.smtp)
    charged = call.charge = charge(service.quota, call.caller, spending, call.admission)
    await charged.reserve()  # refused before the head of the answer is sent
    lines = StreamedLines(open=lambda: charged, encode=encoder_of_lines())
    # keeps a proxy from buffering lines
    return OperationReply(200, lines, {"X-Accel-Buffering": "no"}, NDJSON)


async def verify_live(service: Service, call: Call) -> OperationReply:
    """Answer requests to the WebSocket's path that do not ask for an upgrade: 426."""
    raise UpgradeRequired


async def answer_whole(
    service: Service,
    call: Call,
    spending: Verifications,
    make: Callable[[Sequence[Answer]], OperationReply],
) -> OperationReply:
    """Verify all its texts and return the reply of `make`; it is stored with their settlement."""
    charged = call.charge = charge(service.quota, call.caller, spending, call.admission)
    async with charged:
        reply = make(await charged.in_order())
        charged.first = call.first_answer(reply)
    call.mark_kept()
    return reply


def encoder_of_lines() -> Callable[[Sequence[Answer]], bytes]:
    """Return the encoder of one stream: a line of JSON for each answer, with its line end."""
    budget = EvidenceBudget()

    def encode(answers: Sequence[Answer]) -> bytes:
        return _encoder.encode_lines([result_of(answer, budget) for answer in answers])

    return encode


def result_of(answer: Answer, budget: EvidenceBudget) -> Verdict:
    """The result of an answer, with its evidence as far as the budget allows."""
    if answer.evidence is None:
        return answer.verdict
    evidence = budget.fit(answer.evidence)
    return VerifyEmailResult(**msgspec.structs.asdict(answer.verdict), evidence=evidence)


def evidence_requested(call: Call, section: Section) -> bool:
    """Whether the query asks for evidence. Raises InvalidRequest for values but 0 and 1."""
    return _flag(call, "evidence", section)


def _flag(call: Call, name: str, section: Section) -> bool:
    values = set(call.query.get(name, ["0"]))
    if values in ({"0"}, {"1"}):
        return values == {"1"}
    raise InvalidRequest(f"The query parameter {name} must be 1 or 0.", section, was_json=True)
