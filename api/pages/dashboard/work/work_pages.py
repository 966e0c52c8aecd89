"""The pages of the lists."""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing, suppress

import trio
from quart import Blueprint, Response, request

from mailprobe.storage.list_records import StoredList

from ....lists.table import read_marks
from ....operations.list_jobs import ListResponse, ListsResponse, ListSummary
from ....operations.usage import ManagementUsageSummaryResponse
from ....quota.list_limits import NAME_CHARACTERS_MAX
from ....quota.pricing import eur_up, overage_micros
from ....refusals import InvalidRequest, ListNotFound
from ....rest.app import this_request
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
from .list_preview import preview_of
from .list_rows import csv_of_rows, worst_domains
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
            patience=rough_duration(patience_s), plan=frame.service.plan(caller()),
        )  # fmt: skip

    @pages.post(LISTS_PAGE)
    @frame.signed_in
    async def upload() -> Response:
        """The file as the body (with script), or in a form (without: small files)."""
        made = await (_from_form() if has_file() else _from_body())
        list_id = made.list_id
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

        rechecks, patience = form.get("recheck") == "1", form.get("patience_s", "")
        columns = [form.get("column", "")]
        return await new_list(frame, name, columns, receive, rechecks=rechecks, patience_s=patience)

    async def _from_body() -> ListResponse:
        name = request.args.get("name") or pasted(frame)
        columns = [request.args.get("column", "")]
        rechecks, patience = request.args.get("recheck") == "1", request.args.get("patience_s", "")
        return await new_list(
            frame, name, columns, this_request().next_part, rechecks=rechecks, patience_s=patience
        )


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
    columns: Sequence[str],
    receive: Callable[[], Awaitable[bytes]],
    media_type: str = "application/octet-stream",
    *,
    rechecks: bool,
    strict_clocks: bool = False,
    asks_hosts: bool = True,
    patience_s: str = "",
) -> ListResponse:
    """Store a list that waits to be started, and return it as the API does. Raises Refusal."""
    query = {"name": [name[:NAME_CHARACTERS_MAX]], "start": ["0"], "recheck": [str(int(rechecks))]}
    if strict_clocks:
        query["strict_clocks"] = ["1"]
    if not asks_hosts:
        query["smtp"] = ["0"]
    query["column"] = [column for column in columns if column]
    if patience_s:
        query["patience_s"] = [patience_s]
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
        **await cost_values(frame, found),
    }  # fmt: skip


async def cost_values(frame: Frame, found: ListResponse) -> dict[str, object]:
    """What the list costs at most, beyond what the plan includes."""
    plan = frame.service.plan(caller())
    usage = await frame.result_of(ManagementUsageSummaryResponse, "get_usage_summary")
    used, more = usage.calls_used, found.addresses
    cost = overage_micros(plan, used + more) - overage_micros(plan, used)
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
        """Read the rows again, with the addresses from another column."""
        found, stored = await list_and_stored(frame, id)
        if not is_unstarted(found):
            raise InvalidRequest("The column of a list that was started stays.", "lists")
        form = await form_fields()
        ticked = [value for name, value in form.items() if name.startswith(TICKED)]
        columns = ticked or [form.get("column", "")]
        try:
            made = await _read_again(frame, found.name, stored, columns)
        except InvalidRequest:
            return await frame.page(
                "list.html", found.name, 400, list=found, wrong_column=" ".join(columns),
                **await list_values(frame, found, stored),
            )  # fmt: skip
        await frame.perform("delete_list", id=id)
        return away(f"{LISTS_PAGE}/{made.list_id}")

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
    frame: Frame, name: str, stored: StoredList, columns: Sequence[str]
) -> ListResponse:
    """Make a list of the stored rows. Raises InvalidRequest if these are no columns of addresses."""
    async with aclosing(csv_of_rows(frame.service.store, stored)) as parts:

        async def receive() -> bytes:
            return await anext(parts, b"")

        return await new_list(
            frame,
            name,
            columns,
            receive,
            "text/csv",
            rechecks=stored.rechecks > 0,
            strict_clocks=stored.strict_clocks,
            asks_hosts=stored.asks_hosts,
            patience_s=str(stored.patience_s),
        )


def _register_parts(pages: Blueprint, frame: Frame) -> None:
    @pages.get(f"{LISTS_PAGE}/<id>/domains")
    @frame.signed_in
    async def domains(id: str) -> Response:
        """The worst domains; the page of a running list fetches them again and again."""
        found = await frame.result_of(ListResponse, "get_list", id=id)
        worst = await worst_domains(frame.service.store, found.list_id)
        template = "domains.html" if is_part() else "domains_page.html"
        return await frame.page(template, "Worst domains", list=found, domains=worst)
