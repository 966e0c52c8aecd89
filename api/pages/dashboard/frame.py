"""The frame of every page of the dashboard: the sign-in, the headers, forms and errors.

A browser may load nothing from elsewhere and run no script but ours (Content-Security-Policy).
An operation of the API does the work of each page, by the API's own dispatcher; what it
refuses is shown in its words.
"""

import logging
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial, wraps
from hashlib import sha256
from html import unescape
from secrets import token_hex
from typing import Any, TypeVar
from urllib.parse import parse_qsl, quote

import msgspec
import trio
from msgspec.structs import replace
from quart import Response, current_app, g, render_template, request
from werkzeug.exceptions import NotFound

from mailprobe.storage.contract import StoreUnavailable
from mailprobe.storage.people.people import Person, Role
from mailprobe.storage.records import Actor, Caller

from ...error_table import row_of
from ...http.received_request import admission_of, headers_of_scope, request_id_of
from ...observability.request_context import present
from ...operations.operation import Call, OperationReply
from ...operations.table import OPERATIONS
from ...operations.usage import ManagementUsageSummaryResponse
from ...refusals import InvalidRequest, OurFault, Refusal, SlowBody
from ...rest.app import this_request
from ...rest.dispatch import perform, refusal_of_store
from ...results.advice import ANSWERS_BY_COLOUR
from ...schema import BODY_OCTETS_MAX, BODY_S_MAX
from ...service import Service
from .assets import assets
from .instants import when
from .multipart import MEDIA_TYPE, NoToken, Part, read_parts
from .refusal_words import words_of
from .roles import ACCOUNTS, LEAST, OPERATOR, Operators, may
from .sign_ins import (
    BROWSER_COOKIE,
    BROWSER_S,
    INVITATIONS_S,
    SIGN_IN_S,
    SignIn,
    SignInLimit,
    SignIns,
    cookie_name,
    is_same_site,
)

log = logging.getLogger("mailprobe.dashboard")

HOME = "/dashboard"
FORM_OCTETS_MAX = 16 * 1024
FIELDS_MAX = 30  # twenty ticks of columns, and a few
NOTHING_TYPED: Mapping[str, str] = {}  # in the fields of a form
SIGN_IN = f"{HOME}/sign-in"
ENDED = f"{SIGN_IN}?ended=1"  # after something that only a page of a sign-in sends
LISTS_PAGE = f"{HOME}/lists"  # the only page whose form may have a file
LIMITS_PAGE = f"{HOME}/caps"
CSRF_FIELD, CSRF_HEADER = "csrf", "X-CSRF-Token"
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "font-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'",
    "Referrer-Policy": "same-origin",  # with none, forms have the Origin "null"
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
}
Section = tuple[str, str, str]  # its name, its address and its icon
GROUPS: tuple[tuple[str, tuple[Section, ...]], ...] = (
    (
        "",
        (
            ("Overview", HOME, "layout-dashboard"),
            ("Lists", LISTS_PAGE, "list-checks"),
            ("Try an address", f"{HOME}/try", "at-sign"),
        ),
    ),
    (
        "Account",
        (
            ("API keys", f"{HOME}/keys", "key-round"),
            ("Jobs", f"{HOME}/jobs", "refresh-cw"),
            ("Limits", LIMITS_PAGE, "gauge"),
            ("People", f"{HOME}/people", "users"),
            ("Activity", f"{HOME}/audit", "history"),
        ),
    ),
)
RUN: tuple[str, tuple[Section, ...]] = (  # for operators
    "Run",
    (
        ("Service", OPERATOR, "activity"),
        ("Accounts", ACCOUNTS, "building-2"),
    ),
)
HELP: tuple[str, tuple[Section, ...]] = ("Help", (("Documentation", "/docs", "book-open"),))
# At the bottom of a narrow screen, with shorter names; the rest is below the fifth, More.
TABS: Mapping[str, str] = {
    "Overview": "Overview", "Lists": "Lists", "Try an address": "Try", "API keys": "Keys",
}  # fmt: skip

View = Callable[..., Awaitable[Response]]
S = TypeVar("S", bound=msgspec.Struct)
POST_FORM = re.compile(r'<form method="post" action="(?P<action>[^"?]+)[^"]*".*?</form>', re.DOTALL)
_BY_NAME = {operation.name: operation for operation in OPERATIONS}


