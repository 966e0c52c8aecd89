"""The operation that takes a list: its file is read, stored in chunks, and verified in the background."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from functools import partial
from typing import Annotated
from uuid import uuid4

import msgspec
from msgspec import Meta, Struct

from mailprobe.storage import contract
from mailprobe.storage.list_records import NO_WAITS, ListOrder, ListState, StoredList

from ..jobs.rules import NotAWebhook, check_webhook
from ..jobs.worker import RECHECK_S
from ..listfile.bounds import ADDRESS_COLUMNS_MAX
from ..listfile.encodings import CANDIDATES
from ..listfile.opening import UNPACKED_OCTETS_MAX, ReadOptions
from ..lists.spool import spooled
from ..lists.upload import EXTENSIONS, ListReader, open_list_reader
from ..observability.request_context import present_trace
from ..quota.list_limits import (
    NAME_CHARACTERS_MAX,
    UPLOAD_OCTETS_MAX,
)
from ..refusals import (
    ListNotFound,
    ListsTooFast,
    ListsTooLarge,
    SlowUpload,
    TooManyKeptLists,
    TooManyLists,
)
from ..schema import says
from ..service import Service
from ..settings import PATIENCE_S_MAX
from .list_jobs import (
    LISTS,
    ListResponse,
    malformed,
    response_of,
    units_a_minute,
)
from .operation import (
    BODIED,
    KEYED,
    NDJSON,
    REPEATABLE,
    Call,
    Operation,
    OperationReply,
    ToolForm,
    ToolRequest,
    ToolText,
    parameter,
    reply,
)
from .parameter_texts import COLUMN, NO_SMTP, PATIENCE_S, RECHECK, SHEET, STRICT_CLOCKS, when
from .verify import SECRET_CHARACTERS_MAX, SECRET_CHARACTERS_MIN

_encoder = msgspec.json.Encoder()

OpenReader = Callable[[], AbstractAsyncContextManager[ListReader]]

ENCODINGS = (
    "utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", *CANDIDATES,
)  # fmt: skip
UNNAMED = "list"
LIST_EMAILS_MAX = 5_000  # a model has no more at hand; a longer list is a file
CREATE_PARAMETERS = (
    parameter(
        "column",
        f"{COLUMN} Given several times, each column has its own results, named after it.",
    ),
    parameter("sheet", SHEET),
    parameter("name", "A name for people, such as the file's.", maxLength=NAME_CHARACTERS_MAX),
    parameter("start", "0: the list waits until it is resumed.", enum=["0", "1"], default="1"),
    parameter("recheck", when("1", RECHECK), enum=["0", "1"], default="0"),
    parameter(
        "strict_clocks",
        when("1", STRICT_CLOCKS),
        enum=["0", "1"],
        default="0",
    ),
    parameter(
        "patience_s",
        PATIENCE_S,
        type="integer",
        minimum=0,
        maximum=int(PATIENCE_S_MAX),
    ),
    parameter("smtp", when("0", NO_SMTP), enum=["0", "1"], default="1"),
    parameter("webhook", "A public https URL, called when the list is done."),
    parameter("Webhook-Secret", "Signs the callback.", "header"),
    # Generated clients take them by position: a new one comes last.
    parameter("encoding", "The encoding of a text; default: as it is found.", enum=[*ENCODINGS]),
    parameter(
        "guess",
        "1: take the most likely columns, sheet and encoding where none is clear.",
        enum=["0", "1"],
        default="0",
    ),
)


async def create_list(service: Service, call: Call) -> OperationReply:
    """Send a list: CSV, TSV, XLSX, JSON, NDJSON or lines. It is verified in the background."""
    queue = service.lists
    if queue is None or call.receive is None:
        raise malformed("This service runs no background jobs, so it takes no lists.")
    extension = _extension_of(call.headers.get("content-type", "application/octet-stream"))
    order = _order(call, service.list_limits.patience_s)
    starts = _switch(call, "start", default=True)
    account, limits = call.caller.account, service.list_limits
    sheet = call.only_value("sheet", "lists") or None
    encoding = call.only_value("encoding", "lists") or None
    if encoding is not None and encoding not in ENCODINGS:
        raise malformed(f"The query parameter encoding must be one of {', '.join(ENCODINGS)}.")
    columns = tuple(name for name in call.query.get("column", []) if name)
    if len(columns) > ADDRESS_COLUMNS_MAX:
        raise malformed(
            f"The query parameter column is there more than {ADDRESS_COLUMNS_MAX} times."
        )
    reading = ReadOptions(
        column=columns or None,
        sheet=sheet,
        encoding=encoding,
        guesses=_switch(call, "guess", default=False),
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
    store, mib_max = service.store, service.plans[call.caller.account.tier].lists_mib
    state: ListState = "running" if starts else "paused"
    await _create(service, call, order)
    try:
        async with opened() as reader:
            while chunks := await reader.next_chunks():
                if not await store.add_chunks(order.id, chunks, octets_max=mib_max << 20):
                    raise ListNotFound
        # The answer is made in the thread of the transaction.
        now, limit = service.now(), units_a_minute(service, call)
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


def _order(call: Call, patience_s: int) -> ListOrder:
    name = call.only_value("name", "lists") or UNNAMED
    name = "".join(character if character.isprintable() else " " for character in name)
    if len(name) > NAME_CHARACTERS_MAX:
        raise malformed(f"The query parameter name has more than {NAME_CHARACTERS_MAX} characters.")
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
    secret = call.headers.get("webhook-secret")
    if secret is not None and not SECRET_CHARACTERS_MIN <= len(secret) <= SECRET_CHARACTERS_MAX:
        raise malformed(
            f"The header Webhook-Secret must have {SECRET_CHARACTERS_MIN} to "
            f"{SECRET_CHARACTERS_MAX} characters."
        )
    try:
        target = check_webhook(webhook)
    except NotAWebhook as error:
        raise malformed(f"The query parameter webhook is not valid: {error}.") from None
    receiver = f"{call.caller.account.id} {target.authority}"
    return ListOrder(
        list_id, name, target.url, receiver, secret, rechecks, strict, smtp, present_trace(),
        patience_s,
    )  # fmt: skip


def _patience_s(given: str | None, default_s: int) -> int:
    value = given or str(default_s)
    if not (value.isascii() and value.isdigit() and int(value[:9]) <= PATIENCE_S_MAX):
        raise malformed(
            f"The query parameter patience_s must be a number of seconds up to {PATIENCE_S_MAX:.0f}."
        )
    return int(value)


def _switch(call: Call, name: str, *, default: bool) -> bool:
    value = call.only_value(name, "lists") or str(int(default))
    if value not in ("0", "1"):
        raise malformed(f"The query parameter {name} must be 1 or 0.")
    return value == "1"


def _extension_of(media_type: str) -> str:
    name = media_type.partition(";")[0].strip().lower()
    if name not in EXTENSIONS:
        known = ", ".join(EXTENSIONS)
        raise malformed(f"The body's Content-Type is {name[:80]!r}; it takes {known}.")
    return EXTENSIONS[name]


class ListArguments(Struct, frozen=True):
    """The addresses of a list, and how they are verified."""

    emails: Annotated[
        Annotated[list[str], Meta(min_length=1, max_length=LIST_EMAILS_MAX)], says("The addresses.")
    ]
    name: Annotated[str | None, says("A name for people.")] = None
    start: Annotated[bool, says("false: the list waits until it is resumed.")] = True
    recheck: Annotated[bool, says(when("true", RECHECK))] = False
    strict_clocks: Annotated[bool, says(when("true", STRICT_CLOCKS))] = False
    patience_s: Annotated[
        Annotated[int, Meta(ge=0, le=int(PATIENCE_S_MAX))] | None,
        says(f"{PATIENCE_S} Default: as the service is set, such as four hours."),
    ] = None
    smtp: Annotated[bool, says(when("false", NO_SMTP))] = True
    webhook: Annotated[
        str | None,
        Meta(extra_json_schema={"format": "uri"}),
        says("A public https URL with a host name, called when the list is done."),
    ] = None
    webhook_secret: Annotated[str | None, says("Signs the callback.")] = None


def _upload(taken: ListArguments, octets: bytes) -> ToolRequest:
    query = {
        "column": ["email"], "start": [str(int(taken.start))],
        "recheck": [str(int(taken.recheck))],
        "smtp": [str(int(taken.smtp))], "strict_clocks": [str(int(taken.strict_clocks))],
    }  # fmt: skip
    for name in ("name", "webhook", "patience_s"):
        if (value := getattr(taken, name)) is not None:
            query[name] = [str(value)]
    headers = {"content-type": NDJSON}
    if taken.webhook_secret is not None:
        headers["webhook-secret"] = taken.webhook_secret
    body = _encoder.encode_lines([{"email": email} for email in taken.emails])
    return ToolRequest(query=query, body=body, headers=headers)


CREATE_TOOL = ToolForm(
    ToolText(
        "Verify a list in the background",
        f"Start to verify up to {LIST_EMAILS_MAX:,} email addresses in the background. The answer "
        "is the list's id at once; get_list says how far it is, get_list_results has the rows. "
        "Each different address is one verification of the account's quota.",
        reaches_out=True,
    ),
    ListArguments,
    request_of=_upload,
)
OPERATIONS = (
    Operation(
        "create_list", "POST", LISTS, "Send a list",
        create_list, "standard", ListResponse, 202, section="lists",
        may=(*KEYED, *BODIED, *REPEATABLE, SlowUpload, TooManyLists, TooManyKeptLists, ListsTooLarge, ListsTooFast),
        wide=CREATE_TOOL, uploads=True, octets_max=UPLOAD_OCTETS_MAX, parameters=CREATE_PARAMETERS,
    ),
)  # fmt: skip
