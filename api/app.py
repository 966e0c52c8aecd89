"""The application: the table of operations, mounted on Quart.

All that Quart does is to find the route, hand in the request and send the answer;
`answering` has the rest. No background work lives here.
"""

import logging
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import uuid4

import quart.wrappers
import trio
from quart import Response, request
from quart_trio import QuartTrio
from quart_trio.asgi import TrioASGIHTTPConnection
from werkzeug import exceptions

from api.answering import answer, refuse
from api.limits import BODY_OCTETS_MAX, BODY_S_MAX
from api.ndjson import NdjsonBody
from api.operations import OPERATIONS, Operation
from api.refusals import (
    InvalidRequest,
    MethodNotAllowed,
    NoSuchRoute,
    OurFault,
    PayloadTooLarge,
    Refusal,
    SlowBody,
)
from api.requests import Inbound, Lines, Reply
from api.service import Service
from api.visits import NOBODY, Porter, visiting

# what reading and sending raise when the client is gone, from quart 0.23 on
GONE: tuple[type[Exception], ...] = tuple(
    filter(None, [getattr(quart.wrappers, "ClientDisconnectedError", None)])
)

log = logging.getLogger("mailprobe.api")


class Connection(TrioASGIHTTPConnection):
    """One request, from its head to the last octet of its answer.

    A client that is gone when its answer is ready is nobody's fault.
    """

    app: "App"

    async def __call__(self, receive: Any, send: Any) -> None:
        with visiting(self.app.porter, _id_of(self.scope), lingers=True) as visit:
            visit.cut = True

            async def see(message: Any) -> None:
                await send(message)
                if message["type"] == "http.response.start":
                    visit.status = message["status"]
                elif not message.get("more_body", False):
                    visit.cut = False

            await super().__call__(receive, see)

    async def _send_response(self, send: Any, response: Any) -> None:
        try:
            await super()._send_response(send, response)
        except* GONE:
            pass


class App(QuartTrio):
    """Quart, with the connection above."""

    asgi_http_class = Connection
    porter: Porter = NOBODY


def create_app(service: Service) -> QuartTrio:
    """An ASGI application over the service's parts; it opens and closes nothing."""
    app = App("mailprobe", static_folder=None)
    app.porter = service.porter
    app.config["MAX_CONTENT_LENGTH"] = BODY_OCTETS_MAX
    app.config["BODY_TIMEOUT"] = None  # ours begins at the head
    app.url_map.merge_slashes = False  # no redirects: a path is right or it is not found
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
        if request.scope["path"].startswith("//"):  # werkzeug passes over the second one
            raise exceptions.NotFound

    async def trouble(error: Exception) -> Response:
        return _respond(refuse(service, _as_refusal(error)))

    app.register_error_handler(Exception, trouble)
    return app


def _view(service: Service, operation: Operation) -> Callable[..., Awaitable[Response]]:
    async def view(**path: str) -> Response:
        return _respond(await answer(service, operation, _inbound(path)))

    return view


def _inbound(path: dict[str, str]) -> Inbound:
    body, arrived_at = request.body, trio.current_time()

    async def read() -> bytes:
        octets = bytearray()
        with trio.move_on_at(arrived_at + BODY_S_MAX):
            try:
                async for piece in body:
                    octets += piece
                    if len(octets) > BODY_OCTETS_MAX:
                        raise PayloadTooLarge(BODY_OCTETS_MAX)
                return bytes(octets)
            except exceptions.RequestEntityTooLarge:
                raise PayloadTooLarge(BODY_OCTETS_MAX) from None
            except GONE:
                await trio.sleep_forever()  # the request is being cancelled
        raise SlowBody(BODY_S_MAX)

    headers: dict[str, str] = {}
    for name, value in request.headers:
        name = name.lower()
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    query = {name: request.args.getlist(name) for name in request.args}
    return Inbound(_request_id(), headers, query, path, read)


def _request_id() -> str:
    return _id_of(request.scope)


def _id_of(scope: Any) -> str:
    """The one that the server gave, so that its log and ours say the same."""
    request_id: str = scope.setdefault("state", {}).setdefault("request_id", uuid4().hex)
    return request_id


def _respond(reply: Reply) -> Response:
    body = NdjsonBody(reply.body) if isinstance(reply.body, Lines) else reply.body
    response = Response(body, reply.status, dict(reply.headers), content_type=reply.media_type)
    response.timeout = None  # a stream ends by itself; its connection has a deadline
    response.headers["X-Request-Id"] = _request_id()
    response.headers["Cache-Control"] = "no-store"
    if reply.status == 204:
        del response.headers["Content-Type"]
    if reply.closes and request.http_version.startswith("1"):
        response.headers["Connection"] = "close"
    return response


def _as_refusal(error: Exception) -> Refusal:
    """What Quart found wrong before any operation began."""
    match error:
        case exceptions.NotFound():
            return NoSuchRoute()
        case exceptions.MethodNotAllowed(valid_methods=methods):
            return MethodNotAllowed(request.method, ", ".join(sorted(methods or ())))
        case exceptions.HTTPException(code=int(code)) if 400 <= code < 500:
            return InvalidRequest("The request cannot be understood.", "endpoints")
    log.error("a bug of ours", exc_info=error)
    return OurFault(_request_id())
