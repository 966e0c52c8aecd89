"""The routes of the dashboard, as one Quart blueprint."""

from quart import Blueprint, Response, request
from werkzeug.exceptions import HTTPException, NotFound

from ...admission.connections import LiveConnections
from ...refusals import PayloadTooLarge
from ..icons import bar, icon, mark, per_cent, postmark
from . import (
    audit_page,
    documentation_key,
    keys_page,
    limits_page,
    overview_page,
    start_page,
    try_page,
)
from .assets import assets_by_url
from .frame import HEADERS, HOME, Frame, away
from .instants import clock
from .operator import accounts as operator_accounts
from .operator import checks as operator_checks
from .operator import egresses as operator_egresses
from .operator import page as operator_page
from .people import people_page, sign_in_pages
from .work import (
    job_pages,
    list_events,
    list_report,
    list_table,
    work_pages,
)
from .work.list_states import rough_duration

KEPT = {**HEADERS, "Cache-Control": "public, max-age=31536000, immutable"}


def dashboard_blueprint(frame: Frame, connections: LiveConnections) -> Blueprint:
    """Make the routes."""
    pages = Blueprint("dashboard", __name__, template_folder="templates")
    for drawn in (icon, mark, bar, per_cent, postmark, clock, rough_duration):
        pages.add_app_template_global(drawn)
    sign_in_pages.register(pages, frame)
    people_page.register(pages, frame)
    keys_page.register(pages, frame)
    limits_page.register(pages, frame)
    audit_page.register(pages, frame)
    overview_page.register(pages, frame)
    documentation_key.register(pages, frame)
    start_page.register(pages, frame)
    try_page.register(pages, frame)
    work_pages.register(pages, frame)
    job_pages.register(pages, frame)
    list_table.register(pages, frame)
    list_events.register(pages, frame, connections)
    list_report.register(pages, frame)
    operator_page.register(pages, frame)
    operator_accounts.register(pages, frame)
    operator_egresses.register(pages, frame)
    operator_checks.register(pages, frame)

    @pages.get(f"{HOME}/static/<name>")
    async def static_file(name: str) -> Response:
        asset = assets_by_url().get(f"{HOME}/static/{name}")
        if asset is None:
            raise NotFound
        return Response(asset.octets, headers=KEPT, content_type=asset.media_type)

    @pages.get(f"{HOME}/")
    async def home() -> Response:
        return away(HOME)

    @pages.get(f"{HOME}/<path:rest>")
    async def nothing(rest: str) -> Response:
        await frame.recognize()
        raise NotFound

    @pages.errorhandler(Exception)
    async def failed(error: Exception) -> Response:
        match error:
            case HTTPException(code=413):
                return await frame.refused(PayloadTooLarge(request.max_content_length or 0))
            case HTTPException(code=int(code)):
                return await frame.error(code, "There is no such page.", "Go to the overview.")
        return await frame.failed(error)

    return pages
