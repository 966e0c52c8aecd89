"""The operations on lists: see how far one is, fetch its results, pause, end, delete."""

from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing
from datetime import datetime
from typing import Annotated, get_args

import msgspec
from msgspec import Meta, Raw, Struct

from mailprobe.storage.list_records import NO_WAITS, ListState, ListWaits, StoredList

from ..admission.turns import FairTurns
from ..errors import Misuse
from ..listfile.formulas import Formulas
from ..lists.downloads import BegunDownload, begun
from ..lists.results import (
    ListResults,
    csv_parts,
    disposition,
    ndjson_parts,
    workbook_parts,
)
from ..lists.stages import (
    ListStage,
    ListStatus,
    ListWait,
    WaitingHost,
    progress_of,
    standing_of,
)
from ..lists.table import read_marks
from ..quota.list_limits import WAITING_S_MAX
from ..refusals import (
    InvalidRequest,
    ListNotFound,
)
from ..results.lights import lights_of
from ..results.list_reading import ListReading, decode_reading
from ..results.marks import LIGHTS, STATUSES, ResultKind
from ..results.row_filter import RowFilter
from ..schema import Instant, says
from ..service import Service
from .examples import AT, ID
from .operation import (
    CSV,
    KEYED,
    NDJSON,
    REPEATABLE,
    XLSX,
    Call,
    ItemId,
    Operation,
    OperationReply,
    StreamedParts,
    ToolForm,
    ToolRequest,
    ToolText,
    deleted_answer,
    parameter,
    path_of,
    reply,
)
from .parameter_texts import FORMULAS, LIST_SEARCH, ONLY_LIGHTS

LISTS = "/v1/lists"
LISTED_MAX = 100
COUNTED_MAX = 200  # requests that wait until a list is counted

FORMATS: Mapping[str, tuple[str, Callable[[ListResults], AsyncGenerator[bytes, None]]]] = {
    "ndjson": (NDJSON, ndjson_parts),
    "csv": (CSV, csv_parts),
    "xlsx": (XLSX, workbook_parts),
}

# Accounts take turns: the marks of a million addresses are two megabytes.
_counting = FairTurns(1, waiting_max=COUNTED_MAX, wait_s=WAITING_S_MAX)

LIST_PARAMETERS = (parameter("search", LIST_SEARCH),)
RESULT_PARAMETERS = (
    parameter("format", "The format of the rows.", enum=list(FORMATS), default="ndjson"),
    parameter(
        "only",
        ONLY_LIGHTS,
        pattern="^(green|yellow|red)(,(green|yellow|red))*$",
    ),
    parameter(
        "formulas",
        FORMULAS,
        enum=[*get_args(Formulas)],
        default="guard",
    ),
)


class ListResponse(Struct, frozen=True, kw_only=True):
    """A list. `counts` has its answered addresses by status; `cause` says why it waits or failed."""

    list_id: Annotated[str, says("The id of the list: /v1/lists/{id} has its state.")]
    name: Annotated[str, says("The name of the file, for people.")]
    status: Annotated[
        ListStatus,
        says(
            "`reading`: its rows are being read. `running`. `paused`: by you, or by a limit that "
            "`cause` names. `done`. `failed`: see `cause`. `cancelled`."
        ),
    ]
    created_at: Annotated[Instant, says("When it was created.")]
    rows: Annotated[int, says("How many rows it has.")]
    addresses: Annotated[int, says("How many different addresses it has: a unit each.")]
    answered: Annotated[int, says("How many of them are answered.")]
    counts: Annotated[dict[str, int], says("How many of the answered addresses have each status.")]
    per_minute: Annotated[float, says("Answers a minute since the list was started or resumed.")]
    left_s: Annotated[
        float | None,
        says(
            "Seconds until all are answered, at this rate, within the limit of a minute and the "
            "tolerance of mail hosts."
        ),
    ] = None
    cause: Annotated[str | None, says("The code of the error that paused it or made it fail.")] = (
        None
    )
    ended_at: Annotated[Instant | None, says("When it ended.")] = None
    recheck_at: Annotated[
        Instant | None, says("When temporary failures are asked again, or were last.")
    ] = None
    stage: Annotated[
        ListStage | None, says("While it runs: addresses are asked, or all that are left wait.")
    ]
    waits_until: Annotated[
        Instant | None, says("While all wait: when the first of them is asked again.")
    ] = None
    waits_for: Annotated[
        tuple[ListWait, ...], says("What addresses wait for, also while others are asked.")
    ] = ()
    patience_s: Annotated[
        int, says("How many seconds each address may wait until its mail host takes more.")
    ]
    columns: Annotated[
        list[str], says("The columns of the addresses; none: each line is an address.")
    ] = []
    unwrapped_rows: Annotated[
        int, says("Rows in which something stood around the address, which was taken out.")
    ] = 0
    doubtful_rows: Annotated[
        int, says("Rows whose address is only suggested, and was not verified.")
    ] = 0
    several_rows: Annotated[
        int, says("Rows with several addresses in one cell, which are all verified.")
    ] = 0
    further_columns: Annotated[
        list[str], says("Other columns that have addresses; name all of them to verify these too.")
    ] = []


