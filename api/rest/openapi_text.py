"""Texts and constraints of the API description that the types cannot express."""

from mailprobe.api.operations.operation import XLSX

# field -> what it is, in every schema that has it and says nothing else
FIELDS: dict[str, str] = {
    "recorded": "Mailboxes that do not exist: `bounced` for 90 days.",
    "soft": "Addresses whose bounces pass, such as of full mailboxes. Nothing is recorded.",
    "ignored": "Addresses refused for another reason, for none that is known, or of no bounce at all.",
    "email": "The string as it was sent.",
    "emails": "The addresses; one unit and one result each.",
    "webhook": "Where the result is posted.",
    "label": "The name of the key, for people.",
    "test": "true: a test key, which sends no packet and costs nothing.",
    "return_url": "An http or https URL.",
    "job_id": "The id of the job: /v1/jobs/{id} has its state, and the callback repeats it.",
    "valid": "The mail server accepts it. Read status and confidence too.",
    "status": "`deliverable`: accepted. `undeliverable`: there is no such mailbox. "
    "`unknown`: could not be confirmed. `catch_all`: the server accepts every address. "
    "`invalid`: failed syntax, disposable or MX.",
    "confidence": "How decisive the check was: a ranking, not a probability.",
    "failed_check": "The layer that failed, if one did.",
    "disposable": "The domain, or the domain of its mail hosts, is on the list of throwaway providers.",
    "role": "The address is of a function such as info or sales, not of a person.",
    "free_provider": "The domain gives mailboxes to everybody, such as gmail.com.",
    "catch_all": "The host accepts every address of the domain, so nothing is known of this one.",
    "smtp_blocked": "The provider answers no such question, so the mailbox was not asked for.",
    "mx_found": "The domain has a host that takes mail.",
    "mx_host": "The mail host that answered, or the first of the domain.",
    "light": "What to do with the address: accept it, take care, or reject it.",
    "suggestion": "The corrected domain of a likely typo.",
    "latency_ms": "Milliseconds that it took.",
    "evidence": "Only with `?evidence=1`.",
    "exchanges": "The mail hosts that were tried, in order.",
    "exchange": "The name of the mail host.",
    "address": "Its IP address, if one was used.",
    "conversation": "The lines that were sent and received, at most 100.",
    "at_ms": "Milliseconds since the verification began.",
    "who": "Who sent the line.",
    "text": "The line, at most 512 octets, other than printable characters escaped.",
    "rule": "The rule that decided.",
    "reason": "Why, in one word.",
    "blame": "Who is to blame, if anything went wrong: us is the machine that asked.",
    "cached": "What came from a cache.",
    "truncated": "Something was left out, as the evidence would be too large.",
    "list_id": "The id of the list: /v1/lists/{id} has its state.",
    "lists": "The lists, newest first.",
    "name": "Its name.",
    "rows": "How many rows it has.",
    "addresses": "How many different addresses it has: a unit each.",
    "columns": "The columns of the addresses; none: each line is an address.",
    "unwrapped_rows": "Rows in which something stood around the address, which was taken out.",
    "doubtful_rows": "Rows whose address is only suggested, and was not verified.",
    "several_rows": "Rows with several addresses in one cell, which are all verified.",
    "answered": "How many of them are answered.",
    "counts": "How many of the answered addresses have each status.",
    "per_minute": "Answers a minute since the list was started or resumed.",
    "left_s": "Seconds until all are answered, at this rate, within the limit of a minute, and by "
    "what mail hosts take.",
    "recheck_at": "When what time may cure is asked again, or was last.",
    "stage": "While it runs: addresses are asked, or all that are left wait.",
    "waits_until": "While all wait: when the first of them is asked again.",
    "waits_for": "What addresses wait for, also while others are asked.",
    "hosts": "The mail hosts at which most wait, at most ten.",
    "hosts_count": "How many mail hosts they wait for.",
    "refusals_in_10_min": "How many refused addresses the host takes in ten minutes; 0 where "
    "something else is the reason.",
    "until": "When they are asked again, or the first of them.",
    "done_about": "About when none of them waits any more.",
    "host": "The name of the mail host.",
    "patience_s": "So many seconds each address may wait for what its mail host takes.",
    "cause": "The code of the error that paused it or made it fail.",
    "results": "One for each address, in the order of the request.",
    "count": "How many there are.",
    "ok": "The usage store can be written.",
    "ts": "Milliseconds since 1970.",
    "drained": "True if this machine takes no more of lists; left out otherwise.",
    "created_at": "When it was created.",
    "ended_at": "When it ended: the result is known, and its callback delivered or given up.",
    "attempts": "The attempts to call back, in order; at most the last hundred.",
    "next_attempt_at": "When the callback is posted next.",
    "number": "The number of the attempt, from 1.",
    "at": "When it began, or was done.",
    "entries": "What was done, newest first.",
    "next": "The `before` of the next page; null on the last one.",
    "kind": "What was done.",
    "times": "How often: failed sign-ins of one client within a minute share an entry.",
    "actor": "Who did it: a key, a session of the dashboard, the operator's command line, the billing"
    " provider, or the service by itself.",
    "actor_key_id": "The id of the key; of a session the key that it was signed in with.",
    "actor_key_prefix": "The first characters of that key.",
    "client_address": "The IP address that it was done from.",
    "on_account_id": "The other account that an operator did it to.",
    "subject_id": "The id of the key or the list that it was done to.",
    "changes": "The settings of the account that were changed.",
    "field": "The setting.",
    "before": "Its value before.",
    "after": "Its value after.",
    "took_ms": "Milliseconds that it took.",
    "error": "A code of this API, for programs: see the table of errors.",
    "message": "What is wrong.",
    "action": "What to do about it.",
    "docs": "The section of the documentation.",
    "limit": "The most that is allowed in the window.",
    "window": "The window of the limit: one minute.",
    "reset_at": "When the same request passes.",
    "used": "What was counted before this request.",
    "hard_cap_eur": "The account's hard spend cap.",
    "current_overage_eur": "What the overage of this billing period costs until now.",
    "account_id": "The id of the account.",
    "tier": "The tier, which decides limits and price.",
    "limits": "What the tier allows.",
    "usage_this_month": "Units of this UTC month; of paid tiers billable verifications.",
    "subscription_status": "The subscription's status at the billing provider.",
    "current_period_start": "The start of the billing period.",
    "current_period_end": "The end of the billing period.",
    "cancel_at_period_end": "The subscription ends with its period.",
    "canceled_at": "When the subscription was cancelled.",
    "cancel_at": "When the subscription will end.",
    "trial_start": "The start of the trial.",
    "trial_end": "The end of the trial.",
    "billing_cycle_anchor": "The instant from which billing periods are counted.",
    "monthly_calls": "Free: the quota of a month. Paid: the included volume.",
    "rate_limit_per_min": "Units a minute, of each key.",
    "max_keys": "How many live keys there may be.",
    "id": "Its id.",
    "prefix": "The first characters of the key.",
    "key": "The key itself. It is shown this once.",
    "keys": "The active live and test keys, oldest first.",
    "max": "How many live keys there may be.",
    "warning": "A reminder to keep the key.",
    "days": "The last 30 UTC days, oldest first.",
    "date": "The UTC day.",
    "calls": "Billable verifications.",
    "period": "The UTC month.",
    "start": "Its beginning.",
    "end": "Its end, which is not part of it.",
    "calls_used": "Free: units. Paid: billable verifications.",
    "calls_included": "Of the tier, in a month.",
    "calls_remaining": "What is left of those.",
    "overage_calls": "Beyond those.",
    "estimated_cost_eur": "What the overage costs until now.",
    "url": "The address of the billing portal; whoever has it is signed in.",
}

