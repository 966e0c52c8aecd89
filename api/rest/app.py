"""The ASGI application: Quart, with one route for each operation of the table.

Views and pages may be added as in any Quart application. `dispatch` knows nothing of Quart;
the view of an operation passes it a `Call` and makes a response of its `OperationReply`.
No background work runs here.

What differs from stock Quart, and why. An empty operation took 183 us with stock classes and
takes 62 us with these; 13 us of it are not Quart's:

- `RequestConnection` handles a request in the task that received it, without a nursery and
  a task that reads the body ahead: our server cancels the work itself (`http.exchange`).
- `ApiRequest` makes headers, body and lock only when a view asks for them.
- `ApiApp` binds the routes to the public URL instead of each request's Host.
"""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

import trio
from quart import Response, request
from quart.utils import encode_headers
from quart.wrappers.response import DataBody, IterableBody, ResponseBody
from quart_trio import QuartTrio
from quart_trio.asgi import TrioASGIHTTPConnection
from quart_trio.wrappers import TrioRequest, TrioResponse
from werkzeug import Response as WerkzeugResponse
from werkzeug import exceptions
from werkzeug.datastructures import Headers
from werkzeug.routing import MapAdapter

from mailprobe.storage.contract import StoreUnavailable

from ..http.received_request import (
    Message,
    Receive,
    Scope,
    Send,
    admission_of,
    headers_of_scope,
    next_part,
    read_body,
    request_id_of,
)
from ..observability.request_context import RequestContext, present, request_scope
from ..observability.spans import trace_headers
from ..operations.forms import FORMS
from ..operations.operation import (
    Call,
    Operation,
    OperationReply,
    StreamedLines,
    StreamedParts,
)
from ..operations.table import OPERATIONS
from ..refusals import (
    InvalidRequest,
    MethodNotAllowed,
    NoSuchRoute,
    OurFault,
    Refusal,
)
from ..service import Service
from .dispatch import answer, preflight, refuse

log = logging.getLogger("mailprobe.api")

TOOL_PATHS = ("/mcp", "/mcp/all")  # of the tool server; people try them here too
NO_ROUTE = "/\0"  # a path that has none
NO_QUERY: Mapping[str, Sequence[str]] = {}


def create_api(service: Service) -> "ApiApp":
    """Create the ASGI application of the operations over the service's parts."""
    app = ApiApp(service)
    for operation in OPERATIONS:
        app.add_url_rule(
            operation.path.replace("{", "<").replace("}", ">"),
            operation.name,
            _view(service, operation),
            methods=[operation.method],
            provide_automatic_options=False,
        )
    app.add_url_rule(
        FORMS,
        "preflight",
        _preflight(service),
        methods=["OPTIONS"],
        provide_automatic_options=False,
    )
    return app


def _preflight(service: Service) -> Callable[..., Awaitable[Response]]:
    async def view() -> Response:
        call = call_of(this_request(), {})
        return _response(await preflight(service, call), call.request_id)

    return view


def _view(service: Service, operation: Operation) -> Callable[..., Awaitable[Response]]:
    async def view(**path: str) -> Response:
        call = call_of(this_request(), path)
        return _response(await answer(service, operation, call), call.request_id)

    return view


def call_of(incoming: "ApiRequest", path: Mapping[str, str]) -> Call:
    scope, query = incoming.scope, NO_QUERY
    if scope["query_string"]:
        query = {name: incoming.args.getlist(name) for name in incoming.args}
    headers = headers_of_scope(scope)
    return Call(
        request_id_of(scope), headers, query, path, incoming.read, incoming.next_part,
        admission_of(scope), (scope["client"] or [""])[0],
    )  # fmt: skip


