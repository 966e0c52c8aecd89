"""The ASGI application: routes a request to its operation, by a fast path or by Quart.

Most requests name a path of the table literally, with a valid method. They skip the
framework, whose routing, contexts and objects cost more than the rest of an empty
request. Quart routes all others and reports unknown paths and methods. Then both use
`dispatch`, so the same request gets the same bytes either way. No background work
runs here.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence

import trio
from quart import Response, request
from quart_trio import QuartTrio
from quart_trio.asgi import TrioASGIHTTPConnection
from quart_trio.wrappers import TrioRequest
from werkzeug import exceptions

from mailprobe.api.http.exchange import (
    WHOLE_BODY,
    Application,
    Message,
    Receive,
    Scope,
    Send,
    headers_of_scope,
    request_id_of,
)
from mailprobe.api.http.ndjson import NdjsonBody
from mailprobe.api.observability.request_context import RequestContext, request_scope
from mailprobe.api.quota.capacity import BODY_S_MAX
from mailprobe.api.rest.dispatch import answer, refuse
from mailprobe.api.rest.messages import Inbound, Operation, OperationReply, StreamedLines
from mailprobe.api.rest.operations import OPERATIONS
from mailprobe.api.rest.refusals import (
    InvalidRequest,
    MethodNotAllowed,
    NoSuchRoute,
    OurFault,
    PayloadTooLarge,
    Refusal,
    SlowBody,
)
from mailprobe.api.service import Service

log = logging.getLogger("mailprobe.api")

NO_QUERY: Mapping[str, Sequence[str]] = {}
NO_PARTS: Mapping[str, str] = {}


def create_app(service: Service) -> Application:
    """Create the ASGI application over the service's parts. It opens and closes nothing."""
    framework = _framework(service)
    known = {(row.method, row.path): row for row in OPERATIONS if "{" not in row.path}

    async def app(scope: Message, receive: Receive, send: Send) -> None:
        with request_scope(
            service.request_log, request_id_of(scope), lingers=True
        ) as request_context:
            request_context.cut = True
            operation = known.get((scope["method"], scope["path"]))
            if operation is None or scope["query_string"]:
                reply = await framework.find(scope, receive)
            else:
                reply = await _answer(service, operation, scope, receive)
            await _send_reply(reply, scope, request_context, send)

    return app


async def _answer(
    service: Service, operation: Operation, scope: Message, receive: Receive
) -> OperationReply:
    try:
        return await answer(service, operation, _inbound(scope, receive, NO_QUERY, NO_PARTS))
    except Exception as error:
        return refuse(service, _as_refusal(error, scope))


def _inbound(
    scope: Scope,
    receive: Receive,
    query: Mapping[str, Sequence[str]],
    path: Mapping[str, str],
) -> Inbound:
    arrived_at = trio.current_time()
    whole: bytes | None = scope.get("extensions", {}).get(WHOLE_BODY)

    async def read(octets_max: int) -> bytes:
        if whole is not None and len(whole) <= octets_max:
            return whole
        pieces, count = [], 0
        with trio.move_on_at(arrived_at + BODY_S_MAX):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    await trio.sleep_forever()  # the request is being cancelled
                pieces.append(message.get("body", b""))
                count += len(pieces[-1])
                if count > octets_max:
                    raise PayloadTooLarge(octets_max)
                if not message.get("more_body", False):
                    return b"".join(pieces)
        raise SlowBody(BODY_S_MAX)

    return Inbound(request_id_of(scope), headers_of_scope(scope), query, path, read)


# -- sending the reply ---------------------------------------------------------------------------------


async def _send_reply(
    reply: OperationReply, scope: Message, request_context: RequestContext, send: Send
) -> None:
    """Send the reply. The last bytes carry the end of the body, to save a packet."""
    start = _start(reply, scope)
    if not isinstance(reply.body, StreamedLines):
        await send(start)
        request_context.status = reply.status
        await send(_part(reply.body, more=False))
    else:
        # opened before the head is sent: its addresses are verified from the reservation on
        async with NdjsonBody(reply.body) as body:
            await send(start)
            request_context.status = reply.status
            async for octets in body:
                await send(_part(octets, more=not body.whole))
            if not body.whole:
                await send(_part(b"", more=False))
    request_context.cut = False