class ListsResponse(Struct, frozen=True):
    """The account's lists, newest first, at most a hundred."""

    lists: Annotated[list[ListResponse], says("The lists, newest first.")]


class ListSummary(Struct, frozen=True):
    """The results of a list, counted. Each address counts once, however many rows have it."""

    list_id: Annotated[str, says("The id of the list: /v1/lists/{id} has its state.")]
    addresses: Annotated[int, says("How many different addresses it has.")]
    answered: Annotated[int, says("How many of them have a result by now.")]
    lights: Annotated[dict[str, int], says("How many have each light: what to do with them.")]
    statuses: Annotated[dict[str, int], says("How many have each status.")]
    reasons: Annotated[
        dict[str, int], says("How many have each reason that occurs, the most frequent first.")
    ]


async def list_lists(service: Service, call: Call) -> OperationReply:
    """The account's lists of the key's kind, newest first."""
    caller = call.caller
    kind = None if caller.key.signs_in else caller.key.is_test
    text = call.only_value("search", "lists") or ""
    found = await service.store.lists(caller.account.id, limit=LISTED_MAX, is_test=kind)
    matching = [each for each in found if each.matches(text)]
    waits = await waits_of(service, matching)
    now, limit = service.now(), units_a_minute(service, call)
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
    return reply(200, response_of(found, waits, service.now(), units_a_minute(service, call)))


def units_a_minute(service: Service, call: Call) -> int:
    """The units that the account may take in a minute."""
    return service.plans[call.caller.account.tier].rate_limit_per_min


async def get_list_summary(service: Service, call: Call) -> OperationReply:
    """What was found in a list, in numbers: by light, by status and by reason, as far as it is known."""
    found = await _found(service, call)
    async with _counting.turn(found.account_id):
        marks = await read_marks(service.store, found)
    return reply(200, summary_of(found, marks.counts))


def summary_of(found: StoredList, counts: Counter[ResultKind]) -> ListSummary:
    """The summary of a list whose results are of these kinds."""
    lights = Counter[str](dict.fromkeys(LIGHTS, 0))
    statuses = Counter[str](dict.fromkeys(STATUSES, 0))
    reasons = Counter[str]()
    for kind, number in counts.items():
        lights[kind.light] += number
        statuses[kind.status] += number
        reasons[kind.reason] += number
    return ListSummary(
        found.id, found.addresses, counts.total(), lights, statuses, dict(reasons.most_common())
    )


async def get_list_results(service: Service, call: Call) -> OperationReply:
    """The rows of a list with their results, as far as they are known."""
    found = await _found(service, call)
    name = call.only_value("format", "lists")
    name = "ndjson" if name is None else name
    if name not in FORMATS:
        raise malformed("The query parameter format must be ndjson, csv or xlsx.")
    only = call.only_value("only", "lists")
    try:
        lights = frozenset() if only is None else lights_of(only, "The query parameter only")
    except Misuse as error:
        raise malformed(f"{error.message}.") from None
    media_type, make = FORMATS[name]
    formulas = formulas_of(call.only_value("formulas", "lists"))
    if formulas is None:
        raise malformed("The query parameter formulas must be guard or keep.")
    results = ListResults(service.store, found, RowFilter(lights), formulas)
    parts = StreamedParts(await begun(found.account_id, make(results)))
    headers = {
        "Content-Disposition": disposition(found.name, name),
        "X-Content-Type-Options": "nosniff",  # a browser shows no list as a page
    }
    return OperationReply(200, parts, headers, media_type)


