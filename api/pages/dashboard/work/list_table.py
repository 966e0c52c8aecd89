"""The table of a list's results: chips, search, order, pages, a row, and the download of a filter."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from urllib.parse import urlencode

from quart import Blueprint, Response, request
from quart.wrappers.response import IterableBody
from werkzeug.exceptions import NotFound

from mailprobe.api.lists.downloads import begun
from mailprobe.api.lists.results import ListResults, disposition
from mailprobe.api.lists.table import (
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
from mailprobe.api.pages.dashboard.frame import HEADERS, LISTS_PAGE, Frame, is_part
from mailprobe.api.pages.dashboard.refusal_words import words_of
from mailprobe.api.pages.dashboard.try_page import (
    BLAMES,
    KEEP_THE_FORM,
    bounce_of,
    explained,
    text_of,
    turns_of,
)
from mailprobe.api.refusals import ListNotFound, Refusal
from mailprobe.api.rest.lists import FORMATS, formulas_of
from mailprobe.api.results.lights import LIGHT_COLOURS, WORDS
from mailprobe.api.results.marks import LIGHTS, REASONS, STATUSES, ResultKind
from mailprobe.api.results.row_filter import RowFilter
from mailprobe.api.results.row_result import RowResult
from mailprobe.api.schema import ListResponse
from mailprobe.engine.evidence import Evidence
from mailprobe.engine.lights import light_of
from mailprobe.storage.list_records import StoredList

TEXT_CHARACTERS_MAX = 100  # of a search
PLACE_MAX = 10**9

LIGHT_WORDS: Mapping[str, str] = {
    "GREEN_LIGHT": "Keep", "YELLOW_LIGHT": "Confirm", "RED_LIGHT": "Drop",
}  # fmt: skip
STATUS_WORDS: Mapping[str, str] = {
    status: status.replace("_", " ").capitalize() for status in STATUSES
}
REASON_WORDS: Mapping[str, str] = {
    reason: WORDS[reason][0].upper() + WORDS[reason][1:] for reason in REASONS
}
ORDER_WORDS: Mapping[Order, str] = {
    "file": "As in the file", "best": "Best first", "worst": "Worst first",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class TableQuery:
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


@dataclass(frozen=True, slots=True)
class Chip:
    """A value to filter by: how many rows have it with the other filters, and where it leads."""

    name: str
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


def chips(query: TableQuery, counts: Counter[ResultKind]) -> list[tuple[str, list[Chip]]]:
    """The chips by what they filter: those that some row has, and the chosen ones."""
    only = query.only
    return [
        (name.capitalize(), _chips_of(query, name, names, _counted(counts, others, name)))
        for name, names, others in (
            ("light", LIGHT_WORDS, replace(only, lights=frozenset())),
            ("status", STATUS_WORDS, replace(only, statuses=frozenset())),
            ("reason", REASON_WORDS, replace(only, reasons=frozenset())),
        )
    ]


def _chips_of(
    query: TableQuery, name: str, names: Mapping[str, str], found: Counter[str]
) -> list[Chip]:
    chosen = getattr(query, name)
    made = []
    for value, word in names.items():
        is_chosen = value == chosen
        if found[value] or is_chosen:
            leads = query.url(**{name: "" if is_chosen else value})
            made.append(Chip(word, value, found[value], is_chosen, leads))
    return made


def _counted(counts: Counter[ResultKind], only: RowFilter, name: str) -> Counter[str]:
    """How many rows have each value of this name."""
    found: Counter[str] = Counter()
    for kind, number in counts.items():
        if only.takes_kind(kind):
            found[getattr(kind, name)] += number
    return found


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
        only = table_query(request.args).only
        formulas = formulas_of(request.args.get("formulas")) or "guard"
        rows = ListResults(frame.service.store, stored, only, formulas)
        parts = await begun(stored.account_id, make(rows))
        response = Response(IterableBody(parts), 200)
        response.headers.update(
            {
                **HEADERS,
                "Content-Type": media_type,
                "Content-Disposition": disposition(found.name, name),
            }
        )
        response.timeout = None
        return response


def _register_rows(pages: Blueprint, frame: Frame) -> None:
    store = frame.service.store

    @pages.get(f"{LISTS_PAGE}/<id>/rows/<int:place>/<int:number>")
    @frame.signed_in
    async def row(id: str, place: str, number: str) -> Response:
        """What was found at one address."""
        found, stored = await list_and_stored(frame, id)
        return await shown(found, stored, await row_of(stored, place, number))

    @pages.post(f"{LISTS_PAGE}/<id>/rows/<int:place>/<int:number>/conversation")
    @partial(frame.signed_in, spends_units=True)
    async def row_conversation(id: str, place: str, number: str) -> Response:
        """Ask the mail host about the address again, and show what is said.

        The conversations of lists are not kept: they would take more room than all else.
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
            "now": result, "turns": turns_of(evidence.conversation),
            "bounce": await bounce_of(frame, row.address, result), "email": row.address,
            "conversation": text_of(evidence.conversation),
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
            row.address, list=found, row=row, light=light_name(row.result),
            own=[each for each in zip(columns, row.cells, strict=False) if each[1]],
            blame=BLAMES.get(row.result.blame or ""), can_ask=not stored.is_test,
            **WORDS_OF_PAGES, **more,
        )  # fmt: skip


def light_name(result: RowResult) -> str:
    return LIGHT_COLOURS[light_of(result)]


WORDS_OF_PAGES: Mapping[str, object] = {
    "light_words": {colour: LIGHT_WORDS[light] for light, colour in LIGHT_COLOURS.items()},
    "status_words": STATUS_WORDS,
    "reason_words": REASON_WORDS,
}


async def table_values(frame: Frame, stored: StoredList, query: TableQuery) -> dict[str, object]:
    """What the table's template shows."""
    store = frame.service.store
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
        "chips": chips(query, marks.counts),
        "rows": [(each, light_name(each.result)) for each in found.rows],
        "matching": matching,
        "answered": marks.counts.total(),
        "searched": _searched(marks, found),
        "first": (query.page - 1) * PAGE_ROWS + 1,
        "pages": max(1, -(-matching // PAGE_ROWS)),
        "next_place": found.next_place,
        "orders": ORDER_WORDS,
        **WORDS_OF_PAGES,
    }


def _searched(marks: Marks, found: FoundRows) -> int:
    """How many of the answered addresses were searched."""
    if found.next_place is None:
        return marks.counts.total()
    end = found.next_place
    return sum(len(each) for place, each in marks.places.items() if place < end)
