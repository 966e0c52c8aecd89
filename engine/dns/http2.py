"""The client's side of one HTTP/2 connection, for small POSTs with small answers (RFC 9113).

Not built on the package h2: its state machines, header checks and events cost more CPU
than everything else in a look-up. This implements the part of HTTP/2 that POST needs and
refuses the rest. hpack reads the header blocks. The blocks that we send never use the
dynamic table (RFC 7541), so they need no state.
"""

from collections.abc import Iterator
from struct import Struct
from typing import Generic

import hpack

from .response import (
    DISCONNECTED,
    FIELDS_OCTETS_MAX,
    HttpResponse,
    HttpState,
    NotHttp,
    Outcome,
    Request,
    StreamRefused,
    TransportFailed,
    overlong,
)

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
FRAME_OCTETS_MAX = 16_384  # the limit for a peer that has not raised it (RFC 9113 4.2)
STREAMS_AT_FIRST = 100  # until the server sends its limit (RFC 9113 6.5.2 recommends at least this)
STREAMS_MAX = 1_000
STREAM_LAST = 2**31 - 1
WINDOW_AT_FIRST = 65_535
WINDOW_MAX = 2**31 - 1
WINDOW = 1024 * 1024  # octets that the server may send on all streams before WINDOW_UPDATE
FRUITLESS_FRAMES_MAX = 2_000  # in a row that complete no response; a response takes two to ten
OUT_OCTETS_MAX = 1024 * 1024  # that the server causes us to write and does not read
RESETS_MAX = 200  # on one connection: servers that count them hang up after 500 to 1,000

DATA, HEADERS, RST_STREAM, SETTINGS, PING, WINDOW_UPDATE, CONTINUATION = 0, 1, 3, 4, 6, 8, 9
END_STREAM, ACK, END_HEADERS, PADDED, PRIORITIZED = 1, 1, 4, 8, 32
ENABLE_PUSH, STREAMS, INITIAL_WINDOW = 2, 3, 4  # settings
REFUSED_STREAM, CANCEL = 7, 8
CODES = {
    0: "NO_ERROR",
    1: "PROTOCOL_ERROR",
    2: "INTERNAL_ERROR",
    3: "FLOW_CONTROL_ERROR",
    4: "SETTINGS_TIMEOUT",
    5: "STREAM_CLOSED",
    6: "FRAME_SIZE_ERROR",
    7: "REFUSED_STREAM",
    8: "CANCEL",
    9: "COMPRESSION_ERROR",
    10: "CONNECT_ERROR",
    11: "ENHANCE_YOUR_CALM",
    12: "INADEQUATE_SECURITY",
    13: "HTTP_1_1_REQUIRED",
}

_HEAD = Struct(">HBBBI")  # two octets of the length and its third; type, flags, stream
_NUMBER = Struct(">I")
_SETTING = Struct(">HI")


def request_fields(authority: str, target: str, kind: str, length: int) -> bytes:
    """The header block of a POST. It can be reused on every connection."""
    fields = [
        hpack.NeverIndexedHeaderTuple(name, value)
        for name, value in (
            (":method", "POST"),
            (":scheme", "https"),
            (":authority", authority),
            (":path", target),
            ("accept", kind),
            ("content-type", kind),
            ("content-length", str(length)),
        )
    ]
    encoder = hpack.Encoder()
    # Announced in each block, so it fits any table size of the server.
    encoder.header_table_size = 0
    return encoder.encode(fields)


class _Stream(Generic[Request]):
    __slots__ = ("body", "reply", "request")

    def __init__(self, question: Request) -> None:
        self.request: Request | None = question  # None: cancelled, but still open
        self.reply: HttpResponse | None = None
        self.body: bytes | bytearray = b""


