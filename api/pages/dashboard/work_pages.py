"""The pages of work: one address, jobs, and the lists."""

from contextlib import aclosing
from functools import partial
from itertools import islice
from typing import Any

import trio
from quart import Blueprint, Response, request
from quart.wrappers.response import IterableBody

from mailprobe.api.lists.limits import NAME_CHARACTERS_MAX
from mailprobe.api.pages.dashboard.frame import (
    HEADERS,
    HOME,
    LISTS_PAGE,
    Frame,
    at_most_once,
    away,
    caller,
    form_fields,
    form_file,
    has_file,
)
from mailprobe.api.pages.dashboard.list_rows import csv_of_rows, worst_domains
from mailprobe.api.quota.pricing import eur_up, overage_micros
from mailprobe.api.refusals import InvalidRequest, JobNotFound, Refusal
from mailprobe.api.rest.messages import StreamedParts
from mailprobe.api.results.chunk_lines import results_of, rows_of
from mailprobe.api.results.lights import WORDS
from mailprobe.api.schema import (
    JobResponse,
    ListResponse,
    ListsResponse,
    ManagementUsageSummaryResponse,
    VerifyEmailResult,
    VerifyRequest,
)
from mailprobe.engine.evidence import Evidence
from mailprobe.engine.lights import light_of
from mailprobe.storage.list_records import LAST_PLACE

JOBS_SHOWN = 100
PREVIEW_ROWS = 10
COLUMNS_SHOWN = 20  # a list may have a thousand
CELL_CHARACTERS_SHOWN = 200
LAYERS = ("syntax", "disposable", "no_mx", "mailbox")

ACTIONS: dict[str, str] = {
    "green": "Keep it: mail will most likely arrive.",
    "yellow": "Ask the person to confirm it, or try again later.",
    "red": "Do not send mail there.",
}


def register(pages: Blueprint, frame: Frame) -> None:
    """Add the routes."""
    _register_try(pages, frame)
    _register_jobs(pages, frame)
    _register_lists(pages, frame)
    _register_list(pages, frame)


def _register_try(pages: Blueprint, frame: Frame) -> None:
    @pages.get(f"{HOME}/try")
    @frame.signed_in
    async def try_page() -> Response:
        return await frame.page("try.html", "Try one address", email="", result=None)

    @pages.post(f"{HOME}/try")
    @partial(frame.signed_in, spends_units=True)
    async def try_address() -> Response:
        form = await form_fields()
        email = form.get("email", "")
        body = VerifyRequest(email=email)
        try:
            result = await frame.result_of(
                VerifyEmailResult, "verify_email", body,
                query={"evidence": ["1"]}, sent=at_most_once(form, body),
            )  # fmt: skip
        except Refusal as refusal:
            return await frame.refused(refusal)
        light = light_of(result).removesuffix("_LIGHT").lower()
        evidence = result.evidence
        assert isinstance(evidence, Evidence)
        return await frame.page(
            "try.html", "Try one address", email=email, result=result, light=light,
            evidence=evidence, action=ACTIONS[light],
            reason=WORDS.get(evidence.reason or "", ""), layers=_layers_of(result),
        )  # fmt: skip


def _layers_of(result: VerifyEmailResult) -> list[tuple[str, str, str]]:
    """The five layers: name, state (passed, failed, not asked), and what was found."""
    failed = result.failed_check
    reached = LAYERS.index(failed) if failed in LAYERS else len(LAYERS) - 1
    found = (
        "The address is well formed." if failed != "syntax" else "This is no address.",
        "The domain is on the list of throwaways." if result.disposable else "No throwaway.",
        f"Its mail goes to {result.mx_host}." if result.mx_host else "No mail host.",
        f"{result.status}, confidence {result.confidence:.2f}",
    )
    names = ("Syntax", "Throwaway list", "Mail host (MX)", "Mailbox")
    layers = []
    for place, (name, text) in enumerate(zip(names, found, strict=True)):
        if place > reached:
            layers.append((name, "skipped", "Not asked."))
        else:
            is_bad = place == reached and failed is not None
            layers.append((name, "failed" if is_bad else "passed", text))
    signals = [
        word
        for word, is_so in (
            ("a role address", result.role),
            ("a free provider", result.free_provider),
            (f"perhaps a typo of {result.suggestion}", result.suggestion),
            ("the host accepts any name", result.catch_all),
        )
        if is_so
    ]
    layers.append(("Signals", "passed", ", ".join(signals).capitalize() or "Nothing special."))
    return layers


def _register_jobs(pages: Blueprint, frame: Frame) -> None:
    @pages.get(f"{HOME}/jobs")
    @frame.signed_in
    async def show_jobs() -> Response:
        found = await frame.service.store.jobs(account_id=caller().account.id, limit=JOBS_SHOWN)
        return await frame.page("jobs.html", "Jobs", jobs=found)

    @pages.get(f"{HOME}/jobs/<id>")
    @frame.signed_in
    async def show_job(id: str) -> Response:
        job = await frame.result_of(JobResponse, "get_job", id=id)
        return await frame.page("job.html", "Job", job=job)

    @pages.post(f"{HOME}/jobs/<id>/resend")
    @frame.signed_in
    async def resend(id: str) -> Response:
        await frame.perform("get_job", id=id)  # of another account: not found
        if await frame.service.store.resend_job(id.lower()) is None:
            raise JobNotFound
        if frame.service.jobs is not None:
            frame.service.jobs.wake()
        return away(f"{HOME}/jobs/{id}")


