"""The operations that verify: one address, a batch in its order, a stream, a live socket.

Each spends its units by one `charge()` (mailprobe.api.quota.charge). One address may be verified
in the background: then the answer is the id of a job.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Literal
from uuid import uuid4

import msgspec
import trio
from msgspec import UNSET, Meta, Struct, UnsetType, field
from msgspec.structs import replace

from mailprobe.engine import Answer, Evidence, Verdict
from mailprobe.engine.evidence import EvidenceBudget
from mailprobe.engine.verdict import Light, Reason, light_of
from mailprobe.storage.records import JobOrder

from ..jobs.rules import NotAWebhook, VerifyEmailCallback, check_webhook, payload_of
from ..observability.request_context import present_trace
from ..quota.charge import Submission, UndecodableRequest, Verifications, charge
from ..refusals import (
    HardCapReached,
    InvalidRequest,
    NeverFits,
    ProbingUnavailable,
    QuotaExhausted,
    RateLimited,
    TooManyJobs,
    UpgradeRequired,
)
from ..results.advice import advice_of
from ..sandbox.addresses import verify
from ..schema import AddressBody, says
from ..service import Service
from .examples import ID
from .operation import (
    BODIED,
    ECHOED_CHARACTERS_MAX,
    KEYED,
    NDJSON,
    REPEATABLE,
    Call,
    Operation,
    OperationReply,
    Refusals,
    StreamedLines,
    ToolForm,
    ToolRequest,
    ToolText,
    parameter,
    reply,
)
from .parameter_texts import NO_SMTP, when

EMAILS_MAX = 50
SECRET_CHARACTERS_MIN = 8
SECRET_CHARACTERS_MAX = 256
LIVE = "/v1/email/verify/live"
VERIFYING: Refusals = (
    *KEYED, *BODIED, HardCapReached, RateLimited, NeverFits, QuotaExhausted, ProbingUnavailable,
)  # fmt: skip

_encoder = msgspec.json.Encoder()

NO_SMTP_AT_ONCE = (
    f"{when('false', NO_SMTP)} Addresses that layers 1 to 3 do not decide are unknown at once."
)

# check_webhook says what is wrong with a URL, so the type has no constraints.
WebhookUrl = Annotated[str, Meta(extra_json_schema={"pattern": "^https://", "maxLength": 2048})]


class VerifyRequest(AddressBody, frozen=True):
    """One address. Every string gets a result; one that is not an address fails `syntax`."""

    email: Annotated[
        str,
        says(
            "The address. A string that is not an address gets a result too: failed_check `syntax`."
        ),
    ]
    webhook: Annotated[
        WebhookUrl | None,
        says(
            "A public https URL: the answer is 202 at once, and the result is posted there. A "
            "dotted host name, not an IP address, localhost or *.local; without user or password."
        ),
    ] = None
    webhook_secret: Annotated[
        Annotated[str, Meta(min_length=SECRET_CHARACTERS_MIN, max_length=SECRET_CHARACTERS_MAX)]
        | None,
        says(
            "Signs the callback; without a webhook it has no effect. Best is whsec_ and 24 to 64 "
            "random bytes in base64 (Standard Webhooks)."
        ),
    ] = None
    runs_async: Annotated[
        bool,
        says("The answer is 202 at once; GET /v1/jobs/{id} has the result. Needs no webhook."),
    ] = field(default=False, name="async")
    recheck: Annotated[
        bool,
        says(
            "With webhook or async: after temporary failures (greylisting, a time-out) it is verified again "
            "5 and 15 minutes later before the result is final. It counts once. Without them it "
            "has no effect."
        ),
    ] = False
    smtp: Annotated[
        bool,
        says(NO_SMTP_AT_ONCE),
    ] = True

    def texts(self) -> Sequence[str]:
        return (self.email,)


class BatchRequest(AddressBody, frozen=True):
    """One to fifty addresses, duplicates allowed: one result each."""

    emails: Annotated[
        list[str],
        Meta(min_length=1, max_length=EMAILS_MAX),
        says("The addresses; one unit and one result each."),
    ]
    smtp: Annotated[
        bool,
        says(NO_SMTP_AT_ONCE),
    ] = True

    def texts(self) -> Sequence[str]:
        return self.emails


class VerifyEmailResult(Verdict, frozen=True):
    """The result of a verification; `evidence` only on request."""

    evidence: Annotated[Evidence | UnsetType, says("Only with `?evidence=1`.")] = UNSET
    reason: Annotated[Reason | UnsetType, says("Why, in one word. Only with `?advice=1`.")] = UNSET
    light: Annotated[
        Light | UnsetType,
        says("What to do: accept it, take care, or reject it. Only with `?advice=1`."),
    ] = UNSET
    advice: Annotated[
        str | UnsetType, says("What to do, in a few sentences for people. Only with `?advice=1`.")
    ] = UNSET


class BatchVerifyResponse(Struct, frozen=True):
    """Results in the order of the request."""

    results: Annotated[list[Verdict], says("One for each address, in the order of the request.")]
    count: Annotated[int, says("How many there are.")]
    latency_ms: Annotated[int, says("Milliseconds that it took.")]


class AsyncVerifyResponse(Struct, frozen=True):
    """The verification runs. Its result is posted to the webhook, and `/v1/jobs/{id}` has it."""

    job_id: Annotated[
        str,
        says("The id of the job: /v1/jobs/{id} has its state, and the callback repeats it."),
    ]
    status: Annotated[Literal["pending"], says("Always pending.")]


async def verify_email(service: Service, call: Call) -> OperationReply:
    """One address, its result; with webhook or async the answer is a job's id at once."""
    body: VerifyRequest = call.body
    explain, advises = call.asks("evidence", "request"), call.asks("advice", "request")
    if body.webhook is not None or body.runs_async:
        return await submit_job(service, call, body, explain=explain, advises=advises)

    def make(answers: Sequence[Answer]) -> OperationReply:
        return reply(200, result_of(answers[0], EvidenceBudget(), advises=advises))

    asks_bounced = call.asks("ask_bounced", "bounces")
    spending = Verifications(
        "verify", [body.email], explain, asks_hosts=body.smtp, asks_bounced=asks_bounced
    )
    return await answer_whole(service, call, spending, make)


