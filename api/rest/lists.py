"""The operations on lists: send one, see how far it is, fetch its results, pause, end, delete."""

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from functools import partial
from uuid import uuid4

from mailprobe.api.errors import Misuse
from mailprobe.api.jobs.rules import NotAWebhook, check_webhook
from mailprobe.api.jobs.worker import RECHECK_S
from mailprobe.api.listfile import ReadOptions
from mailprobe.api.listfile.formulas import Formulas
from mailprobe.api.lists.downloads import begun
from mailprobe.api.lists.results import (
    ListResults,
    csv_parts,
    disposition,
    ndjson_parts,
    workbook_parts,
)
from mailprobe.api.lists.spool import spooled
from mailprobe.api.lists.stages import progress_of, standing_of
from mailprobe.api.lists.upload import EXTENSIONS, ListReader, open_list_reader
from mailprobe.api.observability.request_context import present_trace
from mailprobe.api.operations.operation import (
    NDJSON,
    XLSX,
    Call,
    OperationReply,
    StreamedParts,
    parameter,
    reply,
)
from mailprobe.api.operations.verify import SECRET_CHARACTERS_MAX, SECRET_CHARACTERS_MIN
from mailprobe.api.quota.list_limits import NAME_CHARACTERS_MAX, UNPACKED_OCTETS_MAX
from mailprobe.api.refusals import (
    InvalidRequest,
    ListNotFound,
    ListsTooFast,
    ListsTooLarge,
    TooManyKeptLists,
    TooManyLists,
)
from mailprobe.api.results.lights import lights_of
from mailprobe.api.results.list_reading import ListReading, decode_reading
from mailprobe.api.results.row_filter import RowFilter
from mailprobe.api.schema import ListResponse, ListsResponse
from mailprobe.api.service import Service
from mailprobe.api.settings import PATIENCE_S_MAX
from mailprobe.storage import contract
from mailprobe.storage.list_records import NO_WAITS, ListOrder, ListState, ListWaits, StoredList

OpenReader = Callable[[], AbstractAsyncContextManager[ListReader]]

LISTED_MAX = 100
COLUMNS_MAX = 20  # of addresses: each has its own columns of results
UNNAMED = "list"
CSV = "text/csv; charset=utf-8"

FORMATS: Mapping[str, tuple[str, Callable[[ListResults], AsyncGenerator[bytes, None]]]] = {
    "ndjson": (NDJSON, ndjson_parts),
    "csv": (CSV, csv_parts),
    "xlsx": (XLSX, workbook_parts),
}


LIST_PARAMETERS = (
    parameter("search", "Only lists with this text in their name, or whose id begins with it."),
)
CREATE_PARAMETERS = (
    parameter(
        "column",
        "The column of the addresses: its name, or its number from 1. Given several times, each "
        "column has its own results, named after it.",
    ),
    parameter("sheet", "The sheet of a workbook: its title, or its number from 1."),
    parameter("name", "A name for people, such as the file's.", maxLength=NAME_CHARACTERS_MAX),
    parameter("start", "0: the list waits until it is resumed.", enum=["0", "1"], default="1"),
    parameter("recheck", "1: ask again later what time may cure.", enum=["0", "1"], default="0"),
    parameter(
        "strict_clocks",
        "1: give slow hosts no more time then than in the first pass.",
        enum=["0", "1"],
        default="0",
    ),
    parameter(
        "patience_s",
        "How many seconds each address may wait for what its mail host takes; 0: not at all.",
        type="integer",
        minimum=0,
        maximum=int(PATIENCE_S_MAX),
    ),
    parameter("smtp", "0: ask no mail host.", enum=["0", "1"], default="1"),
    parameter("webhook", "A public https URL, called when the list is done."),
    parameter("Webhook-Secret", "Signs the callback.", "header"),
)
RESULT_PARAMETERS = (
    parameter("format", "The format of the rows.", enum=list(FORMATS), default="ndjson"),
    parameter(
        "only",
        "Only the rows of these lights, such as green,yellow.",
        pattern="^(green|yellow|red)(,(green|yellow|red))*$",
    ),
    parameter(
        "formulas",
        "Cells of CSV that begin like a formula: guard puts an apostrophe before them.",
        enum=["guard", "keep"],
        default="guard",
    ),
)


