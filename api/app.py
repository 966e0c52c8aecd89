"""The application: the table of operations, mounted on Quart.

All that Quart does is to find the route and to turn what was found wrong into an
answer; `answering` has the rest. No background work lives here.
"""

import logging
from collections.abc import Awaitable, Callable
from typing import Any

import trio
from quart import Response, request
from quart_trio import QuartTrio
from quart_trio.asgi import TrioASGIHTTPConnection
from quart_trio.wrappers import TrioRequest
from werkzeug import exceptions

from api.answering import answer, refuse
from api.asgi import Message, Receive, Send, headers_of_scope, request_id_of
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

log = logging.getLogger("mailprobe.api")


class Incoming(TrioRequest):
    """A request whose body nobody reads before an operation asks for it."""

    receive: Receive


class Connection(TrioASGIHTTPConnection):
    """One request, from its head to the last octet of its answer, in the task that it came in.

    Quart's own has a nursery and two tasks for each request, to read the body ahead
    and to end the work when the client is gone; that cost twice what all the rest of
    Quart does. Our server has the body already, and ends the work itself (`asgi.Exchange`).
    """

    app: "App"

    async def __call__(self, receive: Any, send: Any) -> None:
        with visiting(self.app.porter, request_id_of(self.scope), lingers=True) as visit:
            visit.cut = True

            async def see(message: Message) -> None:
                await send(message)
                if message["type"] == "http.response.start":
                    visit.status = message["status"]
                elif not message.get("more_body", False):
                    visit.cut = False

            incoming = self._create_request_from_scope(see)  # type: ignore[arg-type]  # Quart's own names for a message
            assert isinstance(incoming, Incoming)
            incoming.receive = receive
            await self._answer(see, await self.app.handle_request(incoming))

    async def _answer(self, send: Send, response: Any) -> None:
        """The end is said with the last octets: apart it would be a packet of its own."""
        headers = [(name.lower().encode(), text.encode()) for name, text in response.headers]
        await send(
            {"type": "http.response.start", "status": response.status_code, "headers": headers}
        )
        async with response.response as body:
            if isinstance(body, NdjsonBody):
                async for octets in body:
                    await send(_part(octets, more=not body.whole))
                if body.whole:
                    return
                await send(_part(b"", more=False))
            else:
                await send(_part(b"".join([octets async for octets in body]), more=False))


def _part(octets: bytes, *, more: bool) -> Message:
    return {"type": "http.response.body", "body": octets, "more_body": more}


class App(QuartTrio):
    """Quart, with the connection above."""

    asgi_http_class = Connection
    request_class = Incoming
    porter: Porter = NOBODY


def create_app(service: Service) -> QuartTrio:
    """An ASGI application over the service's parts; it opens and closes nothing."""
    app = App("mailprobe", static_folder=None)
    app.porter = service.porter
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
    receive, scope, arrived_at = _incoming().receive, request.scope, trio.current_time()

    async def read() -> bytes:
        pieces, count = [], 0
        with trio.move_on_at(arrived_at + BODY_S_MAX):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    await trio.sleep_forever()  # the request is being cancelled
                pieces.append(message.get("body", b""))
                count += len(pieces[-1])
                if count > BODY_OCTETS_MAX:
                    raise PayloadTooLarge(BODY_OCTETS_MAX)
                if not message.get("more_body", False):
                    return b"".join(pieces)
        raise SlowBody(BODY_S_MAX)

    query = {name: request.args.getlist(name) for name in request.args}
    return Inbound(request_id_of(scope), headers_of_scope(scope), query, path, read)


def _incoming() -> Incoming:
    incoming = request._get_current_object()  # type: ignore[attr-defined]  # of a LocalProxy
    assert isinstance(incoming, Incoming)
    return incoming


def _respond(reply: Reply) -> Response:
    body = NdjsonBody(reply.body) if isinstance(reply.body, Lines) else reply.body
    response = Response(body, reply.status, dict(reply.headers), content_type=reply.media_type)
    response.headers["X-Request-Id"] = request_id_of(request.scope)
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
    return OurFault(request_id_of(request.scope))