def _response(reply: OperationReply, request_id: str) -> Response:
    headers = [(name.lower(), text) for name, text in reply.headers.items()]
    if reply.status != 204:
        headers.append(("content-type", reply.media_type))
    if isinstance(reply.body, bytes):
        headers.append(("content-length", str(len(reply.body))))
    headers += [("x-request-id", request_id), ("cache-control", "no-store")]
    if reply.closes:
        headers.append(("connection", "close"))
    response = ApiResponse(_body_of(reply), reply.status, Headers(headers))
    response.timeout = None  # the connection has its own limits, and a stream may take long
    return response


def _body_of(reply: OperationReply) -> ResponseBody:
    match reply.body:
        case StreamedLines():
            return NdjsonBody(reply.body)
        case StreamedParts(parts=parts):
            return IterableBody(parts)
        case octets:
            return DataBody(octets)


class NdjsonBody(ResponseBody):
    """The body of a stream: one line per verdict; those that are ready together are sent together.

    Entering it opens the stream of answers, leaving it closes that stream, so the work ends
    whenever the sender stops. It is not an async generator, because one must not hold the stream's
    nursery open across a yield (PEP 789).
    """

    def __init__(self, lines: StreamedLines) -> None:
        self._answers, self._encode = lines.answers, lines.encode

    async def __aenter__(self) -> "NdjsonBody":
        await self._answers.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._answers.__aexit__(kind, error, traceback)

    @property
    def whole(self) -> bool:
        """Has the last line been taken?"""
        return self._answers.whole

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        ready = await self._answers.next_ready()
        if not ready:
            raise StopAsyncIteration
        if (request_context := present()) is not None:
            request_context.count_lines(len(ready))
        return self._encode(ready)


class ApiResponse(TrioResponse):
    """A response whose headers are all given."""

    default_mimetype = None  # type: ignore[assignment]  # of a 204


class ApiApp(QuartTrio):
    """Quart with JSON errors, without redirects, and with the classes above."""

    def __init__(self, service: Service) -> None:
        super().__init__("mailprobe", static_folder=None)
        self.service = service
        self.asgi_http_class = RequestConnection
        self.url_map.merge_slashes = False  # no redirects: other paths are 404
        self.config["RESPONSE_TIMEOUT"] = None
        self.public = urlsplit(service.links.base_url)
        self.register_error_handler(Exception, self._refuse_error)

    async def _refuse_error(self, error: Exception) -> Response:
        refusal = _as_refusal(error, request.scope, self.service.tools_url)
        return _response(refuse(self.service, refusal), request_id_of(request.scope))

    def create_url_adapter(self, request: Any) -> MapAdapter:
        """Route by the path alone: a Host header cannot name another site in our links."""
        path, method, scheme = "/", "GET", self.public.scheme
        if request is not None:
            path, method = request.path, request.method
            if request.scope["type"] == "websocket":
                scheme = "wss" if scheme == "https" else "ws"
        if path.startswith("//"):
            path = NO_ROUTE  # Werkzeug would ignore the second slash
        root = f"{self.public.path.rstrip('/')}/"
        return MapAdapter(self.url_map, self.public.netloc, root, "", scheme, path, method)


class ApiRequest(TrioRequest):
    """Quart's request; what is more than method, path and scope is made when a view asks for it.

    A body is read by `read` or `next_part`, within the limits of its caller. Quart's own body is empty.
    """

    scope: Any
    _files = None  # nothing to close

    def __init__(self, scope: Scope, receive: Receive) -> None:
        self.scope = scope
        self.method = scope["method"]
        self.path = scope["path"]
        self._receive = receive
        self._arrived_at = trio.current_time()
        self._has_more = True  # of an upload

    def __getattr__(self, name: str) -> object:
        if name.startswith("__") or "headers" in vars(self):
            raise AttributeError(name)
        self._make_whole()
        return getattr(self, name)

    def _make_whole(self) -> None:
        scope = self.scope
        headers = Headers(
            [
                (name.decode("latin-1").title(), text.decode("latin-1"))
                for name, text in scope["headers"]
            ]
        )
        headers["Remote-Addr"] = (scope["client"] or ["<local>"])[0]
        super().__init__(
            self.method,
            scope["scheme"],
            self.path,
            scope["query_string"],
            headers,
            "",
            scope["http_version"],
            scope,
            send_push_promise=_push_nothing,
        )
        self.body.set_complete()

    async def next_part(self) -> bytes:
        """Return the next part of an upload, at most a MiB or so; empty at its end."""
        octets = b""
        while self._has_more and not octets:
            octets, self._has_more = await next_part(self._receive)
        return octets

    async def read(self, octets_max: int) -> bytes:
        """Return the body. Raises PayloadTooLarge, SlowBody."""
        return await read_body(self.scope, self._receive, self._arrived_at, octets_max)


