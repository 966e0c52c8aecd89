"""The table of errors: status, code and texts of each refusal.

`message` says what is wrong, `action` what to do about it, `docs` links to the page.
Pure: no clock, no web framework.
"""

from datetime import datetime
from functools import cache
from math import ceil
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import fields

from . import refusals
from .refusals import Refusal, Section
from .schema import BODY_OCTETS_MAX, BODY_S_MAX, Instant, says


class ApiError(Struct, frozen=True):
    """An error: what is wrong, and what to do about it."""

    error: Annotated[str, says("A code of this API, for programs: see the table of errors.")]
    message: Annotated[str, says("What is wrong.")]
    action: Annotated[str, says("What to do about it.")]
    docs: Annotated[
        str, Meta(extra_json_schema={"format": "uri"}), says("The section of the documentation.")
    ]


class RateLimitError(ApiError, frozen=True):
    """The key's limit per minute. The same request passes from `reset_at` on."""

    limit: Annotated[int, says("The most that is allowed in the window.")]
    window: Annotated[Literal["1m"], says("The window of the limit: one minute.")]
    reset_at: Annotated[Instant, says("When the same request passes.")]


class MonthlyQuotaError(ApiError, frozen=True):
    """The free tier's month is used up. `used` is what was counted before this request."""

    limit: Annotated[int, says("The most that is allowed in the window.")]
    used: Annotated[int, says("What was counted before this request.")]
    reset_at: Annotated[Instant, says("When the same request passes.")]


class PaymentRequiredError(ApiError, frozen=True):
    """The request would exceed the hard spend cap of the billing period."""

    hard_cap_eur: Annotated[float | None, says("The account's hard spend cap.")]
    current_overage_eur: Annotated[
        float, says("What the overage of this billing period costs until now.")
    ]


class Links(Struct, frozen=True):
    """The public URLs that appear in bodies, without a trailing slash."""

    base_url: str
    docs_url: str
    dashboard_url: str


class ErrorRow(Struct, frozen=True):
    """One refusal's response. The texts are templates over its fields and the links."""

    status: int
    code: str
    message: str
    action: str
    anchor: Section | None  # None: the refusal's own section
    shape: type[ApiError] = ApiError
    closes: bool = False  # close the connection: the rest of the body is not read
    retry_s: int | None = None  # the Retry-After of a refusal without reset_at


AUTHENTICATE = "Send the header Authorization: Bearer <key> with "
# Retry-After is always enough; reset_at is by the service's clock, which the client's may be ahead of.
WAIT = "Wait Retry-After seconds, or until a little after reset_at, then send it again."

