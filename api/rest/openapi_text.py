"""Texts and constraints of the API description that the types cannot express."""

from typing import Any

# (schema, field) -> additions to its JSON schema
NOTES: dict[tuple[str, str], dict[str, Any]] = {
    ("VerifyRequest", "email"): {
        "description": "The address. A string that is not an address gets a result too: failed_check `syntax`."
    },
    ("VerifyRequest", "webhook"): {
        "anyOf": [
            {"type": "string", "pattern": "^https://", "maxLength": 2048}, {"type": "null"},
        ],
        "description": "A public https URL: the answer is 202 at once, and the result is posted there."
        " A dotted host name, not an IP address, localhost or *.local; without user or password."
    },
    ("VerifyRequest", "webhook_secret"): {
        "description": "Signs the callback; without a webhook it has no effect."
    },
    ("VerifyEmailCallback", "job_id"): {"description": "The job_id of the 202."},
    ("VerifyEmailCallback", "latency_ms"): {"minimum": 0},
    ("VerifyEmailCallback", "confidence"): {"minimum": 0, "maximum": 1},
    ("BatchRequest", "emails"): {"description": "The addresses; one unit and one result each."},
    ("BillingPortalRequest", "return_url"): {"description": "An http or https URL."},
    ("VerifyEmailResult", "email"): {"description": "The string as it was sent."},
    ("VerifyEmailResult", "valid"): {
        "description": "The mail server accepts it. Read status and confidence too."
    },
    ("VerifyEmailResult", "status"): {
        "description": "`deliverable`: accepted. `undeliverable`: there is no such mailbox. "
        "`unknown`: could not be confirmed. `catch_all`: the server accepts every address. "
        "`invalid`: failed syntax, disposable or MX."
    },
    ("VerifyEmailResult", "confidence"): {
        "minimum": 0, "maximum": 1,
        "description": "How decisive the check was: a ranking, not a probability.",
    },
    ("VerifyEmailResult", "failed_check"): {"description": "The layer that failed, if one did."},
    ("VerifyEmailResult", "suggestion"): {"description": "The corrected domain of a likely typo."},
    ("VerifyEmailResult", "latency_ms"): {"minimum": 0},
    ("VerifyEmailResult", "evidence"): {"description": "Only with `?evidence=1`."},
    ("ApiError", "docs"): {"format": "uri"},
    ("ManagementBillingPortalResponse", "url"): {"format": "uri"},
}  # fmt: skip

EVIDENCE = {
    "name": "evidence", "in": "query", "required": False,
    "description": "1: add the SMTP conversation and what came from caches to each result.",
    "schema": {"type": "string", "enum": ["0", "1"], "default": "0"},
}  # fmt: skip
IDEMPOTENCY_KEY = {
    "name": "Idempotency-Key", "in": "header", "required": False,
    "description": "The same key with the same body gets the first answer again, for 24 hours.",
    "schema": {"type": "string", "minLength": 1, "maxLength": 255},
}  # fmt: skip
WEBHOOK = "{$request.body#/webhook}"  # a runtime expression: where the callback goes
CALLBACK = (
    "Posted until an answer of 2xx, ten times over three days, always the same bytes. Redirects "
    "are not followed. Answer within 15 seconds."
)
CALLBACK_HEADERS: list[dict[str, Any]] = [
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
    )
]  # fmt: skip
BILLING_EVENT = {
    "schema": {"type": "object", "description": "An event of the billing provider."},
    "example": {"id": "evt_1", "object": "event", "type": "customer.subscription.updated"},
}  # fmt: skip
KEY_ID = {
    "name": "id", "in": "path", "required": True,
    "schema": {"type": "string", "format": "uuid"},
}  # fmt: skip

HEADERS: dict[str, dict[str, Any]] = {
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
    "Allow": {"description": "The methods of this path.", "schema": {"type": "string"}},
    "WWW-Authenticate": {"description": "Always Bearer.", "schema": {"type": "string"}},
}  # fmt: skip

SECURITY_SCHEMES = {
    "standardKey": {
        "type": "http", "scheme": "bearer", "description": "A standard key: sk_live_… or sk_test_…",
    },
    "provisioningKey": {
        "type": "http", "scheme": "bearer", "description": "A provisioning key: sk_mgmt_…",
    },
}  # fmt: skip
