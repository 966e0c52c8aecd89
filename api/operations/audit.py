"""The operation on the audit log: a page of entries in JSON, or all of them as NDJSON or CSV."""

import csv
import io
import re
from collections.abc import AsyncGenerator, Callable, Sequence
from datetime import UTC, datetime
from typing import Annotated, get_args

import msgspec
from msgspec import Struct

from mailprobe.storage.audit import ActKind, Entry, EntryFilter
from mailprobe.storage.contract import LISTED_MAX
from mailprobe.storage.records import ActorKind
from mailprobe.storage.store import Store

from ..keys import shown
from ..listfile.formulas import guarded
from ..lists.downloads import begun, worked
from ..quota.plans import MICROS_PER_EUR
from ..refusals import InvalidRequest
from ..schema import Instant, says
from ..service import Service
from .examples import AT, ID, KEY, SOON
from .operation import (
    CSV,
    JSON,
    MANAGING,
    NDJSON,
    UUID_TEXT,
    Call,
    Operation,
    OperationReply,
    StreamedParts,
    parameter,
    reply,
)


class AuditChange(Struct, frozen=True):
    """A setting of the account that was changed: null is none."""

    field: Annotated[str, says("The setting.")]
    before: Annotated[str | float | bool | None, says("Its value before.")]
    after: Annotated[str | float | bool | None, says("Its value after.")]


class AuditEntry(Struct, frozen=True, kw_only=True):
    """What was done to the account: by whom, when, and from where. It never has a secret.

    `on_account_id` is only in the log of an operator: the other account that it was done to.
    """

    id: Annotated[str, says("Its id.")]
    at: Annotated[Instant, says("When it began, or was done.")]
    kind: Annotated[ActKind, says("What was done.")]
    times: Annotated[
        int, says("How often: failed sign-ins of one client within a minute share an entry.")
    ]
    actor: Annotated[
        ActorKind,
        says(
            "Who did it: a key, a session of the dashboard, the operator's command line, the "
            "billing provider, or the service by itself."
        ),
    ]
    actor_key_id: Annotated[
        str | None, says("The id of the key; of a session the key that it was signed in with.")
    ] = None
    actor_key_prefix: Annotated[str | None, says("The first characters of that key.")] = None
    actor_email: Annotated[str | None, says("The person who did it, where one was signed in.")] = (
        None
    )
    client_address: Annotated[str | None, says("The IP address that it was done from.")] = None
    on_account_id: Annotated[str | None, says("The other account that an operator did it to.")] = (
        None
    )
    subject_id: Annotated[
        str | None, says("The id of the key or the list that it was done to.")
    ] = None
    name: Annotated[str | None, says("The name of the key or the list.")] = None
    prefix: Annotated[str | None, says("The first characters of the key.")] = None
    changes: Annotated[list[AuditChange], says("The settings of the account that were changed.")]


class AuditResponse(Struct, frozen=True):
    """Entries of the audit log, newest first. `next` is null on the last page."""

    entries: Annotated[list[AuditEntry], says("What was done, newest first.")]
    next: Annotated[str | None, says("The `before` of the next page; null on the last one.")] = None


PAGE_DEFAULT = 100
KINDS: tuple[ActKind, ...] = get_args(ActKind)
COLUMNS = tuple(name for name in AuditEntry.__struct_fields__)
AN_INSTANT = "an instant such as 2026-03-14T09:26:53Z, or a day such as 2026-03-14"
PARAMETERS = (
    parameter("kind", "Only entries of this kind.", enum=list(KINDS)),
    parameter("since", "Only entries from this instant or day (UTC) on.", format="date-time"),
    parameter("until", "Only entries before this instant or day (UTC).", format="date-time"),
    parameter(
        "before", "Only entries older than the one with this id: `next` of a page.",
        pattern=f"^{UUID_TEXT.pattern}$",
    ),
    parameter(
        "limit", "Entries of a page in JSON, at most.",
        type="integer", minimum=1, maximum=LISTED_MAX, default=PAGE_DEFAULT,
    ),
    parameter(
        "format", "A page in JSON, or all entries as lines.",
        enum=["json", "ndjson", "csv"], default="json",
    ),
)  # fmt: skip
NAMES = ("kind", "since", "until", "before", "limit", "format")


async def get_audit(service: Service, call: Call) -> OperationReply:
    """Who did what to the account within 90 days, when, and from where; newest first."""
    sent = {each: call.only_value(each, "audit") for each in NAMES}
    only = EntryFilter(
        _kind(sent["kind"]), _instant("since", sent["since"]), _instant("until", sent["until"])
    )
    before, limit = _before(sent["before"]), _limit(sent["limit"])
    account_id, name = call.caller.account.id, sent["format"] or "json"
    if name == "json":
        found = await service.store.audit(account_id, only, before=before, limit=limit + 1)
        has_more = len(found) > limit
        entries = [entry_of(each) for each in found[:limit]]
        return reply(200, AuditResponse(entries, entries[-1].id if has_more else None))
    if name not in FORMATS:
        raise _malformed("The query parameter format must be json, ndjson or csv.")
    media_type, encode = FORMATS[name]
    parts = _parts(service.store, account_id, only, before, encode)
    headers = {
        "Content-Disposition": f'attachment; filename="audit.{name}"',
        "X-Content-Type-Options": "nosniff",
    }
    return OperationReply(200, StreamedParts(await begun(account_id, parts)), headers, media_type)