class _FrameReader:
    """Frames out of octets: none too long, none out of order, and each header block whole.

    A server may send only so many frames in a row that complete no response.
    """

    __slots__ = ("_block", "_buffer", "_fruitless", "_greeted")

    def __init__(self) -> None:
        self._buffer = b""
        self._greeted = False
        self._fruitless = 0  # frames since the last response or request
        self._block: tuple[int, int, bytearray] | None = None  # stream, flags; not ended yet

    def expect_more(self) -> None:
        """A response is complete, or a request is sent."""
        self._fruitless = 0

    def read(self, octets: bytes) -> Iterator[tuple[int, int, int, bytes]]:
        """Yield the type, flags, stream and payload of each frame that is there. Raises NotHttp."""
        buffer = self._buffer + octets if self._buffer else octets
        at, size = 0, len(buffer)
        try:
            while size - at >= 9:
                high, low, kind, flags, number = _HEAD.unpack_from(buffer, at)
                end = at + 9 + (high << 8 | low)
                if end - at - 9 > FRAME_OCTETS_MAX:
                    raise NotHttp("no HTTP/2" if not self._greeted else "too long a frame")
                if end > size:
                    break
                payload = buffer[at + 9 : end]
                at = end
                number &= STREAM_LAST
                self._check(kind, flags, number)
                if kind == CONTINUATION:
                    block = self._continued(flags, payload)
                    if block is not None:
                        yield block
                elif kind == HEADERS and not flags & END_HEADERS:
                    self._block = number, flags, bytearray(_fields_in(flags, payload))
                elif kind == HEADERS:
                    yield kind, flags, number, _fields_in(flags, payload)
                else:
                    yield kind, flags, number, payload
        finally:
            self._buffer = buffer[at:]

    def _check(self, kind: int, flags: int, number: int) -> None:
        """May this frame follow those before it?"""
        self._fruitless += 1
        if self._fruitless > FRUITLESS_FRAMES_MAX:
            raise NotHttp("frames without an answer")
        if not self._greeted:
            if kind != SETTINGS or flags & ACK:
                raise NotHttp("no HTTP/2")
            self._greeted = True
        if self._block is not None and (kind != CONTINUATION or number != self._block[0]):
            raise NotHttp("a header block with a gap")

    def _continued(self, flags: int, payload: bytes) -> tuple[int, int, int, bytes] | None:
        """The header block, once it is whole."""
        if self._block is None:
            raise NotHttp("a header block with a gap")
        number, first_flags, block = self._block
        block += payload
        if len(block) > FIELDS_OCTETS_MAX or not payload:
            raise NotHttp("too long a head")
        if not flags & END_HEADERS:
            return None
        self._block = None
        return HEADERS, first_flags, number, bytes(block)


class _SendWindows:
    """How many octets of bodies may be sent, and the bodies that wait for it (RFC 9113 5.2)."""

    __slots__ = ("_connection", "_held", "_stream")

    def __init__(self) -> None:
        self._connection = WINDOW_AT_FIRST
        self._stream = WINDOW_AT_FIRST  # of each new stream
        self._held: dict[int, tuple[bytes, int]] = {}  # bodies, and the credit of their streams

    def admit(self, number: int, body: bytes) -> bool:
        """Whether the body of a new stream may be sent now; else it waits."""
        length = len(body)
        if self._held or length > self._connection or length > self._stream:
            self._held[number] = body, self._stream
            return False
        self._connection -= length
        return True

    def drop(self, number: int) -> bool:
        """The stream has ended; whether its body still waited."""
        return self._held.pop(number, None) is not None

    def set_initial(self, value: int) -> None:
        """The window of each stream at first; those that are open change with it."""
        if value > WINDOW_MAX:
            raise NotHttp("too large a window")
        more = value - self._stream
        self._stream = value
        self._held = {held: (body, credit + more) for held, (body, credit) in self._held.items()}

    def grow(self, number: int, more: int) -> None:
        """The server takes so many octets more, of a stream or (0) of all."""
        if number == 0:
            self._connection += more
            if not more or self._connection > WINDOW_MAX:
                raise NotHttp("a broken window")
        elif number in self._held:
            body, credit = self._held[number]
            self._held[number] = body, credit + more

    def released(self) -> Iterator[tuple[int, bytes]]:
        """The bodies that now fit, by their streams."""
        for number, (body, credit) in list(self._held.items()):
            if len(body) <= min(credit, self._connection):
                del self._held[number]
                self._connection -= len(body)
                yield number, body