class Frame(msgspec.Struct, frozen=True):
    """The parts of the dashboard that its pages use."""

    service: Service
    sign_ins: SignIns
    operators: Operators
    sign_in_limit: SignInLimit = msgspec.field(default_factory=SignInLimit)
    invitation_limit: SignInLimit = msgspec.field(
        default_factory=partial(SignInLimit, INVITATIONS_S)
    )

    @property
    def is_https(self) -> bool:
        return self.service.links.base_url.startswith("https://")

    @property
    def sends_mail(self) -> bool:
        return self.service.alerts is not None and self.service.alerts.has_relay

    @property
    def cookie(self) -> str:
        """The name of the sign-in's cookie."""
        return cookie_name(self.service.links.base_url)

    def host_cookie(self, name: str) -> str:
        """The name of a cookie that no other host can set, where the service has https."""
        return cookie_name(self.service.links.base_url, name)

    # sign-ins

    def signed_in(self, view: View, *, spends_units: bool = False) -> View:
        """A view for a signed-in browser; others are sent to sign in. A form needs its token.

        One that spends units leaves the admission queue when they are reserved, not before.
        """

        @wraps(view)
        async def guarded(**path: str) -> Response:
            admission = admission_of(request.scope)
            if not spends_units:
                admission.admitted()
            sign_in = await self.sign_ins.sign_in_of(request.cookies.get(self.cookie))
            if sign_in is None:
                if is_part():  # leave the whole page
                    return Response(b"", 204, headers={**HEADERS, "HX-Redirect": ENDED})
                wanted = quote(request.path, safe="/")  # a path may have line breaks
                return away(f"{SIGN_IN}?next={wanted}" if request.method == "GET" else ENDED)
            await self._note(sign_in)
            admission.identified(sign_in.caller.account.id)
            if not may(sign_in.role, route := route_of_request()):
                return await self.error(
                    403,
                    f"A {sign_in.role} may not do this.",
                    f"It takes the role {LEAST[route]}, which an owner of the account can give.",
                )
            if request.method == "POST" and not await self._has_token(sign_in):
                return await self.error(
                    403, "This form is too old.", "Go back, reload the page, and send it again."
                )
            return await view(**path)

        return guarded

    async def recognize(self) -> None:
        """Let the page of an error have the frame of a sign-in, if there is one."""
        admission_of(request.scope).admitted()
        sign_in = await self.sign_ins.sign_in_of(request.cookies.get(self.cookie))
        if sign_in is not None:
            await self._note(sign_in)

    async def _note(self, sign_in: SignIn) -> None:
        """Keep who asks for the rest of the request."""
        g.sign_in = sign_in
        g.is_operator = sign_in.role == "owner" and await self.operators.includes(
            sign_in.caller.account
        )

    def for_operators(self, view: View) -> View:
        """A view for the operator of the service; for other accounts there is no such page."""

        @wraps(view)
        async def guarded(**path: str) -> Response:
            if not is_operator():
                raise NotFound
            return await view(**path)

        return self.signed_in(guarded)

    async def _has_token(self, sign_in: SignIn) -> bool:
        if not self.is_same_site():
            return False
        token = request.headers.get(CSRF_HEADER)
        if token is None:
            try:
                token = (await form_fields()).get(CSRF_FIELD, "")
            except NoToken:
                return False
        return sign_in.has_token(token.encode())

    def is_same_site(self) -> bool:
        """Whether the request comes from a page of this service."""
        origin, host = request.headers.get("Origin"), request.headers.get("Host")
        return is_same_site(origin, host, self.service.links.base_url)

    def visitor(self) -> str:
        """The address of the request's browser, behind trusted proxies too; empty on a Unix socket."""
        forwarded_for = headers_of_scope(request.scope).get("x-forwarded-for", "")
        return self.service.visitor((request.scope["client"] or [""])[0], forwarded_for)

    def actor(self, by: Caller | None = None) -> Actor:
        """The browser for the audit log: its person, else `by`, the provisioning key that it has."""
        key_id, prefix = (None, None) if by is None else (by.key.id, by.key.prefix)
        address = self.visitor() or None
        sign_in: SignIn | None = g.get("sign_in")
        if sign_in is not None and sign_in.person is not None:
            return Actor("session", address=address, person=sign_in.person.email)
        return Actor("session", key_id, prefix, address)

    def operator(self) -> Actor:
        """The operator, who acts on any account."""
        return replace(self.actor(caller()), operator_id=caller().account.id)

    async def begin(self, caller: Caller, response: Response) -> Response:
        """Begin a sign-in by a provisioning key."""
        by = self.actor(caller)
        return self._with_cookies(
            response, caller, await self.sign_ins.begin(caller, browser(), by)
        )

    async def begin_of(self, person: Person, response: Response) -> Response | None:
        """Begin a sign-in of a person; None if the person is gone."""
        by = Actor("session", address=self.visitor() or None, person=person.email)
        begun = await self.sign_ins.begin_of(person, browser(), by)
        return None if begun is None else self._with_cookies(response, *begun)

    def _with_cookies(self, response: Response, caller: Caller, cookie: str) -> Response:
        """Remember the browser beyond its sign-in, too."""
        cookies = [
            (self.cookie, cookie, SIGN_IN_S, "/"),
            (BROWSER_COOKIE, self.sign_ins.browser_cookie_of(caller), BROWSER_S, SIGN_IN),
        ]
        for name, value, max_age, path in cookies:
            self.set_cookie(response, name, value, max_age, path)
        return response

    def set_cookie(
        self, response: Response, name: str, value: str, max_age: int, path: str
    ) -> None:
        """Set a cookie that scripts and other sites' forms do not have."""
        response.set_cookie(
            name, value, max_age=max_age, path=path,
            httponly=True, samesite="Lax", secure=self.is_https,
        )  # fmt: skip

    # answers

    async def page(
        self, template: str, title: str, status: int = 200, /, **values: object
    ) -> Response:
        """A whole page."""
        sign_in: SignIn | None = g.get("sign_in")
        sections = sections_of(sign_in)
        html = await render_template(
            f"dashboard/{template}",
            title=title, session=sign_in, sections=sections, tabs=TABS, here=here(sections),
            assets=assets(), path=request.path, answers=ANSWERS_BY_COLOUR, instant=self.service.now(),
            links=self.service.links, once=token_hex(), when=partial(when, self.service.now()),
            may=lambda form: sign_in is not None and may(sign_in.role, f"POST {form}"),
            plan_use=await self._plan_use(status), **values,
        )  # fmt: skip
        if sign_in is not None and sign_in.role != "owner":
            html = POST_FORM.sub(partial(_sendable, sign_in.role), html)
        return Response(html, status, headers=HEADERS, content_type="text/html; charset=utf-8")

    async def _plan_use(self, status: int) -> ManagementUsageSummaryResponse | None:
        """What the sidebar shows of the plan; None for a part of a page, and an account without limits.

        A page that says what is wrong reads nothing: what failed would fail again.
        """
        sign_in: SignIn | None = g.get("sign_in")
        if sign_in is None or is_part() or sign_in.caller.account.tier == "own":
            return None
        return await self.month() if status < 400 else g.get("use_of_month")

    async def month(self) -> ManagementUsageSummaryResponse:
        """The account's use of this month, read once in a request."""
        if "use_of_month" not in g:
            g.use_of_month = await self.result_of(
                ManagementUsageSummaryResponse, "get_usage_summary"
            )
        found: ManagementUsageSummaryResponse = g.use_of_month
        return found

    async def error(self, status: int, message: str, action: str) -> Response:
        """A page that says what is wrong, and what to do."""
        return await self.page(
            "error.html", "Error", status, status=status, message=message, action=action
        )

    async def refused(self, refusal: Refusal) -> Response:
        row = row_of(refusal)
        if (request_context := present()) is not None:
            request_context.code = row.code
        return await self.error(row.status, *words_of(refusal, self.service.links))

    async def failed(self, error: Exception) -> Response:
        """The page for what a view raised."""
        match error:
            case Refusal():
                return await self.refused(error)
            case StoreUnavailable():
                return await self.refused(refusal_of_store(error))
        log.error("page failed", exc_info=error)
        return await self.refused(OurFault(request_id_of(request.scope)))

    # operations

    async def perform(
        self,
        name: str,
        body: msgspec.Struct | None = None,
        *,
        query: Mapping[str, Sequence[str]] | None = None,
        sent: Mapping[str, str] | None = None,
        receive: Callable[[], Awaitable[bytes]] | None = None,
        by: Caller | None = None,
        **path: str,
    ) -> OperationReply:
        """Perform the operation of this name for the sign-in's account. Raises Refusal.

        `by` is another key of the account, such as one for tests.
        """
        who = by or caller()
        call = Call(
            request_id_of(request.scope),
            sent or {},
            query or {},
            path,
            receive=receive,
            admission=admission_of(request.scope),
            authenticated=who,
            body=body,
            by=partial(self.actor, who),
        )
        return await perform(self.service, _BY_NAME[name], call)

    async def result_of(
        self, gives: type[S], name: str, body: msgspec.Struct | None = None, **more: Any
    ) -> S:
        """What the operation gives, which is of the type `gives`. Raises Refusal."""
        reply = await self.perform(name, body, **more)
        if reply.result is None:  # an earlier answer
            assert isinstance(reply.body, bytes)
            return msgspec.json.decode(reply.body, type=gives)
        assert isinstance(reply.result, gives)
        return reply.result