async def create_list(service: Service, call: Call) -> OperationReply:
    """Send a list: CSV, TSV, NDJSON, XLSX or lines. It is verified in the background."""
    queue = service.lists
    if queue is None or call.receive is None:
        raise _malformed("This service runs no background jobs, so it takes no lists.")
    extension = _extension_of(call.sent.get("content-type", "application/octet-stream"))
    order = _order(call, service.list_limits.patience_s)
    starts = _switch(call, "start", default=True)
    account, limits = call.caller.account, service.list_limits
    sheet = call.only_value("sheet", "lists") or None
    columns = tuple(name for name in call.query.get("column", []) if name)
    if len(columns) > COLUMNS_MAX:
        raise _malformed(f"The query parameter column is there more than {COLUMNS_MAX} times.")
    reading = ReadOptions(
        column=columns or None,
        sheet=sheet,
        unpacked_octets_max=limits.octets_of(account.tier, UNPACKED_OCTETS_MAX),
        lines_max=limits.lines_of(account.tier),
    )
    octets_max = limits.octets_of(account.tier, limits.octets_max)
    async with spooled(
        call.receive, account.id, octets_max, call.admission.stored, limits.upload_folder
    ) as upload:
        rows_max = limits.rows_of(account.tier)
        opened = partial(
            open_list_reader, account, upload, extension, order.name, reading, rows_max
        )
        made = await call.at_most_once(lambda: _store_list(service, call, order, opened, starts))
    queue.wake()
    return made


async def _store_list(
    service: Service, call: Call, order: ListOrder, opened: OpenReader, starts: bool
) -> OperationReply:
    """Store the rows, then let the list run; what fails leaves nothing. Raises Refusal."""
    store, mib_max = service.store, service.plan(call.caller).lists_mib
    state: ListState = "running" if starts else "paused"
    await _create(service, call, order)
    try:
        async with opened() as reader:
            while chunks := await reader.next_chunks():
                if not await store.add_chunks(order.id, chunks, octets_max=mib_max << 20):
                    raise ListNotFound
        # The answer is made in the thread of the transaction.
        now, limit = service.now(), _limit(service, call)
        made = await store.change_list(
            order.id, state, before=["loading"], loaded=reader.loaded,
            idempotency=call.idempotency, answer=lambda made: call.answered(_accepted(made, now, limit)),
        )  # fmt: skip
        if made is None:
            raise ListNotFound
    except contract.ListRoomExceeded:
        _delete_later(service, call, order.id)
        raise ListsTooLarge(mib_max) from None
    except BaseException:
        _delete_later(service, call, order.id)
        raise
    call.mark_kept()
    return _accepted(made, now, limit)


def _accepted(made: StoredList, now: datetime, limit: int) -> OperationReply:
    return reply(202, response_of(made, NO_WAITS, now, limit))


def _limit(service: Service, call: Call) -> int:
    """The units that the account may take in a minute."""
    return service.plan(call.caller).rate_limit_per_min


def _delete_later(service: Service, call: Call, list_id: str) -> None:
    """Delete what is stored of an upload that fails.

    It may have been stored whole, by a transaction whose answer was lost. With an idempotency key
    it then stays: the answer to it is stored too, and a repeat of the request returns that.
    """

    async def delete() -> None:
        await service.store.drop_upload(list_id)
        if call.idempotency is None:
            await service.store.delete_list(list_id)

    service.background_writes.write_until_durable(delete)


async def _create(service: Service, call: Call, order: ListOrder) -> None:
    """Store the list without its rows. Raises Refusal."""
    bounds = service.list_limits.bounds
    try:
        await service.store.create_list(call.caller, order, bounds)
    except contract.ListLimitReached as reached:
        kind = TooManyLists if reached.active else TooManyKeptLists
        raise kind(reached.lists_max) from None
    except contract.ListRateExceeded as early:
        limit = bounds.per_minute_max
        raise ListsTooFast(limit, early.asked_at, early.reset_at, 1) from None
    except contract.OutcomeUnknown:  # it may be there
        _delete_later(service, call, order.id)
        raise