async def pause_list(service: Service, call: Call) -> OperationReply:
    """Pause a list: nothing more is asked or counted until it is resumed."""
    return await _changed(service, call, "paused", "running")


async def resume_list(service: Service, call: Call) -> OperationReply:
    """Resume a paused list."""
    done = await _changed(service, call, "running", "paused", key_id=call.caller.key.id)
    if service.lists is not None:
        service.lists.wake()
    return done


async def cancel_list(service: Service, call: Call) -> OperationReply:
    """End a list for good. What is answered stays; nothing more is asked or counted."""
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


def formulas_of(text: str | None) -> Formulas | None:
    """Return how formulas are written; None if the word is unknown."""
    known: dict[str, Formulas] = {each: each for each in get_args(Formulas)}
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
        further_columns=reading.proposed,
    )


def malformed(why: str) -> InvalidRequest:
    return InvalidRequest(why, "lists")


# -- the tools ------------------------------------------------------------------------------------

PAGE_ROWS_MAX = 200
PAGE_OCTETS_MAX = 128 * 1024  # some 40,000 tokens; a single row may have more
PAGE = {
    "title": "ResultsPage",
    "description": "A page of rows: their own fields, and those of their results; null where "
    "there is no result yet.",
    "type": "object",
    "properties": {
        "rows": {"type": "array", "items": {"type": "object"}},
        "next_offset": {
            "anyOf": [{"type": "integer"}, {"type": "null"}],
            "description": "The offset of the next page; null at the end.",
        },
    },
    "required": ["rows", "next_offset"],
}
DELETED = {
    "title": "Deleted",
    "description": "The list with this id is deleted.",
    "type": "object",
    "properties": {"deleted": {"type": "boolean"}, "id": {"type": "string", "format": "uuid"}},
    "required": ["deleted", "id"],
}


class ListId(ItemId, frozen=True):
    """The id of a list."""

    id: Annotated[str, says("The list's id, from create_list or list_lists.")]


class ResultsArguments(ListId, frozen=True):
    """A page of a list's rows."""

    only: Annotated[str | None, says(ONLY_LIGHTS)] = None
    offset: Annotated[int, Meta(ge=0), says("How many rows to pass over.")] = 0
    limit: Annotated[int, Meta(ge=1, le=PAGE_ROWS_MAX), says("How many rows at most.")] = 50


class ResultsPage(Struct, frozen=True):
    """A page of rows. `next_offset` is that of the next page; null at the end."""

    rows: list[Raw]
    next_offset: int | None


def _results(taken: ResultsArguments, octets: bytes) -> ToolRequest:
    query = {"format": ["ndjson"], **({} if taken.only is None else {"only": [taken.only]})}
    return ToolRequest(path_of(taken), query)


async def _page(taken: ResultsArguments, reply: OperationReply) -> bytes:
    assert isinstance(reply.body, StreamedParts)
    return await page_of(reply.body.parts, taken.offset, taken.limit)


async def page_of(parts: AsyncIterator[bytes], offset: int, limit: int) -> bytes:
    """A page of lines in JSON, without reading further than to the row behind it."""
    async with AsyncExitStack() as stack:
        if isinstance(parts, AsyncGenerator | BegunDownload):
            await stack.enter_async_context(aclosing(parts))
        return msgspec.json.encode(await _read_page(parts, offset, limit))


async def _read_page(parts: AsyncIterator[bytes], offset: int, limit: int) -> ResultsPage:
    rows: list[Raw] = []
    octets, number, rest = 0, 0, b""
    async for part in parts:
        *lines, rest = (rest + part).split(b"\n")
        for line in lines:
            if number >= offset:
                octets += len(line)
                if len(rows) == limit or (rows and octets > PAGE_OCTETS_MAX):
                    return ResultsPage(rows, number)
                rows.append(Raw(line))
            number += 1
    return ResultsPage(rows, None)