TABLE: dict[type[Refusal], ErrorRow] = {
    refusals.NoSuchRoute: ErrorRow(
        404, "not_found", "There is nothing at this path.",
        "To verify, use POST {base_url}/v1/email/verify, POST {base_url}/v1/email/verify/batch or "
        "POST {base_url}/v1/email/verify/stream; {base_url}/openapi.json describes every route.{also}",
        "endpoints",
    ),
    refusals.MethodNotAllowed: ErrorRow(
        405, "method_not_allowed", "{method} is not a method of this path.",
        "Use {allow}; {base_url}/openapi.json describes every route.", "endpoints",
    ),
    refusals.MissingKey: ErrorRow(
        401, "missing_api_key", "The request has no Authorization header.",
        AUTHENTICATE + "your {kind} key.", "authentication",
    ),
    refusals.InvalidKey: ErrorRow(
        401, "invalid_api_key", "{why}",
        AUTHENTICATE + "an active key; {dashboard_url} makes a new one.", "authentication",
    ),
    refusals.WrongKeyType: ErrorRow(
        403, "wrong_key_type", "A standard key does not open the management routes.",
        AUTHENTICATE + "a provisioning key (sk_mgmt_…).", "authentication",
    ),
    refusals.OriginNotAllowed: ErrorRow(
        403, "origin_not_allowed", "{why}",
        "Make a key for the origin of the page, as its Origin header has it.", "forms",
    ),
    refusals.ProofRequired: ErrorRow(
        428, "proof_required", "The request has no proof of work that is valid now.",
        "Solve the challenge in the header Form-Challenge, and send it again with Form-Proof.", "forms",
    ),
    refusals.FormBusy: ErrorRow(
        429, "form_busy", "There were too many checks in the last minute.",
        "Accept the address as it is, or wait Retry-After seconds.", "forms",
    ),
    refusals.FormOff: ErrorRow(
        503, "form_off", "This form's addresses are not verified at the moment.",
        "Accept the address as it is. The key's owner finds the cause in the dashboard.", "forms",
        retry_s=600,
    ),
    refusals.PayloadTooLarge: ErrorRow(
        413, "payload_too_large", "The body has more than {octets_max} octets.",
        "Send less at a time; a batch or a stream takes at most 50 addresses.", "limits",
        closes=True,
    ),
    refusals.SlowBody: ErrorRow(
        408, "request_timeout", "The body was not complete within {seconds_max} seconds.",
        "Send the whole body at once.", "limits", closes=True,
    ),
    refusals.SlowUpload: ErrorRow(
        408, "request_timeout", "The upload brought less than {kib_min} KiB in {seconds} seconds.",
        "Send it over a faster connection, compressed with gzip, or in several lists.", "lists",
        closes=True,
    ),
    refusals.UnsupportedCoding: ErrorRow(
        415, "unsupported_media_type", "The body's Content-Encoding is {coding}.",
        "Send the body as it is, without a Content-Encoding.", "request-bodies",
    ),
    refusals.UpgradeRequired: ErrorRow(
        426, "upgrade_required", "This path takes a WebSocket, and the request asks for none.",
        "Open it with a WebSocket client (RFC 6455), with the key in the Authorization header.",
        "live",
    ),
    refusals.InvalidRequest: ErrorRow(400, "invalid_request", "{why}", "{fix}", None),
    refusals.HardCapReached: ErrorRow(
        402, "payment_required",
        "This request could take the overage of the billing period above the hard spend cap.",
        "Do not send it again before the hard cap is raised or the plan is upgraded: "
        "{dashboard_url}.",
        "spend-caps", PaymentRequiredError,
    ),
    refusals.RateLimited: ErrorRow(
        429, "rate_limit_exceeded",
        "{units} more would make more than {limit} verifications in 60 seconds.{also}",
        WAIT, "limits", RateLimitError,
    ),
    refusals.NeverFits: ErrorRow(
        429, "rate_limit_exceeded",
        "The request is worth {units} verifications, and the limit is {limit} in 60 seconds: "
        "it must be split.{also}",
        "Split the request into ones of at most {limit} addresses, or upgrade: {dashboard_url}.",
        "limits", RateLimitError,
    ),
    refusals.QuotaExhausted: ErrorRow(
        429, "monthly_quota_exceeded",
        "{units} more would make more than {limit} verifications this month; {used} are counted.",
        "Wait until reset_at, the start of the next month (UTC), or upgrade: {dashboard_url}.",
        "limits", MonthlyQuotaError,
    ),
    refusals.JobNotFound: ErrorRow(
        404, "job_not_found", "The account has no job with this id.",
        "Use the job_id of a 202. A job is kept as long as the usage rows of the tier.", "jobs",
    ),
    refusals.ListNotFound: ErrorRow(
        404, "list_not_found", "The account has no list with this id.",
        "GET {base_url}/v1/lists has the lists that are kept.", "lists",
    ),
    refusals.BounceNotFound: ErrorRow(
        404, "bounce_not_found", "No bounce of this address is kept for the account.",
        "Nothing needs to be done: the address is not bounced.", "bounces",
    ),
    refusals.TooManyLists: ErrorRow(
        429, "list_limit_reached", "The account has {lists_max} lists that have not ended.",
        "Wait until one has ended, or cancel one.", "lists", retry_s=60,
    ),
    refusals.TooManyKeptLists: ErrorRow(
        429, "list_limit_reached", "The account has {lists_max} lists.",
        "Delete a list that is not needed any more.", "lists",
    ),
    refusals.ListsTooLarge: ErrorRow(
        429, "list_limit_reached", "The account's lists would take more than {mib_max} MiB.",
        "Delete lists that are not needed any more, or upgrade: {dashboard_url}.", "lists",
    ),
    refusals.ListsTooFast: ErrorRow(
        429, "rate_limit_exceeded", "An account may send {limit} lists in 60 seconds.",
        WAIT, "lists", RateLimitError,
    ),
    refusals.KeyNotFound: ErrorRow(
        404, "key_not_found", "The account has no active standard key with this id.",
        "GET {base_url}/v1/management/keys lists the keys that can be revoked.", "management",
    ),
    refusals.TooManyKeys: ErrorRow(
        429, "key_limit_reached", "The account has all {keys_max} keys of its tier.",
        "Revoke a key that is not used any more, or upgrade: {dashboard_url}.", "management",
    ),
    refusals.KeysTooFast: ErrorRow(
        429, "rate_limit_exceeded", "An account may make {limit} keys in 60 seconds.",
        WAIT, "management", RateLimitError,
    ),
    refusals.TooManyJobs: ErrorRow(
        429, "job_limit_reached",
        "The account has {jobs_max} callbacks that are not delivered yet.",
        "Let your receivers answer 2xx within 15 seconds, and send it again when callbacks have "
        "been "
        "delivered or given up.",
        "limits",
    ),
    refusals.NoBillingAccount: ErrorRow(
        402, "no_billing_account", "The account has no billing account.",
        "Choose a paid plan first, where plans are sold: {dashboard_url}.", "management",
    ),
    refusals.IdempotencyReused: ErrorRow(
        422, "idempotency_key_reused", "This Idempotency-Key came with another request before.",
        "Use a new key for every new request, the same one only to repeat it.", "idempotency",
    ),
    refusals.IdempotencyRunning: ErrorRow(
        409, "idempotency_in_progress", "The first request with this Idempotency-Key still runs.",
        "Send it again in a few seconds to get its answer.", "idempotency", retry_s=1,
    ),
    refusals.AnswerLost: ErrorRow(
        409, "idempotency_answer_lost",
        "The first request with this Idempotency-Key was done and counted; its answer was too "
        "large "
        "to be kept.",
        "Do not repeat it with this key: use a new one to do and count it again.", "idempotency",
    ),
    refusals.Overloaded: ErrorRow(
        503, "overloaded", "The service is overloaded.",
        "Send it again in a second or two; nothing was counted.", "errors", retry_s=1,
    ),
    refusals.StorageFull: ErrorRow(
        507, "storage_full", "The service's disk is full.",
        "Send it again later; nothing was counted. The operator makes room.", "errors", retry_s=60,
    ),
    refusals.ProbingUnavailable: ErrorRow(
        503, "probing_unavailable", "The service reaches no mail host at the moment.",
        "Send it again in a minute; nothing was counted.", "errors", retry_s=30,
    ),
    refusals.UsageUnknown: ErrorRow(
        503, "quota_check_failed", "The usage store is unavailable.",
        "Send it again in a second or two.", "errors", retry_s=1,
    ),
    refusals.ProviderUnavailable: ErrorRow(
        503, "billing_unavailable", "The billing provider is unavailable.",
        "Send it again in a few seconds.", "errors", retry_s=5,
    ),
    refusals.OurFault: ErrorRow(
        500, "internal_error", "The service has failed; it is not the request's fault.",
        "Send it again; if it fails again, tell the operator this request id: {request_id}.",
        "errors",
    ),
}  # fmt: skip