async def list_lists(service: Service, call: Call) -> OperationReply:
    """The account's lists of the key's kind, newest first."""
    caller = call.caller
    kind = None if caller.key.kind == "provisioning" else caller.key.is_test
    text = call.only_value("search", "lists") or ""
    found = await service.store.lists(caller.account.id, limit=LISTED_MAX, is_test=kind)
    matching = [each for each in found if each.matches(text)]
    waits = await waits_of(service, matching)
    now, limit = service.now(), _limit(service, call)
    shown = [response_of(each, waits.get(each.id, NO_WAITS), now, limit) for each in matching]
    return reply(200, ListsResponse(shown))


async def waits_of(service: Service, lists: Sequence[StoredList]) -> Mapping[str, ListWaits]:
    """What waits of those that run for their mail hosts."""
    running = [each.id for each in lists if each.state == "running"]
    return await service.store.list_waits(running) if running else {}


async def get_list(service: Service, call: Call) -> OperationReply:
    """A list: how far it is, and what was found."""
    return await _shown(service, call, await _found(service, call))


async def _shown(service: Service, call: Call, found: StoredList) -> OperationReply:
    waits = (await waits_of(service, [found])).get(found.id, NO_WAITS)
    return reply(200, response_of(found, waits, service.now(), _limit(service, call)))


async def get_list_results(service: Service, call: Call) -> OperationReply:
    """The rows of a list with their results, as far as they are known."""
    found = await _found(service, call)
    name = call.only_value("format", "lists")
    name = "ndjson" if name is None else name
    if name not in FORMATS:
        raise _malformed("The query parameter format must be ndjson, csv or xlsx.")
    only = call.only_value("only", "lists")
    try:
        lights = frozenset() if only is None else lights_of(only, "The query parameter only")
    except Misuse as error:
        raise _malformed(f"{error.message}.") from None
    media_type, make = FORMATS[name]
    formulas = formulas_of(call.only_value("formulas", "lists"))
    if formulas is None:
        raise _malformed("The query parameter formulas must be guard or keep.")
    results = ListResults(service.store, found, RowFilter(lights), formulas)
    parts = StreamedParts(await begun(found.account_id, make(results)))
    headers = {
        "Content-Disposition": disposition(found.name, name),
        "X-Content-Type-Options": "nosniff",  # a browser shows no list as a page
    }
    return OperationReply(200, parts, headers, media_type)


async def pause_list(service: Service, call: Call) -> OperationReply:
    """Pause a list: nothing more is asked until it is resumed."""
    return await _changed(service, call, "paused", "running")


async def resume_list(service: Service, call: Call) -> OperationReply:
    """Resume a paused list."""
    done = await _changed(service, call, "running", "paused", key_id=call.caller.key.id)
    if service.lists is not None:
        service.lists.wake()
    return done


async def cancel_list(service: Service, call: Call) -> OperationReply:
    """End a list. What is answered stays; nothing more is asked or counted."""
    return await _changed(service, call, "cancelled", "running", "paused")


async def delete_list(service: Service, call: Call) -> OperationReply:
    """Delete a list with its rows and results; what is under way is not asked any more."""
    found = await _found(service, call)
    await service.store.change_list(found.id, "cancelled", before=["loading", "running", "paused"])
    await service.store.delete_list(found.id, by=call.actor(service))
    return OperationReply(204)


async def _changed(
    service: Service, call: Call, state: ListState, *before: ListState, key_id: str | None = None
) -> OperationReply:
    """Change the state if it is one of `before`; else the list stays as it is.

    A list goes on by `key_id`'s limits, unless that would make a test live.
    """
    found = await _found(service, call)
    if found.is_test != call.caller.key.is_test:
        key_id = None
    changed = await service.store.change_list(found.id, state, before=before, key_id=key_id)
    return await _shown(service, call, changed or await _found(service, call))


async def _found(service: Service, call: Call) -> StoredList:
    list_id = call.path_id()
    found = await service.store.stored_list(list_id) if list_id else None
    if found is None or not call.caller.may_see(found.account_id, is_test=found.is_test):
        raise ListNotFound
    return found