EXAMPLE = ListResponse(
    list_id=str(ID),
    name="customers.csv",
    status="running",
    created_at=AT,
    rows=1_200,
    addresses=1_150,
    answered=400,
    counts={"deliverable": 350, "undeliverable": 30, "unknown": 20},
    per_minute=800.0,
    stage="asking",
    left_s=1_190.5,
    waits_for=(ListWait("hosts", 41, AT, 1, (WaitingHost("mx.hoster.example", 41, 16, "host_budget", AT, AT),)),),
    patience_s=14_400,
)  # fmt: skip

OPERATIONS = (
    Operation(
        "list_lists", "GET", LISTS, "The lists, newest first",
        list_lists, "standard", ListsResponse, section="lists", may=(*KEYED, InvalidRequest),
        parameters=LIST_PARAMETERS, examples=(ListsResponse([EXAMPLE]),),
        wide=ToolForm(
        ToolText(
        "The lists", "The account's lists, newest first, with their states and counts.",
        only_reads=True, repeats_freely=True,
    )
        ),
    ),
    Operation(
        "get_list", "GET", LISTS + "/{id}", "A list: its state and its counts",
        get_list, "standard", ListResponse, section="lists", may=(*KEYED, ListNotFound),
        examples=(EXAMPLE,),
        wide=ToolForm(
        ToolText(
        "A list's state",
        "How far a list is, the seconds that are left, how many of its addresses have which "
        "status, and why it waits if it does.",
        only_reads=True, repeats_freely=True,
    ),
        ListId,
        ),
    ),
    Operation(
        "get_list_summary", "GET", LISTS + "/{id}/summary", "The results of a list, counted",
        get_list_summary, "standard", ListSummary, section="lists", may=(*KEYED, ListNotFound),
        examples=(
            ListSummary(
                str(ID), 1_150, 400,
                {"GREEN_LIGHT": 350, "YELLOW_LIGHT": 20, "RED_LIGHT": 30},
                {"deliverable": 350, "undeliverable": 30, "unknown": 20, "catch_all": 0, "invalid": 0},
                {"accepted": 350, "no_mailbox": 30, "greylisted": 20},
            ),
        ),
        wide=ToolForm(
            ToolText(
                "A list's results in numbers",
                "How many of a list's addresses have which light, status and reason, as far as they "
                "are known. Read it before the rows.",
                only_reads=True, repeats_freely=True,
            ),
            ListId,
        ),
    ),
    Operation(
        "get_list_results", "GET", LISTS + "/{id}/results", "The rows of a list with their results",
        get_list_results, "standard", None, section="lists",
        may=(*KEYED, ListNotFound, InvalidRequest), parameters=RESULT_PARAMETERS,
        wide=ToolForm(
        ToolText(
        "A list's rows",
        "A page of the rows of a list with their results, as far as they are known. Call it "
        "again with next_offset as the offset until that is null.",
        only_reads=True, repeats_freely=True,
    ),
        ResultsArguments, request_of=_results, output=PAGE, answer_of=_page,
        ),
        media_types=tuple(media_type for media_type, _ in FORMATS.values()),
    ),
    *(
        Operation(
            f"{word}_list", "POST", f"{LISTS}/{{id}}/{word}", summary,
            handler, "standard", ListResponse, section="lists",
            may=(*KEYED, *REPEATABLE, InvalidRequest, ListNotFound), wide=ToolForm(text, ListId),
        )
        for word, handler, summary, text in (
            ("pause", pause_list, "Pause a list", ToolText(repeats_freely=True)),
            (
                "resume", resume_list, "Resume a paused list",
                ToolText(repeats_freely=True, reaches_out=True),
            ),
            ("cancel", cancel_list, "End a list", ToolText(destroys=True, repeats_freely=True)),
        )
    ),
    Operation(
        "delete_list", "DELETE", LISTS + "/{id}", "Delete a list with its results",
        delete_list, "standard", None, 204, section="lists", may=(*KEYED, ListNotFound),
        wide=ToolForm(ToolText(destroys=True), ListId, output=DELETED, answer_of=deleted_answer),
    ),
)  # fmt: skip