# refusals by the HTTP server itself, which knows only their code
BEFORE_ROUTING: dict[str, Refusal] = {
    "invalid_request": refusals.InvalidRequest(
        "The request is not well-formed HTTP/1.1.", "endpoints"
    ),
    "request_timeout": refusals.SlowBody(BODY_S_MAX),
    "payload_too_large": refusals.PayloadTooLarge(BODY_OCTETS_MAX),
    "internal_error": refusals.OurFault("the header X-Request-Id"),
    "overloaded": refusals.Overloaded(),
}


def row_of(refusal: Refusal) -> ErrorRow:
    return TABLE[type(refusal)]


def body_of(refusal: Refusal, links: Links) -> ApiError:
    """The error body: the four common fields, and those of its type."""
    row = row_of(refusal)
    values = vars(refusal) | {field.name: getattr(links, field.name) for field in fields(links)}
    return row.shape(
        error=row.code,
        message=row.message.format_map(values),
        action=row.action.format_map(values),
        docs=f"{links.docs_url}#{row.anchor or values['section']}",
        **{name: values[name] for name in _own_fields(row.shape)},
    )


@cache
def octets_of_code(code: str, links: Links) -> bytes:
    """The body of a refusal by the HTTP server, before any operation is found.

    Cached: under overload it is sent thousands of times a second.
    """
    return msgspec.json.encode(body_of(BEFORE_ROUTING[code], links))


def headers_of(refusal: Refusal) -> dict[str, str]:
    """The refusal's response headers, without Connection."""
    match refusal:
        case refusals.MethodNotAllowed(allow=allow):
            return {"Allow": allow}
        case refusals.MissingKey() | refusals.InvalidKey():
            return {"WWW-Authenticate": "Bearer"}  # RFC 9110 11.6.1
        case refusals.FormBusy(retry_s=seconds):
            return {"Retry-After": str(seconds)}
        case refusals.UpgradeRequired():
            return {"Upgrade": "websocket"}  # RFC 9110 15.5.22
        case refusals.RateLimited(asked_at=asked_at, reset_at=reset_at):
            return {"Retry-After": str(retry_after_s(asked_at, reset_at))}
        case refusals.QuotaExhausted(asked_at=asked_at, reset_at=reset_at):
            return {"Retry-After": str(retry_after_s(asked_at, reset_at))}
    retry_s = row_of(refusal).retry_s
    return {} if retry_s is None else {"Retry-After": str(retry_s)}


def retry_after_s(asked_at: datetime, reset_at: datetime) -> int:
    """Whole seconds, rounded up, at least 1."""
    return max(1, ceil((reset_at - asked_at).total_seconds()))


def _own_fields(shape: type[ApiError]) -> tuple[str, ...]:
    return shape.__struct_fields__[len(ApiError.__struct_fields__) :]
