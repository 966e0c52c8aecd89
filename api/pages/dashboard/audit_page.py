"""The page of the audit log: who did what to the account, when, and from where."""

from collections.abc import Mapping
from urllib.parse import urlencode

from quart import Blueprint, Response, request
from quart.wrappers.response import IterableBody

from mailprobe.storage.audit import ActKind
from mailprobe.storage.records import ActorKind

from ...operations.audit import KINDS, AuditChange, AuditEntry, AuditResponse
from ...operations.operation import StreamedParts
from ...results.advice import capital
from .frame import HEADERS, HOME, Frame
from .roles import ACCOUNTS

AUDIT = f"{HOME}/audit"
ENTRIES_SHOWN = 50  # what one looks through at a time
BEFORE_CHARACTERS_MAX = 100  # of the address of a page; an id has 36

KIND_WORDS: Mapping[ActKind, str] = {
    "account_created": "Account created",
    "account_deleted": "Account deleted",
    "plan_changed": "Plan changed",
    "caps_changed": "Caps changed",
    "alerts_changed": "Alerts changed",
    "key_created": "Key created",
    "key_revoked": "Key revoked",
    "list_deleted": "List deleted",
    "egress_paused": "Egress paused",
    "egress_resumed": "Egress resumed",
    "lists_paused": "Lists paused",
    "lists_unpaused": "Lists no longer paused",
    "person_invited": "Person invited",
    "role_changed": "Role changed",
    "person_removed": "Person removed",
    "signed_in": "Signed in",
    "signed_out": "Signed out",
    "sign_in_failed": "Sign-in failed",
}
ACTOR_WORDS: Mapping[ActorKind, str] = {
    "key": "A program",
    "session": "Dashboard",
    "command_line": "The operator",
    "billing": "The billing provider",
    "service": "The service",
}
FIELD_WORDS = {
    "tier": "plan",
    "subscription_status": "subscription",
    "soft_cap_eur": "soft cap",
    "hard_cap_eur": "hard cap",
    "alerts": "alerts",
}


def register(pages: Blueprint, frame: Frame) -> None:
    """Add the routes."""

    @pages.get(AUDIT)
    @frame.signed_in
    async def audit() -> Response:
        only = _only()
        before = request.args.get("before", "")[:BEFORE_CHARACTERS_MAX]
        wanted = {**only, "limit": str(ENTRIES_SHOWN), **({"before": before} if before else {})}
        found = await frame.result_of(AuditResponse, "get_audit", query=_query(wanted))
        return await frame.page(
            "audit.html", "Activity",
            rows=[(entry, what_of(entry), who_of(entry)) for entry in found.entries],
            accounts=ACCOUNTS, kinds=KIND_WORDS, kind=only.get("kind", ""), is_first=not before,
            newest=_address(only),
            older=_address({**only, "before": found.next}) if found.next else "",
            download=f"{AUDIT}/entries.csv{_encoded(only)}",
        )  # fmt: skip

    @pages.get(f"{AUDIT}/entries.csv")
    @frame.signed_in
    async def entries() -> Response:
        """All entries of the chosen kind."""
        made = await frame.perform("get_audit", query=_query({**_only(), "format": "csv"}))
        assert isinstance(made.body, StreamedParts)
        response = Response(IterableBody(made.body.parts), made.status)
        response.headers.update({**HEADERS, **made.headers, "Content-Type": made.media_type})
        response.timeout = None
        return response


def _only() -> dict[str, str]:
    """The kind that the address of the page asks for; what it does not know is as if not there."""
    kind = request.args.get("kind", "")
    return {"kind": kind} if kind in KINDS else {}


def _query(values: Mapping[str, str]) -> dict[str, list[str]]:
    return {name: [value] for name, value in values.items()}


def _encoded(values: Mapping[str, object]) -> str:
    return f"?{urlencode(values)}" if values else ""


def _address(values: Mapping[str, object]) -> str:
    return AUDIT + _encoded(values)


def what_of(entry: AuditEntry) -> str:
    """What the act was done to: a key, a list, or the settings that changed."""
    if entry.changes:
        text = ", ".join(map(_change_words, entry.changes))
        return f"{entry.name}: {text}" if entry.name else capital(text)
    key = f"{entry.prefix}…" if entry.prefix else ""
    named = f"{entry.name} ({key})" if entry.name and key else entry.name or key
    often = f"{entry.times:,} times" if entry.times > 1 else ""
    return ", ".join(filter(None, (named, often)))


def _change_words(change: AuditChange) -> str:
    before, after = (_value_words(each) for each in (change.before, change.after))
    name = FIELD_WORDS.get(change.field, change.field)
    if change.before is None and change.field in ("tier", "role"):
        return f"{name} {after}"
    return f"{name} {before} → {after}"


def _value_words(value: str | float | bool | None) -> str:
    match value:
        case None:
            return "none"
        case bool():
            return "on" if value else "off"
        case int() | float():
            return f"{value:.2f} EUR"
    return value


def who_of(entry: AuditEntry) -> str:
    """Who did it: the person, else the kind of actor, with the first characters of the key."""
    if entry.actor_email:
        return entry.actor_email
    who = ACTOR_WORDS[entry.actor]
    return f"{who}, {entry.actor_key_prefix}…" if entry.actor_key_prefix else who
