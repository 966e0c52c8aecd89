"""The routes of the dashboard, as one Quart blueprint."""

from quart import Blueprint, Response
from werkzeug.exceptions import HTTPException, NotFound

from ...admission.connections import LiveConnections
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

REGISTERS = (
    sign_in_pages.register,
    people_page.register,
    keys_page.register,
    limits_page.register,
    audit_page.register,
    overview_page.register,
    documentation_key.register,
    start_page.register,
    try_page.register,
    work_pages.register,
    job_pages.register,
    list_table.register,
    list_report.register,
    operator_page.register,
    operator_accounts.register,
    operator_egresses.register,
    operator_checks.register,
)
KEPT = {**HEADERS, "Cache-Control": "public, max-age=31536000, immutable"}


def dashboard_blueprint(frame: Frame, connections: LiveConnections) -> Blueprint:
    """Make the routes."""
    pages = Blueprint("dashboard", __name__, template_folder="templates")
    for drawn in (icon, mark, bar, per_cent, postmark, clock, rough_duration):
        pages.add_app_template_global(drawn)
    for register in REGISTERS:
        register(pages, frame)
    list_events.register(pages, frame, connections)

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
            case HTTPException(code=int(code)):
                return await frame.error(code, "There is no such page.", "Go to the overview.")
        return await frame.failed(error)

    return pages