async def form_fields() -> Mapping[str, str]:
    """The fields of the request's form. Raises PayloadTooLarge, SlowBody, InvalidRequest, NoToken.

    FIELDS_MAX is our own limit: Quart would parse 200,000 fields, for 0.2 s.
    """
    if "form" not in g:
        g.form = await _read_form()
    fields: Mapping[str, str] = g.form
    return fields


def at_most_once(form: Mapping[str, str], body: msgspec.Struct) -> dict[str, str]:
    """The idempotency key of a form that is sent again unchanged, by a reload or a second click.

    Another body is another request: the back button shows the same form again.
    """
    octets = form.get("once", "").encode() + msgspec.json.encode(body)
    return {"idempotency-key": sha256(octets).hexdigest()} if form.get("once") else {}


def has_file() -> bool:
    """Whether the request's form may have a file."""
    is_upload = (request.method, request.path) == ("POST", LISTS_PAGE)
    return is_upload and request.mimetype == MEDIA_TYPE


async def form_file() -> Part | None:
    """The file of the request's form. Raises what `form_fields` raises."""
    await form_fields()
    file: Part | None = g.get("file")
    return file


async def _read_form() -> Mapping[str, str]:
    if has_file():
        return await _read_form_with_file()
    octets = await this_request().read(FORM_OCTETS_MAX)
    try:
        pairs = parse_qsl(
            octets.decode("utf-8", "replace"), keep_blank_values=True, max_num_fields=FIELDS_MAX
        )
    except ValueError:
        raise InvalidRequest(f"A form has at most {FIELDS_MAX} fields.") from None
    return dict(pairs)