class Http2Connection(HttpState[Request]):
    """Requests in, octets out; octets in, outcomes out.

    Each request has one outcome, unless it is cancelled or the connection ends before.
    It takes at most `quota` requests: a server that ends its connections after a few answers
    is not sent many requests that it would only give back. A cancelled request's stream is
    reset. Servers end a connection with too many resets; so after RESETS_MAX of them a stream
    is `abandoned`: it stays open, and the owner should use another connection.
    """

    def __init__(self, *, body_octets_max: int, quota: float = float("inf")) -> None:
        super().__init__(PREFACE)
        self._body_octets_max = body_octets_max
        self._quota = quota
        self._resets = 0
        self.abandoned = 0  # streams
        # A stream's window holds more than the longest body allowed. So it needs no
        # WINDOW_UPDATE, and a body that is too long is noticed.
        window = body_octets_max + FRAME_OCTETS_MAX
        settings = _SETTING.pack(ENABLE_PUSH, 0) + _SETTING.pack(INITIAL_WINDOW, window)
        self._write(SETTINGS, 0, 0, settings)
        self._write(WINDOW_UPDATE, 0, 0, _NUMBER.pack(WINDOW - WINDOW_AT_FIRST))
        self.taken: int | None = None  # requests that the server processes, once it said GOAWAY
        self._streams: dict[int, _Stream[Request]] = {}
        self._next = 1
        self.streams_max = STREAMS_AT_FIRST  # open at a time
        self._unacknowledged = 0
        self._frames = _FrameReader()
        self._windows = _SendWindows()
        self._decoder = hpack.Decoder(max_header_list_size=FIELDS_OCTETS_MAX)

    @property
    def room(self) -> int:
        """How many more requests may be sent now."""
        if self.leaving or self._next > STREAM_LAST:
            return 0
        return max(0, int(min(self.streams_max - len(self._streams), self._quota - self.sent)))

    @property
    def sent(self) -> int:
        """How many requests were sent in all."""
        return self._next // 2

    @property
    def full(self) -> bool:
        """Whether it has taken its quota."""
        return self.sent >= self._quota

    @property
    def under_way(self) -> int:
        return len(self._streams)

    @property
    def spent(self) -> bool:
        """Whether no request is under way and none can be sent any more."""
        return not self._streams and (self.leaving or self._next > STREAM_LAST)

    def send_request(self, question: Request, fields: bytes, body: bytes) -> int:
        """Send a request and return its stream. There must be room."""
        number = self._next
        self._next += 2
        self._frames.expect_more()
        self._streams[number] = _Stream(question)
        if self.full:
            self.leaving = True
        size, length = len(fields), len(body)
        if not self._windows.admit(number, body):
            self._write(HEADERS, END_HEADERS, number, fields)
            return number
        self._out += b"".join(
            (
                _HEAD.pack(size >> 8, size & 255, HEADERS, END_HEADERS, number),
                fields,
                _HEAD.pack(length >> 8, length & 255, DATA, END_STREAM, number),
                body,
            )
        )
        return number

    def cancel_request(self, number: int) -> None:
        """Reset a stream, or abandon it. Its request has no outcome."""
        stream = self._streams.get(number)
        if stream is None or stream.request is None:
            return
        if self._resets < RESETS_MAX:
            self._resets += 1
            self._reset(number)
        else:
            stream.request = None
            self.abandoned += 1

    def retire(self) -> None:
        """Take no more requests, and forget the abandoned streams: the connection ends soon."""
        self.leaving = True
        for number in [number for number, each in self._streams.items() if each.request is None]:
            self._streams.pop(number)
            self._windows.drop(number)
        self.abandoned = 0

    def _reset(self, number: int) -> None:
        del self._streams[number]
        self._windows.drop(number)
        self._write(RST_STREAM, 0, number, _NUMBER.pack(CANCEL))

    def receive_end(self) -> str:
        """The server has closed the connection; say so in words."""
        return DISCONNECTED

    def ping(self) -> None:
        """Send a PING, which the server must answer."""
        self._write(PING, 0, 0, bytes(8))

    def receive_data(self, octets: bytes) -> None:
        """Read what the server sent. Raises NotHttp."""
        for kind, flags, number, payload in self._frames.read(octets):
            if kind == DATA:
                self._receive_data(number, flags, payload)
            elif kind == HEADERS:
                self._receive_fields(number, flags, payload)
            else:
                self._receive_other(kind, number, flags, payload)
        if self._unacknowledged > WINDOW // 2:
            self._write(WINDOW_UPDATE, 0, 0, _NUMBER.pack(self._unacknowledged))
            self._unacknowledged = 0
        if len(self._out) > OUT_OCTETS_MAX:
            raise NotHttp("more frames than are read")

    def _write(self, kind: int, flags: int, number: int, payload: bytes = b"") -> None:
        length = len(payload)
        self._out += _HEAD.pack(length >> 8, length & 255, kind, flags, number)
        self._out += payload

    def _receive_other(self, kind: int, number: int, flags: int, payload: bytes) -> None:
        match kind:
            case 3:  # RST_STREAM
                self._receive_reset(number, payload)
            case 4:  # SETTINGS
                self._receive_settings(number, flags, payload)
            case 5:  # PUSH_PROMISE
                raise NotHttp("a push that we forbade")
            case 6:  # PING
                self._receive_ping(number, flags, payload)
            case 7:  # GOAWAY
                self._receive_goaway(number, payload)
            case 8:  # WINDOW_UPDATE
                self._receive_window_update(number, payload)
        # Frames of other types are ignored (RFC 9113 4.1).

    # -- answers ------------------------------------------------------------------------------

    def _receive_fields(self, number: int, flags: int, block: bytes) -> None:
        try:
            fields = list(self._decoder.decode(block, raw=True))
        except hpack.HPACKError as error:
            raise NotHttp("a broken header block") from error
        stream = self._stream(number)
        if stream is None:
            return
        if stream.reply is None:
            stream.reply = _final(fields)
            if stream.reply is None and flags & END_STREAM:
                raise NotHttp("an answer without an end")
        if flags & END_STREAM:
            self._end(number, stream)

    def _receive_data(self, number: int, flags: int, payload: bytes) -> None:
        self._unacknowledged += len(payload)
        if flags & PADDED:
            payload = _without_padding(flags, payload)
        stream = self._stream(number)
        if stream is None:
            return
        if stream.reply is None:
            raise NotHttp("an answer without a head")
        if stream.request is None:
            payload = b""  # it is never read
        if not stream.body:
            stream.body = payload  # nearly always the whole body
        else:
            if isinstance(stream.body, bytes):
                stream.body = bytearray(stream.body)
            stream.body += payload
        if len(stream.body) > self._body_octets_max:
            self._reset(number)
            self._settle(stream, overlong(self._body_octets_max))
        elif flags & END_STREAM:
            self._end(number, stream)

    def _stream(self, number: int) -> _Stream[Request] | None:
        """The stream, or None if we have reset it or it has ended."""
        stream = self._streams.get(number)
        if stream is None and (number >= self._next or not number & 1):
            raise NotHttp("an answer to nothing")
        return stream

    def _end(self, number: int, stream: _Stream[Request]) -> None:
        assert stream.reply is not None
        stream.reply.body = bytes(stream.body)
        if self._windows.drop(number):
            # It answered before we had sent the whole body, and still waits for it.
            self._write(RST_STREAM, 0, number, _NUMBER.pack(CANCEL))
        del self._streams[number]
        self._frames.expect_more()
        self._settle(stream, stream.reply)

    def _settle(self, stream: _Stream[Request], outcome: Outcome) -> None:
        if stream.request is None:
            self.abandoned -= 1
        else:
            self._settled.append((stream.request, outcome))

    # -- the rest -----------------------------------------------------------------------------

    def _receive_reset(self, number: int, payload: bytes) -> None:
        code = _number(payload)
        stream = self._stream(number)
        if stream is None:
            return
        del self._streams[number]
        self._windows.drop(number)
        words = f"the endpoint gave the question up ({CODES.get(code, f'code {code}')})"
        refused = code == REFUSED_STREAM
        self._settle(stream, StreamRefused() if refused else TransportFailed(words))

    def _receive_settings(self, number: int, flags: int, payload: bytes) -> None:
        if number or len(payload) % 6:
            raise NotHttp("a broken frame")
        if flags & ACK:
            return
        for setting, value in _SETTING.iter_unpack(payload):
            if setting == STREAMS:
                self.streams_max = min(value, STREAMS_MAX)
            elif setting == INITIAL_WINDOW:
                self._windows.set_initial(value)
        self._write(SETTINGS, ACK, 0)
        self._send_held()

    def _receive_ping(self, number: int, flags: int, payload: bytes) -> None:
        if number or len(payload) != 8:
            raise NotHttp("a broken frame")
        if not flags & ACK:
            self._write(PING, ACK, 0, payload)

    def _receive_goaway(self, number: int, payload: bytes) -> None:
        """Stop sending requests; those that the server had not begun are refused (RFC 9113 6.8)."""
        if number or len(payload) < 8:
            raise NotHttp("a broken frame")
        self.leaving = True
        last = _number(payload[:4]) & STREAM_LAST
        self.taken = min(last + 1, self._next - 1) // 2
        for later in [number for number in self._streams if number > last]:
            self._windows.drop(later)
            self._settle(self._streams.pop(later), StreamRefused())

    def _receive_window_update(self, number: int, payload: bytes) -> None:
        self._windows.grow(number, _number(payload) & WINDOW_MAX)
        self._send_held()

    def _send_held(self) -> None:
        """Send the bodies that now fit their windows."""
        for number, body in self._windows.released():
            self._write(DATA, END_STREAM, number, body)


