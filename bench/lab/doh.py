"""A DNS-over-HTTPS resolver (RFC 8484) on HTTP/2 or HTTP/1.1, answering from a zone.

HTTP/2 is written on h2 alone: all questions that one read brings are answered in one
write, and trouble with one connection stays with it. With httpx asking, 2,000
questions went at 420-450 a second on two slow cores, against 160-200 with
hypercorn 0.18, which moreover ends as a whole when DATA follows an early
answer (hypercorn #329): a bench shall measure the prober, not its laboratory.
"""

import base64
import binascii
import ssl
from collections.abc import Callable
from contextlib import suppress
from math import inf
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import h2.config
import h2.connection
import h2.errors
import h2.events
import h2.exceptions
import h2.settings
import h11
import trio
import trustme
from msgspec import Struct, field

from ..world.resolver_faults import Unavailable
from ..world.zone import HTML, Zone, ZoneMode

PATH = "/dns-query"
QUESTION_OCTETS_MAX = 4_096
READ_OCTETS = 64 * 1024
STREAMS_MAX = 250  # at a time on one connection
HANG_S = 30.0  # then a question that is never answered is reset: its stream is wanted again
GOODBYE_S = 5.0
MESSAGE = "application/dns-message"


class _PendingRequest(Struct):
    """A request under way."""

    headers: dict[bytes, bytes]
    body: bytearray = field(default_factory=bytearray)


class Response(Struct, frozen=True):
    status: int
    kind: str
    body: bytes
    fields: tuple[tuple[str, str], ...] = ()  # further header fields


class Resolver(Struct):
    """One endpoint. After `requests_max` questions a connection is ended with GOAWAY.

    After `goaway_after` answers it is ended, too, but gives back all questions that it has
    not answered by then. The zone may have other faults.
    """

    zone: Zone
    requests_max: int | None = None
    delay_s: float = 0.0
    goaway_after: int | None = None
    connections_seen: int = 0

    async def serve(self, stream: trio.SSLStream[trio.SocketStream]) -> None:
        """Answer one connection until it ends; trouble with it stays with it."""
        self.connections_seen += 1
        try:
            await stream.do_handshake()
            if stream.selected_alpn_protocol() == "http/1.1":
                return await _Http1(self.zone, stream).run()
            async with trio.open_nursery() as nursery:
                await _Connection(self, stream, nursery).run()
                nursery.cancel_scope.cancel()
        except* (trio.BrokenResourceError, trio.ClosedResourceError, ssl.SSLError, OSError):
            pass
        finally:
            await trio.aclose_forcefully(stream)


class _Connection:
    """One HTTP/2 connection: events in, one write out."""

    def __init__(
        self, resolver: Resolver, stream: trio.SSLStream[trio.SocketStream], nursery: trio.Nursery
    ) -> None:
        self._resolver = resolver
        self._stream = stream
        self._nursery = nursery
        self._writing = trio.Lock()
        self._requests: dict[int, _PendingRequest] = {}
        self._answered = 0
        self._responses = 0
        self._gone = False  # it has said GOAWAY because of `goaway_after`
        self._delayed, self._due = trio.open_memory_channel[tuple[float, int, Response]](inf)
        config = h2.config.H2Configuration(client_side=False, header_encoding=None)
        self._h2 = h2.connection.H2Connection(config)

    async def run(self) -> None:
        self._h2.local_settings = h2.settings.Settings(
            client=False,
            initial_values={h2.settings.SettingCodes.MAX_CONCURRENT_STREAMS: STREAMS_MAX},
        )
        self._h2.initiate_connection()
        self._nursery.start_soon(self._respond_in_order)
        await self._flush()
        while octets := await self._stream.receive_some(READ_OCTETS):
            if self._gone:
                continue  # until the client closes
            try:
                for event in self._h2.receive_data(bytes(octets)):
                    if not self._gone:
                        self._receive(event)
            except h2.exceptions.ProtocolError:
                await self._flush()  # h2 has put its GOAWAY there
                return
            if self._tired():
                return await self._send_goaway()
            await self._flush()

    def _tired(self) -> bool:
        """Enough was answered, and no question is half told: GOAWAY will lose none."""
        most = self._resolver.requests_max
        return most is not None and self._answered >= most and not self._requests

    async def _send_goaway(self) -> None:
        """GOAWAY (RFC 9113 6.8), then let the client close.

        Closing over unread octets would be a reset, which takes answers under way with it.
        """
        self._h2.close_connection()
        await self._flush()
        with trio.move_on_after(GOODBYE_S):
            while await self._stream.receive_some(READ_OCTETS):
                pass

    async def _flush(self) -> None:
        async with self._writing:
            if octets := self._h2.data_to_send():
                await self._stream.send_all(octets)

    def _receive(self, event: h2.events.Event) -> None:
        match event:
            case h2.events.RequestReceived(stream_id=number, headers=headers):
                self._requests[number] = _PendingRequest(dict(headers))
            case h2.events.DataReceived(stream_id=number):
                self._h2.acknowledge_received_data(event.flow_controlled_length, number)
                if (asked := self._requests.get(number)) is not None:
                    asked.body += event.data
                    if len(asked.body) > QUESTION_OCTETS_MAX:
                        del self._requests[number]
                        self._respond(number, Response(413, "text/plain", b""))
            case h2.events.StreamEnded(stream_id=number):
                if (asked := self._requests.pop(number, None)) is not None:
                    self._answer(number, asked)
            case h2.events.StreamReset(stream_id=number):
                self._requests.pop(number, None)

    def _answer(self, number: int, asked: _PendingRequest) -> None:
        self._answered += 1
        response = respond(self._resolver.zone, asked.headers, bytes(asked.body))
        if response is ZoneMode.HANG:
            self._later(HANG_S, lambda: self._reset(number))
        elif isinstance(response, ZoneMode):
            self._reset(number)
        elif self._resolver.delay_s:
            due_at = trio.current_time() + self._resolver.delay_s
            self._delayed.send_nowait((due_at, number, response))
        else:
            self._respond(number, response)

    def _later(self, delay_s: float, act: Callable[[], None]) -> None:
        async def wait_and_act() -> None:
            await trio.sleep(delay_s)
            act()
            await self._flush()

        self._nursery.start_soon(wait_and_act)

    async def _respond_in_order(self) -> None:
        """In one task: trio wakes those of one moment in any order, and GOAWAY counts on theirs."""
        async for due_at, number, response in self._due:
            await trio.sleep_until(due_at)
            self._respond(number, response)
            await self._flush()

    def _respond(self, number: int, response: Response) -> None:
        headers = [
            (":status", str(response.status)),
            ("content-type", response.kind),
            ("content-length", str(len(response.body))),
            ("cache-control", "max-age=0"),
            *response.fields,
        ]
        with suppress(h2.exceptions.ProtocolError):  # given up by the client, or its window is shut
            self._h2.send_headers(number, headers)
            self._h2.send_data(number, response.body, end_stream=True)
            self._responses += 1
            if self._responses == self._resolver.goaway_after:
                self._gone = True
                self._h2.close_connection(last_stream_id=number)

    def _reset(self, number: int) -> None:
        with suppress(h2.exceptions.ProtocolError):  # given up in the meantime
            self._h2.reset_stream(number, h2.errors.ErrorCodes.INTERNAL_ERROR)


