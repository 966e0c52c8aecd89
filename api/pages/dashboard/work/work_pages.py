"""The pages of the lists."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, suppress

import trio
from quart import Blueprint, Response, request

from mailprobe.storage.list_records import StoredList

from ....lists.table import read_marks
from ....operations.list_jobs import LISTED_MAX, ListResponse, ListsResponse, ListSummary
from ....quota.list_limits import NAME_CHARACTERS_MAX
from ....quota.plans import eur_up
from ....refusals import InvalidRequest, ListNotFound
from ....rest.app import this_request
from ....results.list_reading import ListReading, decode_reading
from ..frame import (
    HEADERS,
    LISTS_PAGE,
    Frame,
    away,
    caller,
    form_fields,
    form_file,
    has_file,
    is_part,
)
from .list_preview import DELIMITERS, ENCODINGS, SAME_AS, preview_of
from .list_rows import csv_of_rows, is_of_lines, text_of_rows, worst_domains
from .list_states import (
    AnswerCount,
    ShownState,
    answers_of,
    is_unstarted,
    progress_values,
    rough_duration,
    state_of,
)
from .list_table import list_and_stored, table_query, table_values

MARKS_MAX = 200_000  # addresses whose answers a page of lists counts: some ms
TICKED = "column-"  # begins the name of a column's checkbox; its value is the number
NOT_DECODED = (
    "Signs that could not be read were replaced, so this file cannot be read otherwise from here. "
    "Send it again, with its encoding among the options."
)
CHOICES = ("column", "patience_s", "encoding", "sheet")  # of the API's parameters, as typed
CHUNKS_PREVIEWED = 5  # some 500 rows, a MiB each at most


def register(pages: Blueprint, frame: Frame) -> None:
    """Add the routes."""
    _register_lists(pages, frame)
    _register_list(pages, frame)
    _register_parts(pages, frame)


def _register_lists(pages: Blueprint, frame: Frame) -> None:
    @pages.get(LISTS_PAGE)
    @frame.signed_in
    async def show_lists() -> Response:
        text = request.args.get("q", "").strip()[:NAME_CHARACTERS_MAX]
        found = await frame.result_of(ListsResponse, "list_lists", query={"search": [text]})
        patience_s = frame.service.list_limits.patience_s
        return await frame.page(
            "lists.html", "Lists", lists=await shown_lists(frame, found.lists), text=text,
            patience=rough_duration(patience_s) if patience_s else "not at all", plan=frame.service.plans[caller().account.tier],
            encodings=ENCODINGS, listed_max=LISTED_MAX,
        )  # fmt: skip

    @pages.post(LISTS_PAGE)
    @frame.signed_in
    async def upload() -> Response:
        """The file as the body (with script), or in a form (without: small files)."""
        made = await (_from_form() if has_file() else _from_body())
        list_id = made.list_id
        chosen = await form_fields() if has_file() else request.args
        if instead := chosen.get("instead"):  # of the same file, read otherwise
            with suppress(ListNotFound):
                before, _ = await list_and_stored(frame, instead)
                if is_unstarted(before):  # another tab may have started it
                    await frame.perform("delete_list", id=instead)
        if has_file():
            return away(f"{LISTS_PAGE}/{list_id}")
        return Response(b"", 201, headers={**HEADERS, "Location": f"{LISTS_PAGE}/{list_id}"})

    async def _from_form() -> ListResponse:
        form, file = await form_fields(), await form_file()
        parts = [form.get("text", "").encode() if file is None else file.octets]
        name = pasted(frame) if file is None else file.file_name or "list"

        async def receive() -> bytes:
            await trio.lowlevel.checkpoint()
            return parts.pop(0) if parts else b""

        return await new_list(frame, name, receive, _chosen(form))

    async def _from_body() -> ListResponse:
        name = request.args.get("name") or pasted(frame)
        return await new_list(frame, name, this_request().next_part, _chosen(request.args))


def _chosen(given: Mapping[str, str]) -> dict[str, Sequence[str]]:
    """What a person has chosen beside the file, for `new_list`."""
    typed = {name: [given[name]] for name in CHOICES if given.get(name)}
    return {**typed, "recheck": [str(int(given.get("recheck") == "1"))]}


def pasted(frame: Frame) -> str:
    """The name of a list that was typed or pasted."""
    now = frame.service.now()
    return f"Pasted, {now.day} {now:%b}"


async def shown_lists(
    frame: Frame, lists: Sequence[ListResponse]
) -> list[tuple[ListResponse, ShownState, list[AnswerCount]]]:
    """Each list with its state and its answers; of the newest that have MARKS_MAX addresses together."""
    shown, left = [], MARKS_MAX
    for each in lists:
        left -= each.addresses
        counted: list[AnswerCount] = []
        if each.answered and left >= 0:
            with suppress(ListNotFound):  # deleted meanwhile
                summary = await frame.result_of(ListSummary, "get_list_summary", id=each.list_id)
                counted = answers_of(summary.lights)
        shown.append((each, state_of(each), counted))
    return shown


async def new_list(
    frame: Frame,
    name: str,
    receive: Callable[[], Awaitable[bytes]],
    chosen: Mapping[str, Sequence[str]],
    media_type: str = "application/octet-stream",
) -> ListResponse:
    """Store a list that waits to be started, and return it as the API does. Raises Refusal.

    `chosen` are parameters of the API. What is not clear of the file is guessed, as it is seen and
    changed before anything is asked.
    """
    query = {"name": [name[:NAME_CHARACTERS_MAX]], "start": ["0"], "guess": ["1"], **chosen}
    sent = {"content-type": media_type}
    return await frame.result_of(
        ListResponse, "create_list", query=query, sent=sent, receive=receive
    )


async def list_values(frame: Frame, found: ListResponse, stored: StoredList) -> dict[str, object]:
    """What the page of a list shows: a preview of a new one, else its progress and its table."""
    mail = {"mail_to": caller().account.email if frame.sends_mail else "", "mails": stored.mails}
    if not is_unstarted(found):
        marks = await read_marks(frame.service.store, stored)
        table = await table_values(frame, stored, table_query(request.args), marks)
        progress = progress_values(stored, found, marks.counts, frame.service.now())
        return {"is_new": False, **mail, **progress, **table}
    columns = await frame.service.store.list_columns(found.list_id)
    chunks = await frame.service.store.chunks(found.list_id, first=0, limit=CHUNKS_PREVIEWED)
    preview = await trio.to_thread.run_sync(preview_of, stored, columns, chunks)
    return {
        "is_new": True, **mail, "preview": preview, "rechecks": stored.rechecks,
        "delimiters": DELIMITERS,
        **await cost_values(frame, found),
    }  # fmt: skip


async def cost_values(frame: Frame, found: ListResponse) -> dict[str, object]:
    """What the list costs at most, beyond what the plan includes."""
    plan = frame.service.plans[caller().account.tier]
    usage = await frame.month()
    used, more = usage.calls_used, found.addresses
    cost = plan.overage_micros(used + more) - plan.overage_micros(used)
    minutes = more / max(1, plan.rate_limit_per_min * 0.9)
    return {
        "plan": plan,
        "cost_eur": eur_up(cost),
        "left": usage.calls_remaining,
        "takes": rough_duration(60 * minutes),
    }


def _register_list(pages: Blueprint, frame: Frame) -> None:
    @pages.get(f"{LISTS_PAGE}/<id>")
    @frame.signed_in
    async def show_list(id: str) -> Response:
        found, stored = await list_and_stored(frame, id)
        values = await list_values(frame, found, stored)
        return await frame.page("list.html", found.name, list=found, **values)

    @pages.post(f"{LISTS_PAGE}/<id>/column")
    @frame.signed_in
    async def choose_column(id: str) -> Response:
        """Read the rows again: other columns, another encoding, another separator."""
        found, stored = await list_and_stored(frame, id)
        if not is_unstarted(found):
            raise InvalidRequest("The columns of a list that was started stay.", "lists")
        form = await form_fields()
        columns = [value for name, value in form.items() if name.startswith(TICKED)]
        try:
            made = await _read_again(frame, found.name, stored, columns, form)
        except UnicodeError:
            return await not_read(found, stored, NOT_DECODED)
        except InvalidRequest as refused:
            return await not_read(found, stored, refused.why)
        await frame.perform("delete_list", id=id)
        return away(f"{LISTS_PAGE}/{made.list_id}")

    async def not_read(found: ListResponse, stored: StoredList, why: str) -> Response:
        return await frame.page(
            "list.html", found.name, 400, list=found, not_read=why,
            **await list_values(frame, found, stored),
        )  # fmt: skip

    @pages.post(f"{LISTS_PAGE}/<id>/<any(pause, resume, cancel):word>")
    @frame.signed_in
    async def change_list(id: str, word: str) -> Response:
        if word == "resume" and "mail" in await form_fields():  # a tick, as it is started
            found, _ = await list_and_stored(frame, id)
            await frame.service.store.set_list_mail(found.list_id, True)
        await frame.perform(f"{word}_list", id=id)
        return away(f"{LISTS_PAGE}/{id}")

    @pages.post(f"{LISTS_PAGE}/<id>/mail")
    @frame.signed_in
    async def mail_list(id: str) -> Response:
        """Let the account get a mail when the list is done, or none."""
        found, _ = await list_and_stored(frame, id)
        await frame.service.store.set_list_mail(
            found.list_id, (await form_fields()).get("mail") == "1"
        )
        return away(f"{LISTS_PAGE}/{found.list_id}")

    @pages.post(f"{LISTS_PAGE}/<id>/delete")
    @frame.signed_in
    async def delete_list(id: str) -> Response:
        await frame.perform("delete_list", id=id)
        return away(LISTS_PAGE)


async def _read_again(
    frame: Frame, name: str, stored: StoredList, columns: Sequence[str], form: Mapping[str, str]
) -> ListResponse:
    """Make a list of the stored rows. Raises InvalidRequest, and UnicodeError: see text_of_rows.

    Another separator makes other columns: those that were ticked are none any more.
    """
    store, reading = frame.service.store, decode_reading(stored.reading) or ListReading()
    delimiter, encoding = form.get("delimiter", reading.delimiter), form.get("encoding", "")
    if encoding in ("", SAME_AS.get(reading.encoding)):
        encoding = reading.encoding
    if delimiter != reading.delimiter or is_of_lines(reading):
        columns = []
    rows, media_type = csv_of_rows(store, stored), "text/csv"
    if reading.encoding:
        said = delimiter if delimiter in DELIMITERS else ""
        is_recoded = encoding != reading.encoding
        rows = text_of_rows(store, stored, reading, said, is_recoded=is_recoded)
        media_type = "application/octet-stream"
    async with aclosing(rows) as parts:

        async def receive() -> bytes:
            return await anext(parts, b"")

        chosen = {
            "column": columns,
            "recheck": [str(int(stored.rechecks > 0))],
            "strict_clocks": [str(int(stored.strict_clocks))],
            "smtp": [str(int(stored.asks_hosts))],
            "patience_s": [str(stored.patience_s)],
            "encoding": [encoding] if reading.encoding else [],
        }
        return await new_list(frame, name, receive, chosen, media_type)


def _register_parts(pages: Blueprint, frame: Frame) -> None:
    @pages.get(f"{LISTS_PAGE}/<id>/domains")
    @frame.signed_in
    async def domains(id: str) -> Response:
        """The worst domains; the page of a running list fetches them again and again."""
        found = await frame.result_of(ListResponse, "get_list", id=id)
        worst = await worst_domains(frame.service.store, found.list_id)
        template = "domains.html" if is_part() else "domains_page.html"
        return await frame.page(template, "Worst domains", list=found, domains=worst)