async def verify_batch(service: Service, call: Call) -> OperationReply:
    """Up to fifty addresses, their results in the order of the request."""
    began = trio.current_time()
    body: BatchRequest = call.body
    explain, advises = call.asks("evidence", "batch"), call.asks("advice", "batch")

    def make(answers: Sequence[Answer]) -> OperationReply:
        latency_ms = round((trio.current_time() - began) * 1000)
        budget = EvidenceBudget()
        results = [result_of(answer, budget, advises=advises) for answer in answers]
        return reply(200, BatchVerifyResponse(results, len(results), latency_ms))

    spending = Verifications("batch", body.emails, explain, asks_hosts=body.smtp)
    return await answer_whole(service, call, spending, make)


async def verify_stream(service: Service, call: Call) -> OperationReply:
    """Up to fifty addresses, a line for each as soon as its result is there."""
    body: BatchRequest = call.body
    explain, advises = call.asks("evidence", "streaming"), call.asks("advice", "streaming")
    spending = Verifications("stream", body.emails, explain, in_parts=True, asks_hosts=body.smtp)
    charged = call.charge = charge(service.quota, call.caller, spending, call.admission)
    await charged.reserve()  # refused before the head of the answer is sent
    lines = StreamedLines(charged, encoder_of_lines(advises=advises))
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


def encoder_of_lines(*, advises: bool = False) -> Callable[[Sequence[Answer]], bytes]:
    """Return the encoder of one stream: a line of JSON for each answer, with its line end."""
    budget = EvidenceBudget()

    def encode(answers: Sequence[Answer]) -> bytes:
        return _encoder.encode_lines(
            [result_of(answer, budget, advises=advises) for answer in answers]
        )

    return encode


def result_of(answer: Answer, budget: EvidenceBudget, *, advises: bool = False) -> Verdict:
    """The result of an answer, with its evidence as far as the budget allows, and with advice."""
    if answer.evidence is None and not advises:
        return answer.verdict
    verdict, reason = answer.verdict, answer.cause.reason
    result = VerifyEmailResult(
        **msgspec.structs.asdict(verdict),
        evidence=UNSET if answer.evidence is None else budget.fit(answer.evidence),
    )
    if not advises:
        return result
    return msgspec.structs.replace(
        result, reason=reason, light=light_of(verdict), advice=advice_of(verdict, reason)
    )


# -- in the background ----


async def submit_job(
    service: Service, call: Call, body: VerifyRequest, *, explain: bool, advises: bool
) -> OperationReply:
    """Submit a job; reply 202 once it is stored durably."""
    if explain or advises:
        name = "evidence" if explain else "advice"
        raise _malformed(
            f"The query parameter {name} cannot be 1 together with webhook or async.",
            f"Leave {name} out, or leave the others out and get the {name} in the answer.",
        )
    try:
        order = order_of(call.caller.account.id, body)
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
        order = with_sandbox_result(service, order)
    promised = reply(202, AsyncVerifyResponse(order.id, "pending"))
    charged = call.charge = charge(service.quota, call.caller, Submission(order), call.admission)
    async with charged:
        charged.first = call.first_answer(promised)
    service.jobs.wake()
    call.mark_kept()
    return promised


def with_sandbox_result(service: Service, order: JobOrder) -> JobOrder:
    """The order with the result that a test key gets."""
    began = trio.current_time()
    decided = verify(
        order.email, 0, service.quota.engine.lists, began=began, asks_hosts=order.asks_hosts
    )
    verdict = decided.verification.verdict(order.email, trio.current_time())
    return replace(order, payload=payload_of(verdict, order.id))


def order_of(account_id: str, body: VerifyRequest) -> JobOrder:
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


def _malformed(why: str, fix: str) -> InvalidRequest:
    return InvalidRequest(why, was_json=True, fix=fix)


