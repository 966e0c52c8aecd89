"""The operation of publishable keys: one address, for a form in a web page.

Every visitor of the page may call it, so an answer has only what a form needs: neither the
result's other fields, nor evidence, nor anything of the account or of this service. Refusals of
the account's limits lose their figures here.
"""

from collections.abc import Sequence
from typing import cast, get_args

from mailprobe.api.error_table import retry_after_s
from mailprobe.api.operations.operation import Call, OperationReply, reply
from mailprobe.api.operations.verify import answer_whole
from mailprobe.api.quota.charge import Verifications
from mailprobe.api.refusals import FormBusy, FormOff, HardCapReached, QuotaExhausted, RateLimited
from mailprobe.api.results.lights import OURS
from mailprobe.api.schema import FormReason, FormRequest, FormResponse
from mailprobe.api.service import Service
from mailprobe.engine import Answer
from mailprobe.engine.lights import light_of
from mailprobe.engine.reasons import VerdictCause

SHOWN: frozenset[str] = frozenset(get_args(FormReason))


async def verify_form(service: Service, call: Call) -> OperationReply:
    """One address that a visitor typed: its light, its reason, and a suggestion for a typo."""
    body: FormRequest = call.body
    spending = Verifications("form", [body.email])
    try:
        return await answer_whole(service, call, spending, _reply_of)
    except RateLimited as refusal:
        raise FormBusy(retry_after_s(refusal.asked_at, refusal.reset_at)) from None
    except (HardCapReached, QuotaExhausted):
        raise FormOff from None


def _reply_of(answers: Sequence[Answer]) -> OperationReply:
    (answer,) = answers
    verdict = answer.verdict
    return reply(
        200, FormResponse(light_of(verdict), reason_for_visitors(answer.cause), verdict.suggestion)
    )


def reason_for_visitors(cause: VerdictCause) -> FormReason:
    """The reason as a visitor learns it: what the address, its domain or its host says of itself.

    What the account knows looks like the host's own answer, and what this service does, or what
    hosts do to it, is `unclear`.
    """
    if cause.reason == "bounced":
        return "no_mailbox"
    if cause.blame in OURS or cause.reason not in SHOWN:
        return "unclear"
    return cast(FormReason, cause.reason)
