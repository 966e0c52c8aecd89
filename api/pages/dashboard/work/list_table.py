"""The table of a list's results: filters, search, order, pages, a row, and the download of a filter."""

from collections import Counter
from collections.abc import Mapping
from functools import partial
from urllib.parse import urlencode

from msgspec import Struct
from msgspec.structs import replace
from quart import Blueprint, Response, request
from quart.wrappers.response import IterableBody
from werkzeug.exceptions import NotFound

from mailprobe.engine.evidence import Evidence
from mailprobe.storage.list_records import StoredList

from ....lists.conversations import conversation_of
from ....lists.downloads import begun
from ....lists.results import ListResults, disposition
from ....lists.table import (
    ORDERS,
    PAGE_ROWS,
    FoundRows,
    Marks,
    Order,
    ShownRow,
    places_of_page,
    read_marks,
    read_rows,
    search_rows,
)
from ....operations.list_jobs import FORMATS, ListResponse, formulas_of
from ....refusals import ListNotFound, Refusal
from ....results.advice import ANSWERS, advice_of, answer_of, why_of
from ....results.marks import LIGHTS, REASONS, STATUSES, ResultKind
from ....results.row_filter import RowFilter
from ....results.row_result import suggested
from ..frame import HEADERS, LISTS_PAGE, Frame, is_part
from ..refusal_words import words_of
from ..try_page import (
    KEEP_THE_FORM,
    bounce_of,
    conversation_values,
    explained,
)
from .list_states import reasons_of

TEXT_CHARACTERS_MAX = 100  # of a search
PLACE_MAX = 10**9

ORDER_WORDS: Mapping[Order, str] = {
    "file": "As in the file", "best": "Best first", "worst": "Worst first",
}  # fmt: skip


class TableQuery(Struct, frozen=True):
    """What the address of a page asks of the table; what it does not know is as if not there."""

    light: str = ""
    status: str = ""
    reason: str = ""
    text: str = ""
    order: Order = "file"
    page: int = 1
    place: int = 0  # from which a search goes on

    @property
    def only(self) -> RowFilter:
        light, status, reason = (
            frozenset([each] if each else []) for each in (self.light, self.status, self.reason)
        )
        return RowFilter(light, status, reason, self.text.lower())

    def url(self, **changed: object) -> str:
        """The query of a page that differs in this; on its first page, if it says no other."""
        names = {
            "light": self.light, "status": self.status, "reason": self.reason, "q": self.text,
            "order": "" if self.order == "file" else self.order, **changed,
        }  # fmt: skip
        return urlencode({name: value for name, value in names.items() if value})


class Chip(Struct, frozen=True):
    """A value to filter by: how many rows have it with the other filters, and where it leads."""

    value: str
    count: int
    is_chosen: bool
    query: str


def table_query(arguments: Mapping[str, str]) -> TableQuery:
    """Read the query of a page."""

    def one(name: str, known: tuple[str, ...]) -> str:
        return arguments.get(name, "") if arguments.get(name) in known else ""

    def number(name: str, least: int) -> int:
        text = arguments.get(name, "")
        return (
            max(least, min(int(text), PLACE_MAX)) if text.isdecimal() and len(text) < 12 else least
        )

    order = arguments.get("order")
    return TableQuery(
        one("light", LIGHTS), one("status", STATUSES), one("reason", REASONS),
        arguments.get("q", "").strip()[:TEXT_CHARACTERS_MAX],
        next((each for each in ORDERS if each == order), "file"),
        number("page", 1), number("from", 0),
    )  # fmt: skip


def part_of(query: TableQuery) -> str:
    """What the name of a download says of its rows: `keep`, as in the outputs of `clean --split`."""
    if query.status or query.reason or query.text:
        return "verified"
    return next((each.kind for light, each in ANSWERS.items() if light == query.light), "verified")


def statuses_of(query: TableQuery, counts: Counter[ResultKind]) -> list[Chip]:
    """The statuses to filter by: those that some row has, and the chosen one."""
    others = replace(query.only, statuses=frozenset())
    found = Counter[str]()
    for kind, number in counts.items():
        if others.takes_kind(kind):
            found[kind.status] += number
    return [
        Chip(status, found[status], is_chosen, query.url(status="" if is_chosen else status))
        for status in STATUSES
        if (is_chosen := status == query.status) or found[status]
    ]


def register(pages: Blueprint, frame: Frame) -> None:
    """Add the routes."""
    _register_table(pages, frame)
    _register_rows(pages, frame)


async def list_and_stored(frame: Frame, id: str) -> tuple[ListResponse, StoredList]:
    """A list as the API shows it, and as it is stored. Raises ListNotFound, for another account's too."""
    found = await frame.result_of(ListResponse, "get_list", id=id)
    stored = await frame.service.store.stored_list(found.list_id)
    if stored is None:
        raise ListNotFound
    return found, stored