async def _parts(
    store: Store,
    account_id: str,
    only: EntryFilter,
    before: str | None,
    encode: Callable[[Sequence[AuditEntry], bool], bytes],
) -> AsyncGenerator[bytes, None]:
    """All entries, a page of the store at a time; what is added meanwhile is newer, and not there."""
    is_first, is_last = True, False
    while not is_last:
        found = await store.audit(account_id, only, before=before)
        yield await worked(account_id, encode, [entry_of(each) for each in found], is_first)
        before, is_first = found[-1].id if found else None, False
        is_last = len(found) < LISTED_MAX


def _ndjson(entries: Sequence[AuditEntry], is_first: bool) -> bytes:
    return msgspec.json.Encoder().encode_lines(entries)


def _csv(entries: Sequence[AuditEntry], is_first: bool) -> bytes:
    """Lines (RFC 4180), no cell of which a spreadsheet would take for a formula."""
    text = io.StringIO()
    writer = csv.writer(text)
    if is_first:
        writer.writerow(COLUMNS)
    for entry in entries:
        writer.writerow(map(guarded, [_cell(getattr(entry, name)) for name in COLUMNS]))
    return text.getvalue().encode()


def _cell(value: object) -> str:
    match value:
        case None:
            return ""
        case datetime():
            return f"{value:%Y-%m-%dT%H:%M:%S}Z"
        case list():
            return "; ".join(map(change_text, value))
    return str(value)


def change_text(change: AuditChange) -> str:
    """`hard_cap_eur: none → 25.0`."""
    before, after = ("none" if each is None else each for each in (change.before, change.after))
    return f"{change.field}: {before} → {after}"


FORMATS = {"ndjson": (NDJSON, _ndjson), "csv": (CSV, _csv)}
MEDIA_TYPES = (JSON, *(media_type for media_type, _ in FORMATS.values()))


def entry_of(entry: Entry) -> AuditEntry:
    """An entry as answers have it; amounts are in euros."""
    act, by = entry.act, entry.by
    return AuditEntry(
        id=entry.id, at=entry.at, kind=act.kind, times=entry.times,
        actor=by.kind, actor_key_id=by.key_id, actor_key_prefix=by.key_prefix,
        actor_email=by.person,
        client_address=by.address, on_account_id=entry.on_account,
        subject_id=act.subject, name=act.name, prefix=act.prefix,
        changes=[_change(field, *values) for field, values in act.changes.items()],
    )  # fmt: skip


def _change(field: str, before: object, after: object) -> AuditChange:
    if field.endswith("_micros"):
        euros = field.removesuffix("_micros") + "_eur"
        return AuditChange(euros, *map(_eur, (before, after)))
    values = [each if isinstance(each, (str, bool)) else None for each in (before, after)]
    return AuditChange(field, *values)


def _eur(micros: object) -> float | None:
    return micros / MICROS_PER_EUR if isinstance(micros, int) else None


def _kind(text: str | None) -> ActKind | None:
    found = next((kind for kind in KINDS if kind == text), None)
    if text is not None and found is None:
        raise _malformed(f"The query parameter kind must be one of {', '.join(KINDS)}.")
    return found


def _instant(name: str, text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        at = datetime.fromisoformat(text)
        return at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)
    except (ValueError, OverflowError):
        raise _malformed(f"The query parameter {name} must be {AN_INSTANT}.") from None


def _before(text: str | None) -> str | None:
    if text is not None and not UUID_TEXT.fullmatch(text):
        raise _malformed("The query parameter before must be the id of an entry.")
    return text


def _limit(text: str | None) -> int:
    text = text or str(PAGE_DEFAULT)
    number = int(text) if re.fullmatch("[0-9]{1,4}", text, re.ASCII) else 0
    if not 1 <= number <= LISTED_MAX:
        raise _malformed(f"The query parameter limit must be 1 to {LISTED_MAX}.")
    return number


def _malformed(why: str) -> InvalidRequest:
    return InvalidRequest(why, "audit")


OPERATIONS = (
    Operation(
        "get_audit", "GET", "/v1/audit", "Who did what, when, and from where",
        get_audit, "provisioning", AuditResponse, section="audit",
        may=(*MANAGING, InvalidRequest), parameters=PARAMETERS, media_types=MEDIA_TYPES,
        examples=(
            AuditResponse([
                AuditEntry(
                    id=str(ID), at=SOON, kind="key_revoked", times=1, actor="session",
                    actor_key_id=str(ID), actor_key_prefix="sk_mgmt_7777",
                    client_address="192.0.2.7", subject_id=str(ID), name="checkout",
                    prefix=shown(KEY), changes=[],
                ),
                AuditEntry(
                    id=str(ID), at=AT, kind="caps_changed", times=1, actor="command_line",
                    changes=[AuditChange("hard_cap_eur", None, 25.0)],
                ),
            ]),
        ),
    ),
)  # fmt: skip