DELIVERABLE = Verdict(
    "ann@example.org", True, "deliverable", 0.97, None,
    False, False, False, False, False, True, "mx.example.org", None, 212,
)  # fmt: skip
MISTYPED = Verdict(
    "bob@gmial.com", False, "invalid", 0.0, "disposable",
    True, False, False, False, False, False, None, "gmail.com", 0,
)  # fmt: skip
RESULT = VerifyEmailResult(**msgspec.structs.asdict(DELIVERABLE))
BATCH = BatchRequest(["ann@example.org", "bob@gmial.com"])

ASK_BOUNCED = parameter(
    "ask_bounced", "1: ask the mail host even if the address bounced. Without effect on a job.",
    enum=["0", "1"], default="0",
)  # fmt: skip


class VerifyArguments(VerifyRequest, frozen=True):
    """One address."""

    evidence: Annotated[bool, says("true: say why, with the conversation.")] = False
    advice: Annotated[bool, says("true: say why and what to do, in words.")] = False


class BatchArguments(BatchRequest, frozen=True):
    """One to fifty addresses."""

    evidence: Annotated[bool, says("true: say why, for each address.")] = False
    advice: Annotated[bool, says("true: say why and what to do with each address, in words.")] = (
        False
    )


def _tool_request(taken: VerifyArguments | BatchArguments, octets: bytes) -> ToolRequest:
    """The API ignores the members `evidence` and `advice` of a body, and takes them in the query."""
    names = [name for name in ("evidence", "advice") if getattr(taken, name)]
    return ToolRequest(query={name: ["1"] for name in names}, body=octets)


VERIFY_TEXT = ToolText(
    "Verify an email address",
    "Find out whether an email address takes mail, without sending any. Takes some 3 seconds "
    "at most. Every call is one verification of the account's quota. With a webhook the "
    "answer is a job_id at once, and the result is posted to the webhook.",
    reaches_out=True,
)
WEBHOOK: Mapping[str, object] = {
    "format": "uri",
    "description": "A public https URL with a host name. The answer is a job_id at once, and "
    "the result is posted there.",
}
# No tool of the eight would fetch the result of the first two; the arguments are the specification's.
VERIFY_TOOL = ToolForm(
    VERIFY_TEXT, VerifyRequest, {"webhook": WEBHOOK}, hides=("async", "recheck", "smtp")
)
WIDE_VERIFY_TOOL = ToolForm(
    replace(
        VERIFY_TEXT,
        description=VERIFY_TEXT.description
        + " With evidence the answer says why: the mail hosts that were tried, the conversation "
        "with them, and the rule that decided.",
    ),
    VerifyArguments,
    {
        "webhook": WEBHOOK,
        "async": {"description": "true: the answer is a job_id at once; get_job has the result."},
    },
    request_of=_tool_request,
)
BATCH_TOOL = ToolForm(
    ToolText(
        "Verify up to 50 addresses",
        "Find out which of up to 50 email addresses take mail, without sending any. Takes some 3 "
        "seconds at most. The results are in the order of the addresses; each is one "
        "verification of the account's quota.",
        reaches_out=True,
    ),
    BatchArguments,
    request_of=_tool_request,
)

OPERATIONS = (
    Operation(
        "verify_email", "POST", "/v1/email/verify", "Verify one address",
        verify_email, "standard", VerifyEmailResult, promises=AsyncVerifyResponse,
        takes=VerifyRequest, section="request", may=(*VERIFYING, *REPEATABLE, TooManyJobs),
        parameters=(ASK_BOUNCED,), malformed=UndecodableRequest("verify", True), tool=VERIFY_TOOL,
        wide=WIDE_VERIFY_TOOL,
        examples=(
            VerifyRequest("ann@example.org"), RESULT, AsyncVerifyResponse(str(ID), "pending"),
            VerifyEmailCallback(**msgspec.structs.asdict(DELIVERABLE), job_id=str(ID)),
        ),
    ),
    Operation(
        "verify_batch", "POST", "/v1/email/verify/batch", "Verify up to 50 addresses, in order",
        verify_batch, "standard", BatchVerifyResponse, takes=BatchRequest, section="batch",
        may=(*VERIFYING, *REPEATABLE), wide=BATCH_TOOL, malformed=UndecodableRequest("batch", False),
        examples=(BATCH, BatchVerifyResponse([DELIVERABLE, MISTYPED], 2, 214)),
    ),
    Operation(
        "verify_stream", "POST", "/v1/email/verify/stream",
        "Verify up to 50 addresses, one line per result in completion order",
        verify_stream, "standard", VerifyEmailResult, takes=BatchRequest, section="streaming",
        may=VERIFYING, media_type=NDJSON, malformed=UndecodableRequest("stream", False),
        examples=(BATCH, MISTYPED, DELIVERABLE),
    ),
    Operation(
        "verify_live", "GET", LIVE, "Open a live socket: addresses in, results out",
        verify_live, "standard", None, 101, section="live", may=(*KEYED, UpgradeRequired),
    ),
)  # fmt: skip