def _start(reply: OperationReply, scope: Message) -> Message:
    headers = [(name.lower().encode(), text.encode()) for name, text in reply.headers.items()]
    if reply.status != 204:
        headers.append((b"content-type", reply.media_type.encode()))
    if not isinstance(reply.body, StreamedLines):
        headers.append((b"content-length", b"%d" % len(reply.body)))
    headers.append((b"x-request-id", request_id_of(scope).encode()))
    headers.append((b"cache-control", b"no-store"))
    if reply.closes and scope["http_version"].startswith("1"):
        headers.append((b"connection", b"close"))
    return {"type": "http.response.start", "status": reply.status, "headers": headers}


def _part(octets: bytes, *, more: bool) -> Message:
    return {"type": "http.response.body", "body": octets, "more_body": more}


# -- routing by Quart --------------------------------------------------------------------------------


class Incoming(TrioRequest):
    """A request whose body is read only by its operation."""

    receive: Receive


class ReplyResponse(Response):
    """Carries our reply out of a Quart view; `_send_reply` sends it."""

    def __init__(self, reply: OperationReply) -> None:
        super().__init__(b"", reply.status)
        self.reply = reply


class RequestConnection(TrioASGIHTTPConnection):
    """Handles one request in the task that received it.

    Quart's own class starts a nursery and two tasks per request, to read the body ahead
    and to cancel the work when the client disconnects; that costs twice the rest of
    Quart. Our server has the body already and cancels the work itself (`http.exchange`).
    """

    async def find(self, receive: Receive) -> OperationReply:
        incoming = self._create_request_from_scope(_push_nothing)  # type: ignore[arg-type]  # Quart's own names for a message
        assert isinstance(incoming, Incoming)
        incoming.receive = receive
        response = await self.app.handle_request(incoming)
        assert isinstance(response, ReplyResponse)  # errors too, see `refuse_error`
        return response.reply


async def _push_nothing(message: Message) -> None:
    """Quart's HTTP/2 pushes, which this server does not support."""


class Framework(QuartTrio):
    """Quart, with the connection above."""

    request_class = Incoming

    async def find(self, scope: Message, receive: Receive) -> OperationReply:
        """Route the request and return the operation's reply, or a refusal."""
        return await RequestConnection(self, scope).find(receive)  # type: ignore[arg-type]  # Quart's own name for a scope


def _framework(service: Service) -> Framework:
    app = Framework("mailprobe", static_folder=None)
    app.url_map.merge_slashes = False  # no redirects: other paths are 404
    for operation in OPERATIONS:
        app.add_url_rule(
            operation.path.replace("{", "<").replace("}", ">"),
            operation.name,
            _view(service, operation),
            methods=[operation.method],
            provide_automatic_options=False,
        )

    @app.before_request
    async def refuse_empty_segments() -> None:
        if request.scope["path"].startswith("//"):  # werkzeug ignores the second slash
            raise exceptions.NotFound

    async def refuse_error(error: Exception) -> Response:
        return ReplyResponse(refuse(service, _as_refusal(error, request.scope)))

    app.register_error_handler(Exception, refuse_error)
    return app


def _view(service: Service, operation: Operation) -> Callable[..., Awaitable[Response]]:
    async def view(**path: str) -> Response:
        incoming = request._get_current_object()  # type: ignore[attr-defined]  # of a LocalProxy
        assert isinstance(incoming, Incoming)
        query = {name: incoming.args.getlist(name) for name in incoming.args}
        inbound = _inbound(incoming.scope, incoming.receive, query, path)
        return ReplyResponse(await answer(service, operation, inbound))

    return view


def _as_refusal(error: Exception, scope: Scope) -> Refusal:
    """The refusal for an error before any operation began."""
    match error:
        case exceptions.NotFound():
            return NoSuchRoute()
        case exceptions.MethodNotAllowed(valid_methods=methods):
            return MethodNotAllowed(scope["method"], ", ".join(sorted(methods or ())))
        case exceptions.HTTPException(code=int(code)) if 400 <= code < 500:
            return InvalidRequest("The request cannot be understood.", "endpoints")
    log.error("a bug of ours", exc_info=error)
    return OurFault(request_id_of(scope))