def _order(call: Call, patience_s: int) -> ListOrder:
    name = call.only_value("name", "lists") or UNNAMED
    name = "".join(character if character.isprintable() else " " for character in name)
    if len(name) > NAME_CHARACTERS_MAX:
        raise _malformed(
            f"The query parameter name has more than {NAME_CHARACTERS_MAX} characters."
        )
    rechecks = len(RECHECK_S) if _switch(call, "recheck", default=False) else 0
    strict = _switch(call, "strict_clocks", default=False)
    smtp = _switch(call, "smtp", default=True)
    patience_s = _patience_s(call.only_value("patience_s", "lists"), patience_s)
    list_id, webhook = str(uuid4()), call.only_value("webhook", "lists")
    if webhook is None:
        return ListOrder(
            list_id, name, None, "", rechecks=rechecks, strict_clocks=strict, asks_hosts=smtp,
            patience_s=patience_s,
        )  # fmt: skip
    secret = call.sent.get("webhook-secret")
    if secret is not None and not SECRET_CHARACTERS_MIN <= len(secret) <= SECRET_CHARACTERS_MAX:
        raise _malformed(
            f"The header Webhook-Secret must have {SECRET_CHARACTERS_MIN} to "
            f"{SECRET_CHARACTERS_MAX} characters."
        )
    try:
        target = check_webhook(webhook)
    except NotAWebhook as error:
        raise _malformed(f"The query parameter webhook is not valid: {error}.") from None
    receiver = f"{call.caller.account.id} {target.authority}"
    return ListOrder(
        list_id, name, target.url, receiver, secret, rechecks, strict, smtp, present_trace(),
        patience_s,
    )  # fmt: skip


def _patience_s(given: str | None, default_s: int) -> int:
    value = given or str(default_s)
    if not (value.isascii() and value.isdigit() and int(value[:9]) <= PATIENCE_S_MAX):
        raise _malformed(
            f"The query parameter patience_s must be a number of seconds up to {PATIENCE_S_MAX:.0f}."
        )
    return int(value)


def _switch(call: Call, name: str, *, default: bool) -> bool:
    value = call.only_value(name, "lists") or str(int(default))
    if value not in ("0", "1"):
        raise _malformed(f"The query parameter {name} must be 1 or 0.")
    return value == "1"


def _extension_of(media_type: str) -> str:
    name = media_type.partition(";")[0].strip().lower()
    if name not in EXTENSIONS:
        known = ", ".join(EXTENSIONS)
        raise _malformed(f"The body's Content-Type is {name[:80]!r}; it takes {known}.")
    return EXTENSIONS[name]


def formulas_of(text: str | None) -> Formulas | None:
    """What becomes of formulas; None for what is no such word."""
    known: dict[str, Formulas] = {"guard": "guard", "keep": "keep"}
    return "guard" if text is None else known.get(text)


def response_of(
    found: StoredList, waits: ListWaits, now: datetime, units_per_minute: int
) -> ListResponse:
    """How far a list is, and what it waits for."""
    standing = standing_of(found, waits, now)
    progress = progress_of(found, now, units_per_minute, waits)
    left_s = progress.left_s
    reading = decode_reading(found.reading) or ListReading()
    return ListResponse(
        list_id=found.id,
        name=found.name,
        status=standing.status,
        created_at=found.created_at,
        rows=found.rows,
        addresses=found.addresses,
        answered=found.answered,
        counts=dict(found.counts),
        per_minute=round(progress.per_s * 60, 1),
        left_s=None if left_s is None else round(left_s, 1),
        cause=found.cause,
        ended_at=found.ended_at,
        recheck_at=found.recheck_at if found.state in ("running", "paused") else None,
        stage=standing.stage,
        waits_until=standing.waits_until,
        waits_for=standing.waits_for,
        patience_s=found.patience_s,
        columns=reading.columns,
        unwrapped_rows=reading.unwrapped,
        doubtful_rows=reading.doubtful,
        several_rows=reading.several,
    )


def _malformed(why: str) -> InvalidRequest:
    return InvalidRequest(why, "lists")
