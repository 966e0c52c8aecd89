"""Texts of the API description that belong to no single operation."""

from .operation import XLSX

# field -> what it is, in the engine's types: a result and its evidence
ENGINE_FIELDS: dict[str, dict[str, object]] = {
    "email": {"description": "The string as it was sent."},
    "valid": {"description": "The mail server accepts it. Read status and confidence too."},
    "status": {
        "description": "`deliverable`: accepted. `undeliverable`: there is no such mailbox. `unknown`: could not be confirmed. `catch_all`: the server accepts every address. `invalid`: failed syntax, disposable or MX."
    },
    "confidence": {
        "description": "How decisive the check was: a ranking, not a probability.",
        "minimum": 0,
        "maximum": 1,
    },
    "failed_check": {"description": "The layer that failed, if one did."},
    "disposable": {
        "description": "The domain, or the domain of its mail hosts, is on the list of throwaway providers."
    },
    "role": {"description": "The address is of a function such as info or sales, not of a person."},
    "free_provider": {"description": "The domain gives mailboxes to everybody, such as gmail.com."},
    "catch_all": {
        "description": "The host accepts every address of the domain, so nothing is known of this one."
    },
    "smtp_blocked": {
        "description": "The provider does not answer verification, so the mailbox was not asked for."
    },
    "mx_found": {"description": "The domain has a host that takes mail."},
    "mx_host": {"description": "The mail host that answered, or the first of the domain."},
    "suggestion": {"description": "The corrected domain of a likely typo."},
    "latency_ms": {"description": "Milliseconds that it took.", "minimum": 0},
    "exchanges": {"description": "The mail hosts that were tried, in order."},
    "exchange": {"description": "The name of the mail host."},
    "address": {"description": "Its IP address, if one was used."},
    "result": {"description": "How the attempt ended."},
    "conversation": {"description": "The lines that were sent and received, at most 100."},
    "at_ms": {"description": "Milliseconds since the verification began."},
    "who": {"description": "Who sent the line."},
    "text": {
        "description": "The line, at most 512 octets, other than printable characters escaped."
    },
    "rule": {"description": "The rule that decided."},
    "reason": {"description": "Why, in one word."},
    "blame": {
        "description": "Who is to blame, if anything went wrong: us is the machine that asked."
    },
    "cached": {"description": "What came from a cache."},
    "truncated": {"description": "Something was left out, as the evidence would be too large."},
}

EVIDENCE = {
    "name": "evidence", "in": "query", "required": False,
    "description": "1: add the SMTP conversation and what came from caches to each result.",
    "schema": {"type": "string", "enum": ["0", "1"], "default": "0"},
}  # fmt: skip
ADVICE = {
    "name": "advice", "in": "query", "required": False,
    "description": "1: add the reason, the light and advice for people to each result.",
    "schema": {"type": "string", "enum": ["0", "1"], "default": "0"},
}  # fmt: skip
IDEMPOTENCY_KEY = {
    "name": "Idempotency-Key", "in": "header", "required": False,
    "description": "The same key with the same body gets the first answer again, for 24 hours.",
    "schema": {"type": "string", "minLength": 1, "maxLength": 255},
}  # fmt: skip
# A list's file. `format: binary` is OpenAPI 3.0's word, and the one that makes generated clients take
# octets. Many of them send the first media type whatever the file is: the one that says nothing of it. Python
# clients of openapi-generator send one with "json" in its name before all others, so NDJSON is not among them:
# it is taken as such, and recognised in octets.
UPLOAD: dict[str, object] = {
    media_type: {
        "schema": {"type": "string", "format": "binary", "contentMediaType": media_type},
    }
    for media_type in (
        "application/octet-stream",
        "text/csv",
        "text/tab-separated-values",
        "text/plain",
        XLSX,
    )
}
WEBHOOK = "{$request.body#/webhook}"  # a runtime expression: where the callback goes
CALLBACK = (
    "Posted until an answer of 2xx, ten times over three days, always the same bytes. Redirects "
    "are not followed. Answer within 15 seconds."
)
CALLBACK_HEADERS: list[dict[str, object]] = [
    {"name": name, "in": "header", "required": required, "description": text,
     "schema": {"type": "string"}}
    for name, required, text in (
        ("webhook-id", True, "The job's id: the same at every try."),
        ("webhook-timestamp", True, "When this try began, in seconds since 1970."),
        ("webhook-signature", False,
         "With a webhook_secret: v1, and the HMAC-SHA256 of id.timestamp.body in base64 "
         "(Standard Webhooks)."),
        ("X-Service-Signature", False,
         "With a webhook_secret: sha256= and the HMAC-SHA256 of the body in hex."),
        ("traceparent", False,
         "If the request that made the job had one, or the service is traced: its trace, with a "
         "span of this try (W3C Trace Context)."),
    )
]  # fmt: skip
# As the answers have it, so that a generated client takes what it was given: keys have UUIDs, while the
# ids of jobs and lists are strings.
KEY_ID = {
    "name": "id", "in": "path", "required": True, "description": "The id of the key.",
    "schema": {"type": "string", "format": "uuid"},
}  # fmt: skip
WORK_ID = {
    "name": "id", "in": "path", "required": True, "description": "The id of the job or the list.",
    "schema": {"type": "string"},
}  # fmt: skip

HEADERS: dict[str, dict[str, object]] = {
    "X-Request-Id": {"description": "The request's id in the service's log.", "schema": {"type": "string"}},
    "Retry-After": {
        "description": "Seconds to wait; always enough.",
        "schema": {"type": "integer", "minimum": 1},
    },
    "RateLimit": {
        "description": "What is left of each limit (IETF draft).", "schema": {"type": "string"},
    },
    "RateLimit-Policy": {
        "description": "The limits themselves (IETF draft).", "schema": {"type": "string"},
    },
    "Idempotency-Replayed": {
        "description": "true: the stored answer to an earlier request with the same Idempotency-Key.",
        "schema": {"type": "string"},
    },
    "Allow": {"description": "The methods of this path.", "schema": {"type": "string"}},
    "Form-Challenge": {"description": "What Form-Proof solves.", "schema": {"type": "string"}},
    "Upgrade": {"description": "The protocol of this path.", "schema": {"type": "string"}},
    "WWW-Authenticate": {"description": "Bearer, and Basic where that is taken.", "schema": {"type": "string"}},
}  # fmt: skip

SECURITY_SCHEMES = {
    "formKey": {
        "type": "http", "scheme": "bearer",
        "description": "A publishable key, pk_live_… or pk_test_…, from a page of one of its origins.",
    },
    "standardKey": {
        "type": "http", "scheme": "bearer", "description": "A standard key: sk_live_… or sk_test_…",
    },
    "basicKey": {
        "type": "http", "scheme": "basic", "description": "A standard key as the password; the user name does not count.",
    },
    "provisioningKey": {
        "type": "http", "scheme": "bearer", "description": "A provisioning key: sk_mgmt_…",
    },
}  # fmt: skip