def _number(payload: bytes) -> int:
    if len(payload) != 4:
        raise NotHttp("a broken frame")
    return int.from_bytes(payload, "big")


def _without_padding(flags: int, payload: bytes) -> bytes:
    if not flags & PADDED:
        return payload
    if not payload or payload[0] >= len(payload):
        raise NotHttp("a broken frame")
    return payload[1 : len(payload) - payload[0]]


def _fields_in(flags: int, payload: bytes) -> bytes:
    """What a HEADERS frame has of the header block."""
    payload = _without_padding(flags, payload)
    if flags & PRIORITIZED:
        if len(payload) < 5:
            raise NotHttp("a broken frame")
        payload = payload[5:]
    return payload


def _final(fields: list[hpack.HeaderTuple]) -> HttpResponse | None:
    """The response that a header block begins, or None for an interim one."""
    status, kind, date, retry_after = b"", b"", b"", b""
    for name, value in fields:
        if name == b":status":
            status = value
        elif name == b"content-type":
            kind = value
        elif name == b"date":
            date = value
        elif name == b"retry-after":
            retry_after = value
    if len(status) != 3 or not status.isdigit():
        raise NotHttp("an answer without a status")
    return HttpResponse(int(status), kind, date, b"", retry_after) if status >= b"200" else None