class _Http1:
    """One HTTP/1.1 connection: a question at a time, until either side is done."""

    def __init__(self, zone: Zone, stream: trio.SSLStream[trio.SocketStream]) -> None:
        self._zone = zone
        self._stream = stream
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=QUESTION_OCTETS_MAX)

    async def run(self) -> None:
        while (asked := await self._question()) is not None:
            response = respond(self._zone, asked.headers, bytes(asked.body))
            if response is ZoneMode.HANG:
                with trio.move_on_after(HANG_S):
                    await self._stream.receive_some(READ_OCTETS)  # until the client gives it up
            if not isinstance(response, Response):
                return
            await self._respond(response)
            self._http.start_next_cycle()

    async def _question(self) -> _PendingRequest | None:
        """The next request; None where the client has closed, or speaks no HTTP."""
        asked = _PendingRequest({})
        with suppress(h11.RemoteProtocolError):
            while True:
                event = self._http.next_event()
                if event is h11.NEED_DATA:
                    self._http.receive_data(bytes(await self._stream.receive_some(READ_OCTETS)))
                elif isinstance(event, h11.Request):
                    asked.headers = dict(event.headers)
                    asked.headers |= {b":path": event.target, b":method": event.method}
                elif isinstance(event, h11.Data):
                    asked.body += event.data
                else:
                    return asked if isinstance(event, h11.EndOfMessage) else None
        return None

    async def _respond(self, response: Response) -> None:
        fields = [
            ("content-type", response.kind),
            ("content-length", str(len(response.body))),
            *response.fields,
        ]
        events = (
            h11.Response(status_code=response.status, headers=fields),
            h11.Data(data=response.body),
            h11.EndOfMessage(),
        )
        await self._stream.send_all(b"".join(self._http.send(event) or b"" for event in events))


def respond(zone: Zone, headers: dict[bytes, bytes], body: bytes) -> Response | ZoneMode:
    """Return the response to one HTTP request, or a behaviour that HTTP cannot express."""
    url = urlsplit(headers.get(b":path", b"").decode("latin-1"))
    if url.path != PATH:
        return Response(404, "text/plain", b"")
    if headers.get(b":method") == b"GET":
        try:
            text = parse_qs(url.query)["dns"][0]
            body = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
        except (KeyError, binascii.Error):
            return Response(400, "text/plain", b"")
    elif headers.get(b"content-type") != MESSAGE.encode():
        return Response(415, "text/plain", b"")
    try:
        answer = zone.answer(body)
    except ValueError:
        return Response(400, "text/plain", b"")
    if isinstance(answer, bytes):
        return Response(200, MESSAGE, answer)
    if isinstance(answer, Unavailable):
        fields = [("date", answer.date)]
        if answer.retry_after:
            fields.append(("retry-after", answer.retry_after))
        return Response(answer.status, "text/plain", b"try again", tuple(fields))
    if answer is ZoneMode.HTML:
        return Response(200, "text/html", HTML)
    if answer is ZoneMode.HTTP_ERROR:
        return Response(503, "text/plain", b"try again")
    return answer


class Authority:
    """A throw-away authority: the server's side for one address, and the file to trust."""

    def __init__(self, folder: Path, address: str) -> None:
        self._authority = trustme.CA(organization_name="mailprobe lab")
        self._address = address
        self.trusted = folder / "authority.pem"
        self._authority.cert_pem.write_to_path(str(self.trusted))

    def context(self, protocol: str = "h2") -> ssl.SSLContext:
        """What a listener needs that speaks this protocol: h2 or http/1.1."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.set_alpn_protocols([protocol])
        self._authority.issue_cert(self._address).configure_cert(context)
        return context


def make_authority(folder: Path, address: str) -> tuple[ssl.SSLContext, Path]:
    """The same for HTTP/2 alone."""
    authority = Authority(folder, address)
    return authority.context(), authority.trusted