def this_request() -> ApiRequest:
    """The request that a view answers, without Quart's proxy."""
    found: ApiRequest = request._get_current_object()  # type: ignore[attr-defined]  # of a LocalProxy
    return found


async def _push_nothing(path: str, headers: Headers) -> None:
    """Quart's HTTP/2 pushes, which this server does not support."""


class RequestConnection(TrioASGIHTTPConnection):
    """Handles one request in the task that received it, and sends the response."""

    app: ApiApp

    async def __call__(self, receive: Any, send: Any) -> None:
        scope: Any = self.scope
        log = self.app.service.request_log
        incoming = ApiRequest(scope, receive)
        with request_scope(
            log, request_id_of(scope), lingers=True,
            method=scope["method"], path=scope["path"], scheme=self.app.public.scheme,
            sent=trace_headers(scope["headers"]),
        ) as record:  # fmt: skip
            record.cut = True
            try:
                response = await self.app.handle_request(incoming)
            finally:
                record.route = incoming.url_rule.rule if incoming.url_rule else ""
            with suppress(StoreUnavailable):  # logged where it was met; the body has no end
                await _send(response, record, send)
                record.cut = False


async def _send(response: Any, record: RequestContext, send: Send) -> None:
    """Send the response; its last octets carry the end of the body, to save a packet."""
    start = {
        "type": "http.response.start",
        "status": response.status_code,
        "headers": encode_headers(response.headers),
    }
    body = response.response
    if isinstance(body, DataBody):
        await send(start)
        record.status = response.status_code
        await send(_part(body.data[body.begin : body.end], more=False))
        return
    if isinstance(response, WerkzeugResponse):  # of an HTTP error without a handler
        body = TrioResponse(b"".join(response.iter_encoded())).response
    # opened before the head is sent: a stream's addresses are verified from the reservation on
    async with body as parts:
        await send(start)
        record.status = response.status_code
        is_whole = False
        async for octets in parts:
            is_whole = getattr(parts, "whole", False)
            await send(
                _part(octets.encode() if isinstance(octets, str) else octets, more=not is_whole)
            )
        if not is_whole:
            await send(_part(b"", more=False))


def _part(octets: bytes, *, more: bool) -> Message:
    return {"type": "http.response.body", "body": octets, "more_body": more}


def _as_refusal(error: Exception, scope: Scope, tools_url: str) -> Refusal:
    """The refusal for an error before any operation began."""
    match error:
        case exceptions.NotFound():
            is_of_tools = tools_url and scope["path"] in TOOL_PATHS
            also = f" The tool server is at {tools_url}{scope['path']}." if is_of_tools else ""
            return NoSuchRoute(also)
        case exceptions.MethodNotAllowed(valid_methods=methods):
            return MethodNotAllowed(scope["method"], ", ".join(sorted(methods or ())))
        case exceptions.HTTPException(code=int(code)) if 400 <= code < 500:
            return InvalidRequest("The request cannot be understood.", "endpoints")
    request_id = request_id_of(scope)
    log.error("request failed: request=%s", request_id, exc_info=error)
    return OurFault(request_id)