# (schema, field) -> additions to its JSON schema
NOTES: dict[tuple[str, str], dict[str, object]] = {
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
        "description": "Signs the callback; without a webhook it has no effect. Best is whsec_ and 24 to"
        " 64 random bytes in base64 (Standard Webhooks)."
    },
    ("VerifyRequest", "async"): {
        "description": "The answer is 202 at once; GET /v1/jobs/{id} has the result. Needs no webhook."
    },
    ("VerifyRequest", "recheck"): {
        "description": "With webhook or async: what time may cure (greylisting, a time-out) is verified again"
        " 5 and 15 minutes later before the result is final. It counts once. Without them it has no effect."
    },
    ("VerifyRequest", "smtp"): {
        "description": "false: no mail host is asked. What layers 1 to 3 leave open is unknown, at once."
    },
    ("BatchRequest", "smtp"): {
        "description": "false: no mail host is asked. What layers 1 to 3 leave open is unknown, at once."
    },
    ("ListResponse", "status"): {
        "description": "`loading`: its rows are being read. `running`. `paused`: by you, or by a limit that"
        " `cause` names. `done`. `failed`: see `cause`. `cancelled`."
    },
    ("ListResponse", "ended_at"): {"description": "When it ended."},
    ("ListResponse", "name"): {"description": "The name of the file, for people."},
    ("AsyncVerifyResponse", "status"): {"description": "Always pending."},
    ("JobResponse", "status"): {
        "description": "`pending`: not verified yet. `delivering`: verified, and the callback is not "
        "delivered. `done`: verified, and delivered if there is a webhook. `failed`: given up."
    },
    ("JobResponse", "result"): {"description": "The result, when it is known."},
    ("JobAttempt", "status"): {"description": "The HTTP status of the answer, if there was one."},
    ("JobAttempt", "error"): {"description": "Why there was no answer."},
    ("JobAttempt", "took_ms"): {"minimum": 0},
    ("ConnectionAttempt", "result"): {"description": "How the attempt ended."},
    ("ManagementKey", "kind"): {"description": "A test key sends nothing and costs nothing."},
    ("ManagementKey", "last_used_at"): {"description": "The last use, right to an hour."},
    ("ManagementKey", "made_by"): {"description": "By what the key was made."},
    ("ManagementKeysListResponse", "count"): {"description": "How many live keys there are."},
    ("VerifyEmailCallback", "job_id"): {"description": "The job_id of the 202."},
    ("VerifyEmailCallback", "latency_ms"): {"minimum": 0},
    ("VerifyEmailCallback", "confidence"): {"minimum": 0, "maximum": 1},
    ("VerifyEmailResult", "confidence"): {"minimum": 0, "maximum": 1},
    ("VerifyEmailResult", "latency_ms"): {"minimum": 0},
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
