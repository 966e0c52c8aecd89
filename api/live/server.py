"""Opens a WebSocket on a connection that the HTTP server hands over, or on a handshake.

A request that may not have one gets its error as any other, and the connection closes.
"""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from urllib.parse import parse_qs, urlsplit

import msgspec
import trio
from trio_websocket import ConnectionClosed, wrap_server_stream

from mailprobe.engine.background import separate
from mailprobe.storage.contract import StoreUnavailable
from mailprobe.storage.records import Caller

from ..admission.connections import LiveConnections
from ..error_table import body_of, headers_of, row_of
from ..http.received_request import Scope, headers_of_scope, new_request_id
from ..observability.request_context import RequestContext, request_scope
from ..observability.spans import trace_headers
from ..operations.operation import Call
from ..operations.verify import LIVE
from ..refusals import Refusal, UsageUnknown
from ..rest.auth import authenticate
from ..service import Service
from .connection import LiveConnection
from .handshake import LiveHandshake, UpgradedHandshake
from .messages import MESSAGE_CHARACTERS_MAX
from .stream import UpgradedStream

log = logging.getLogger("mailprobe.live")

HANDSHAKE_S = 5.0
RECEIVE_OCTETS = 1024  # at a time: tiny frames must not keep the loop for long


Headers = Mapping[str, str]  # lower-case names


class LiveServer:
    """Serves the live sockets of a process until it drains."""

    def __init__(self, service: Service, connections: LiveConnections) -> None:
        self._service = service
        self._connections = connections
        self._scheme = urlsplit(service.links.base_url).scheme

    async def serve(self, scope: Scope, wire: trio.abc.Stream, rest: bytes) -> None:
        """Serve one connection until it ends. Raises nothing of the client's making."""
        stream = UpgradedStream(wire, head_of(scope) + rest)
        try:
            with self._contained(scope) as record:
                async with trio.open_nursery() as nursery:
                    with trio.move_on_after(HANDSHAKE_S) as handshake:
                        request = await wrap_server_stream(
                            nursery, stream,
                            max_message_size=MESSAGE_CHARACTERS_MAX,
                            receive_buffer_size=RECEIVE_OCTETS,
                        )  # fmt: skip
                    if not handshake.cancelled_caught:
                        await self._serve(UpgradedHandshake(request, stream), scope, record)
                    nursery.cancel_scope.cancel()
        finally:
            await trio.aclose_forcefully(wire)

    async def serve_handshake(self, scope: Scope, handshake: LiveHandshake) -> None:
        """Serve a handshake that the server below has read. Raises nothing of the client's making."""
        with self._contained(scope) as record:
            await self._serve(handshake, scope, record)

    @contextmanager
    def _contained(self, scope: Scope) -> Iterator[RequestContext]:
        """Record the request for the duration of the block; log a fault in it, and end it."""
        try:
            with request_scope(
                self._service.request_log, new_request_id(),
                method="GET", path=LIVE, route=LIVE, scheme=self._scheme,
                sent=trace_headers(scope["headers"]),
            ) as record:  # fmt: skip
                record.operation = "verify_live"
                yield record
        except BaseException as error:
            fatal, fault = separate(error)
            if fault is not None and not _is_hang_up(fault):
                log.error("live socket failed", exc_info=fault)
            if fatal is not None:
                raise fatal from None

    async def _serve(self, handshake: LiveHandshake, scope: Scope, record: RequestContext) -> None:
        identify = partial(self._identify, headers_of_scope(scope))
        query = parse_qs(scope["query_string"].decode("latin-1"))
        try:
            record.caller = await identify()
            asked = Call(record.request_id, query=query)
            explain, advises = asked.asks("evidence", "live"), asked.asks("advice", "live")
            self._connections.check_room(record.caller.account.id)
        except Refusal as refusal:
            await self._refuse(handshake, refusal, record)
            return
        except StoreUnavailable:
            await self._refuse(handshake, UsageUnknown(), record)
            return
        with self._connections.counted(record.caller.account.id):
            socket = await handshake.accept()
            record.status, record.cut = 101, False
            session = LiveConnection(
                self._service, identify, socket, record, explain=explain, advises=advises
            )
            await session.run(self._connections.drain)

    async def _identify(self, headers: Headers) -> Caller:
        """The caller of a key. Raises Refusal, StoreUnavailable."""
        caller = await authenticate(
            self._service.store,
            headers.get("authorization"),
            "standard",
            takes_test_keys=self._service.takes_test_keys,
        )
        self._service.key_uses.note(caller.key, self._service.now())
        return caller

    async def _refuse(
        self, handshake: LiveHandshake, refusal: Refusal, record: RequestContext
    ) -> None:
        row = row_of(refusal)
        record.status, record.code = row.status, row.code
        headers = {
            "Content-Type": "application/json",
            "X-Request-Id": record.request_id,
            **headers_of(refusal),
        }
        await handshake.reject(
            row.status, headers, msgspec.json.encode(body_of(refusal, self._service.links))
        )


def head_of(scope: Scope) -> bytes:
    """The head of a request, from its scope: the library reads the handshake itself."""
    query = b"?" + scope["query_string"] if scope["query_string"] else b""
    lines = [b"GET %b%b HTTP/1.1" % (scope["raw_path"], query)]
    lines += [b"%b: %b" % (name, value) for name, value in scope["headers"]]
    return b"\r\n".join([*lines, b"", b""])


def _is_hang_up(fault: BaseException) -> bool:
    """Is the whole fault that the client is gone?"""
    if isinstance(fault, BaseExceptionGroup):
        return all(_is_hang_up(each) for each in fault.exceptions)
    return isinstance(fault, (ConnectionClosed, trio.BrokenResourceError, trio.ClosedResourceError))