async def _read_form_with_file() -> Mapping[str, str]:
    sign_in: SignIn = g.sign_in

    def is_token(part: Part) -> bool:
        return part.name == CSRF_FIELD and sign_in.has_token(part.octets)

    boundary = request.mimetype_params.get("boundary", "")
    try:
        with trio.fail_after(BODY_S_MAX):
            parts = await read_parts(this_request().next_part, boundary, is_token, BODY_OCTETS_MAX)
    except trio.TooSlowError:
        raise SlowBody(BODY_S_MAX) from None
    g.file = next((part for part in parts if part.file_name is not None), None)
    return {
        part.name: part.octets.decode("utf-8", "replace")
        for part in parts
        if part.file_name is None
    }


def sections_of(sign_in: SignIn | None) -> list[tuple[str, Sequence[Section]]]:
    """The groups of pages: an own account has no limits, and only an operator runs the service."""
    is_own = sign_in is not None and sign_in.caller.account.tier == "own"
    groups: list[tuple[str, Sequence[Section]]] = [
        (name, [each for each in entries if not (is_own and each[1] == LIMITS_PAGE)])
        for name, entries in GROUPS
    ]
    return [*groups, *([RUN] if is_operator() else []), HELP]


def here(sections: Sequence[tuple[str, Sequence[Section]]]) -> str:
    """The address of the section that the request's page belongs to: the longest that fits."""
    urls = [url for _, entries in sections for _, url, _ in entries]
    found = [url for url in urls if request.path == url or request.path.startswith(f"{url}/")]
    inner = [url for url in found if url != HOME]
    return max(inner, key=len) if inner else HOME if request.path == HOME else ""


def _sendable(role: Role, form: re.Match[str]) -> str:
    """The form of a page, or nothing where the role may not send it: no page has to think of it."""
    routes = current_app.url_map.bind("")
    rule, _ = routes.match(unescape(form["action"]), method="POST", return_rule=True)
    return form[0] if may(role, f"POST {rule.rule}") else ""


def route_of_request() -> str:
    """The request's route as the table of roles has it."""
    assert request.url_rule is not None
    method = "GET" if request.method == "HEAD" else request.method
    return f"{method} {request.url_rule.rule}"


def browser() -> str:
    """How the request's browser names itself."""
    return request.headers.get("User-Agent", "")


def is_part() -> bool:
    """Whether a script asks for a part of a page (htmx), not a browser for the page."""
    return bool(request.headers.get("HX-Request"))


def is_operator() -> bool:
    """Whether the sign-in's account runs the service."""
    return bool(g.get("is_operator", False))


def caller() -> Caller:
    """The caller of the request's sign-in."""
    sign_in: SignIn = g.sign_in
    return sign_in.caller


def away(path: str) -> Response:
    """See the page at this path (303: with a GET)."""
    return Response(b"", 303, headers={**HEADERS, "Location": path})
