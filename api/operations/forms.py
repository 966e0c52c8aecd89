"""The operation of publishable keys: one address, for a form in a web page.

Every visitor of the page may call it, so an answer has only what a form needs: neither the
result's other fields, nor evidence, nor anything of the account or of this service. Refusals of
the account's limits lose their figures here.
"""

from collections.abc import Sequence
from typing import Annotated, Literal, cast, get_args

from msgspec import Struct

from mailprobe.engine import Answer
from mailprobe.engine.reasons import VerdictCause
from mailprobe.engine.verdict import Light, light_of

from ..error_table import retry_after_s
from ..quota.charge import Verifications
from ..refusals import (
    FormBusy,
    FormOff,
    HardCapReached,
    OriginNotAllowed,
    ProbingUnavailable,
    ProofRequired,
    QuotaExhausted,
    RateLimited,
)
from ..results.lights import OURS
from ..schema import AddressBody, says
from ..service import Service
from .operation import (
    BODIED,
    KEYED,
    Call,
    Operation,
    OperationReply,
    parameter,
    reply,
)
from .verify import answer_whole

FORMS = "/v1/forms/verify"
FORM_OCTETS_MAX = 4096  # an address of 320 characters, each escaped to six octets, and room

# Of the reasons, those that tell nothing of the account or of this service.
FormReason = Literal[
    "accepted",
    "untested",
    "catch_all",
    "syntax",
    "disposable",
    "no_mx",
    "no_mailbox",
    "disabled",
    "full",
    "greylisted",
    "temporary",
    "policy",
    "needs_smtputf8",
    "host_down",
    "host_error",
    "timeout",
    "unclear",
]


SHOWN: frozenset[str] = frozenset(get_args(FormReason))


class FormRequest(AddressBody, frozen=True):
    """One address of a form. Every string gets a result, as in a VerifyRequest."""

    email: Annotated[str, says("The string as it was sent.")]

    def texts(self) -> Sequence[str]:
        return (self.email,)


class FormResponse(Struct, frozen=True):
    """What a form does with an address, and why. A suggestion is the domain that was meant."""

    light: Annotated[
        Light, says("What to do with the address: accept it, take care, or reject it.")
    ]
    reason: Annotated[FormReason, says("Why, in one word.")]
    suggestion: Annotated[str | None, says("The corrected domain of a likely typo.")]


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


OPERATIONS = (
    Operation(
        "verify_form", "POST", FORMS, "Verify an address of a form in a web page",
        verify_form, "form", FormResponse,
        takes=FormRequest, section="forms", octets_max=FORM_OCTETS_MAX,
        may=(*KEYED, *BODIED, OriginNotAllowed, ProofRequired, FormBusy, FormOff, ProbingUnavailable),
        parameters=(
            parameter(
                "Origin",
                "The origin of the page; one of the key's. Browsers send it by themselves.",
                "header", required=True,
            ),
            parameter(
                "Form-Proof",
                "The solved challenge of the last response's Form-Challenge, where the service "
                "wants one.",
                "header", maxLength=64,
            ),
        ),
        examples=(
            FormRequest("ann@gmial.com"), FormResponse("YELLOW_LIGHT", "disposable", "gmail.com"),
        ),
    ),
)  # fmt: skip
