"""The report of a list for people without an account, by a link that ends.

It has counts and shares alone: no address, no row, no mail host, no name of the account. What opens a
link is shown once; the store keeps its hash.
"""

import secrets

from quart import Blueprint, Response, request
from werkzeug.exceptions import NotFound

from mailprobe.storage.list_jobs.shared_reports import TooManyReports
from mailprobe.storage.list_records import NO_WAITS

from ....http.received_request import admission_of
from ....keys import key_hash
from ....lists.table import read_marks
from ....operations.list_jobs import ListResponse, response_of, summary_of
from ..frame import HOME, LISTS_PAGE, Frame, away, form_fields
from .list_states import (
    answers_of,
    is_unstarted,
    reasons_of,
    state_of,
)
from .list_table import list_and_stored

SHARED = f"{HOME}/shared"
DAYS = (1, 7, 30)  # of a link, to choose from
DAY_S = 24 * 3600
TOKEN_OCTETS = 24  # nobody guesses one
TOKEN_CHARACTERS_MAX = 100
TOO_MANY = "The list has as many links as it may have. End one, or wait until one ends."
# Beside those of every page: search engines keep nothing, and no site learns the link.
PRIVATE = {"X-Robots-Tag": "noindex, nofollow", "Referrer-Policy": "no-referrer"}


def register(pages: Blueprint, frame: Frame) -> None:
    """Add the routes."""
    _register_links(pages, frame)
    _register_report(pages, frame)


def _register_links(pages: Blueprint, frame: Frame) -> None:
    store = frame.service.store

    @pages.get(f"{LISTS_PAGE}/<id>/share")
    @frame.signed_in
    async def links(id: str) -> Response:
        return await shown(await started(id))

    @pages.post(f"{LISTS_PAGE}/<id>/share")
    @frame.signed_in
    async def share(id: str) -> Response:
        """Make a link, and show it this once."""
        found = await started(id)
        days = (await form_fields()).get("days", "")
        if days not in map(str, DAYS):
            raise NotFound
        token = secrets.token_urlsafe(TOKEN_OCTETS)
        try:
            await store.share_report(found.list_id, key_hash(token), for_s=int(days) * DAY_S)
        except KeyError:  # deleted meanwhile
            raise NotFound from None
        except TooManyReports:
            return await shown(found, 400, error=TOO_MANY)
        return await shown(found, link=f"{frame.service.links.base_url}{SHARED}?token={token}")

    @pages.post(f"{LISTS_PAGE}/<id>/share/<int:number>/end")
    @frame.signed_in
    async def end_link(id: str, number: str) -> Response:
        found = await started(id)
        if not await store.end_report(found.list_id, int(number)):
            raise NotFound
        return away(f"{LISTS_PAGE}/{found.list_id}/share")

    async def started(id: str) -> ListResponse:
        found, _ = await list_and_stored(frame, id)
        if is_unstarted(found):
            raise NotFound
        return found

    async def shown(found: ListResponse, status: int = 200, **more: object) -> Response:
        return await frame.page(
            "list_share.html", "Share the report", status, list=found, days=DAYS,
            reports=await store.shared_reports(found.list_id), **more,
        )  # fmt: skip


def _register_report(pages: Blueprint, frame: Frame) -> None:
    store = frame.service.store

    @pages.get(SHARED)
    async def report() -> Response:
        admission_of(request.scope).admitted()
        token = request.args.get("token", "")[:TOKEN_CHARACTERS_MAX]
        shared = await store.list_of_report(key_hash(token))
        stored = None if shared is None else await store.stored_list(shared[0])
        if shared is None or stored is None:
            return private(
                await frame.error(
                    404, "This link no longer works.", "Ask the person who sent it for another one."
                )
            )
        found = response_of(stored, NO_WAITS, frame.service.now(), 0)
        counts = (await read_marks(store, stored)).counts
        return private(
            await frame.page(
                "list_report.html", found.name, list=found, state=state_of(found), until=shared[1],
                counted=answers_of(summary_of(stored, counts).lights), reasons=reasons_of(counts), answered=counts.total(),
            )
        )  # fmt: skip


def private(response: Response) -> Response:
    response.headers.update(PRIVATE)
    return response