def _register_lists(pages: Blueprint, frame: Frame) -> None:
    @pages.get(LISTS_PAGE)
    @frame.signed_in
    async def show_lists() -> Response:
        found = (await frame.result_of(ListsResponse, "list_lists")).lists
        return await frame.page("lists.html", "Lists", lists=found)

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
        parts = [] if file is None else [file.octets]
        name = "list" if file is None else file.file_name or "list"

        async def receive() -> bytes:
            await trio.lowlevel.checkpoint()
            return parts.pop(0) if parts else b""

        rechecks = form.get("recheck") == "1"
        return await new_list(frame, name, form.get("column", ""), receive, rechecks=rechecks)

    async def _from_body() -> ListResponse:
        incoming: Any = request._get_current_object()  # type: ignore[attr-defined]  # of a LocalProxy
        name, column = request.args.get("name", "list"), request.args.get("column", "")
        rechecks = request.args.get("recheck") == "1"
        return await new_list(frame, name, column, incoming.next_part, rechecks=rechecks)


async def new_list(
    frame: Frame,
    name: str,
    column: str,
    receive: Any,
    media_type: str = "application/octet-stream",
    *,
    rechecks: bool = True,
    strict_clocks: bool = False,
    asks_hosts: bool = True,
) -> ListResponse:
    """Store a list that waits to be started, and return it as the API does. Raises Refusal."""
    query = {"name": [name[:NAME_CHARACTERS_MAX]], "start": ["0"], "recheck": [str(int(rechecks))]}
    if strict_clocks:
        query["strict_clocks"] = ["1"]
    if not asks_hosts:
        query["smtp"] = ["0"]
    if column:
        query["column"] = [column]
    sent = {"content-type": media_type}
    return await frame.result_of(
        ListResponse, "create_list", query=query, sent=sent, receive=receive
    )


def is_waiting(found: ListResponse) -> bool:
    """Whether a list was sent and never started."""
    return found.status == "paused" and not found.answered and not found.cause


def _register_list(pages: Blueprint, frame: Frame) -> None:
    @pages.get(f"{LISTS_PAGE}/<id>")
    @frame.signed_in
    async def show_list(id: str) -> Response:
        found = await frame.result_of(ListResponse, "get_list", id=id)
        return await frame.page("list.html", found.name, list=found, **await _more(found))

    async def _more(found: ListResponse) -> dict[str, Any]:
        is_new = is_waiting(found)
        columns = await frame.service.store.list_columns(found.list_id)
        chunks = await frame.service.store.chunks(found.list_id, first=0, limit=1)
        rows: list[tuple[list[str], str]] = []
        for chunk in chunks:
            if chunk.place != LAST_PLACE:
                known = results_of(chunk)
                for row in islice(rows_of(chunk), PREVIEW_ROWS):
                    result = known.get(row.number) if row.number is not None else None
                    cells = [cell[:CELL_CHARACTERS_SHOWN] for cell in row.cells[:COLUMNS_SHOWN]]
                    rows.append((cells, result.status if result else row.address or ""))
        worst = [] if is_new else await worst_domains(frame.service.store, found.list_id)
        return {
            "is_new": is_new, "columns": columns[:COLUMNS_SHOWN], "rows": rows, "domains": worst,
            "columns_left": max(0, len(columns) - COLUMNS_SHOWN),
            **await _cost(found),
        }  # fmt: skip

    @pages.post(f"{LISTS_PAGE}/<id>/column")
    @frame.signed_in
    async def choose_column(id: str) -> Response:
        """Read the rows again, with the addresses from another column."""
        found = await frame.result_of(ListResponse, "get_list", id=id)
        if not is_waiting(found):
            raise InvalidRequest("The column of a list that was started stays.", "lists")
        stored = await frame.service.store.stored_list(found.list_id)
        assert stored is not None
        parts = csv_of_rows(frame.service.store, stored)

        async def receive() -> bytes:
            return await anext(parts, b"")

        column = (await form_fields()).get("column", "")
        async with aclosing(parts):
            made = await new_list(
                frame,
                found.name,
                column,
                receive,
                "text/csv",
                rechecks=stored.rechecks > 0,
                strict_clocks=stored.strict_clocks,
                asks_hosts=stored.asks_hosts,
            )
        await frame.perform("delete_list", id=id)
        return away(f"{LISTS_PAGE}/{made.list_id}")

    @pages.get(f"{LISTS_PAGE}/<id>/domains")
    @frame.signed_in
    async def domains(id: str) -> Response:
        """The worst domains; the page of a running list fetches them again and again."""
        found = await frame.result_of(ListResponse, "get_list", id=id)
        worst = await worst_domains(frame.service.store, found.list_id)
        return await frame.page("domains.html", "Worst domains", list=found, domains=worst)

    async def _cost(found: ListResponse) -> dict[str, Any]:
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
            "minutes": max(1, round(minutes)),
        }

    @pages.post(f"{LISTS_PAGE}/<id>/<any(pause, resume, cancel):word>")
    @frame.signed_in
    async def change_list(id: str, word: str) -> Response:
        await frame.perform(f"{word}_list", id=id)
        return away(f"{LISTS_PAGE}/{id}")

    @pages.post(f"{LISTS_PAGE}/<id>/delete")
    @frame.signed_in
    async def delete_list(id: str) -> Response:
        await frame.perform("delete_list", id=id)
        return away(LISTS_PAGE)

    @pages.get(f"{LISTS_PAGE}/<id>/results")
    @frame.signed_in
    async def results(id: str) -> Response:
        query = {name: [request.args[name]] for name in ("format", "only") if name in request.args}
        reply = await frame.perform("get_list_results", query=query, id=id)
        assert isinstance(reply.body, StreamedParts)
        response = Response(IterableBody(reply.body.parts), 200)
        response.headers.update({**HEADERS, **reply.headers, "Content-Type": reply.media_type})
        response.timeout = None
        return response