def _register_table(pages: Blueprint, frame: Frame) -> None:
    @pages.get(f"{LISTS_PAGE}/<id>/table")
    @frame.signed_in
    async def table(id: str) -> Response:
        """The table alone; without script it is a page of its own."""
        found, stored = await list_and_stored(frame, id)
        values = await table_values(frame, stored, table_query(request.args))
        template = "list_table.html" if is_part() else "list_table_page.html"
        return await frame.page(template, found.name, list=found, **values)

    @pages.get(f"{LISTS_PAGE}/<id>/results")
    @frame.signed_in
    async def results(id: str) -> Response:
        """The rows of exactly what is filtered, in a file named after the list's."""
        found, stored = await list_and_stored(frame, id)
        name = request.args.get("format", "csv")
        if name not in FORMATS:
            raise NotFound
        media_type, make = FORMATS[name]
        query = table_query(request.args)
        formulas = formulas_of(request.args.get("formulas")) or "guard"
        rows = ListResults(frame.service.store, stored, query.only, formulas)
        parts = await begun(stored.account_id, make(rows))
        response = Response(IterableBody(parts), 200)
        response.headers.update(
            {
                **HEADERS,
                "Content-Type": media_type,
                "Content-Disposition": disposition(found.name, name, part_of(query)),
            }
        )
        response.timeout = None
        return response


def _register_rows(pages: Blueprint, frame: Frame) -> None:
    store = frame.service.store

    @pages.get(f"{LISTS_PAGE}/<id>/rows/<int:place>/<int:number>")
    @frame.signed_in
    async def row(id: str, place: str, number: str) -> Response:
        """What was found at one address, and what its mail host said, while that is kept."""
        found, stored = await list_and_stored(frame, id)
        row = await row_of(stored, place, number)
        kept = await conversation_of(store, stored.id, row.place, row.number)
        if kept is None:
            return await shown(found, stored, row)
        at, evidence = kept
        values = conversation_values(row.result, evidence)
        return await shown(found, stored, row, said_at=at, **values)

    @pages.post(f"{LISTS_PAGE}/<id>/rows/<int:place>/<int:number>/conversation")
    @partial(frame.signed_in, spends_units=True)
    async def row_conversation(id: str, place: str, number: str) -> Response:
        """Ask the mail host about the address again, and show what is said.

        The conversations of lists are kept for a day, those of the newest answers.
        """
        found, stored = await list_and_stored(frame, id)
        if stored.is_test:
            raise NotFound
        row = await row_of(stored, place, number)
        try:
            result = await explained(frame, row.address, asks_bounced=True)
        except Refusal as refusal:
            if not (is_part() and isinstance(refusal, KEEP_THE_FORM)):
                return await frame.refused(refusal)
            error = " ".join(words_of(refusal, frame.service.links))
            return await frame.page("row_conversation.html", row.address, error=error)
        evidence = result.evidence
        assert isinstance(evidence, Evidence)
        values: dict[str, object] = {
            "now": result, "why": why_of(result, evidence.reason or "unclear"), "bounce": await bounce_of(frame, row.address, result),
            "email": row.address, **conversation_values(result, evidence),
            "conversation_id": f"conversation-{row.place}-{row.number}",
        }  # fmt: skip
        if is_part():
            return await frame.page("row_conversation.html", row.address, **values)
        return await shown(found, stored, row, **values)

    async def row_of(stored: StoredList, place: str, number: str) -> ShownRow:
        rows = await read_rows(store, stored.id, [(min(int(place), PLACE_MAX), int(number))])
        if not rows:
            raise NotFound
        return rows[0]

    async def shown(
        found: ListResponse, stored: StoredList, row: ShownRow, **more: object
    ) -> Response:
        columns = await store.list_columns(stored.id)
        return await frame.page(
            "list_row.html" if is_part() else "list_row_page.html",
            row.address, list=found, row=row, list_is_part=is_part(), answer=answer_of(row.result), suggested=suggested(row.result),
            own=[each for each in zip(columns, row.cells, strict=False) if each[1]],
            advice=advice_of(row.result, row.result.reason), can_ask=not stored.is_test,
            **more,
        )  # fmt: skip


async def table_values(
    frame: Frame, stored: StoredList, query: TableQuery, marks: Marks | None = None
) -> dict[str, object]:
    """What the table's template shows."""
    store = frame.service.store
    if marks is None:
        marks = await read_marks(store, stored)
    only = query.only
    matching = sum(number for kind, number in marks.counts.items() if only.takes_kind(kind))
    if query.text:
        found = await search_rows(store, stored.id, marks, only, query.place)
    else:
        wanted = places_of_page(marks, only, query.order, (query.page - 1) * PAGE_ROWS)
        found = FoundRows(await read_rows(store, stored.id, wanted), None)
    return {
        "query": query,
        "statuses": statuses_of(query, marks.counts),
        "rows": [
            (each, answer_of(each.result), why_of(each.result, each.result.reason))
            for each in found.rows
        ],
        "reasons": reasons_of(marks.counts),
        "matching": matching,
        "answered": marks.counts.total(),
        "searched": _searched(marks, found),
        "first": (query.page - 1) * PAGE_ROWS + 1,
        "pages": max(1, -(-matching // PAGE_ROWS)),
        "next_place": found.next_place,
        "orders": ORDER_WORDS,
        "lights": ANSWERS,
    }


def _searched(marks: Marks, found: FoundRows) -> int:
    """How many of the answered addresses were searched."""
    if found.next_place is None:
        return marks.counts.total()
    end = found.next_place
    return sum(len(each) for place, each in marks.places.items() if place < end)
