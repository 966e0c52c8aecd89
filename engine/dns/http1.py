"""The client's side of one HTTP/1.1 connection, without a socket (RFC 9112)."""

import re

from .response import (
    DISCONNECTED,
    FIELDS_OCTETS_MAX,
    HttpResponse,
    HttpState,
    NotHttp,
    Outcome,
    Request,
    TooLong,
    TransportFailed,
    overlong,
)

_STATUS_LINE = re.compile(rb"HTTP/1\.([01]) ([1-5][0-9][0-9])(?: [^\r\n\0]*)?")
_FIELD = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([^\r\n\0]*?)[ \t]*")
_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,7})[ \t]*(?:;[^\r\n]*)?")
_CHUNK_LINE_OCTETS_MAX = 1024
INTERIM_MAX = 8  # responses of 1xx before the final one
CHUNKS_MAX = 256  # of one response, which is mostly sent in one chunk


def request_head(authority: str, target: str, kind: str, length: int) -> bytes:
    """The head of a POST, which accepts a response of the same content type."""
    return (
        f"POST {target} HTTP/1.1\r\nHost: {authority}\r\nAccept: {kind}\r\n"
        f"Content-Type: {kind}\r\nContent-Length: {length}\r\n\r\n"
    ).encode("ascii")


class Http1Connection(HttpState[Request]):
    """One request after the other. Its methods are those of http2.Http2Connection."""

    streams_max = 1
    abandoned = 0
    full = False
    taken = None

    def __init__(self, *, body_octets_max: int) -> None:
        super().__init__()
        self._body_octets_max = body_octets_max
        self._request: Request | None = None
        self._reader = ResponseReader(body_octets_max)

    @property
    def room(self) -> int:
        return int(self._request is None and not self.leaving)

    @property
    def under_way(self) -> int:
        return int(self._request is not None)

    @property
    def spent(self) -> bool:
        return self._request is None and self.leaving

    def send_request(self, request: Request, head: bytes, body: bytes) -> int:
        self._request = request
        self._reader = ResponseReader(self._body_octets_max)
        self._out += head + body
        return 1

    def cancel_request(self, number: int) -> None:
        """End the connection: the next octets on it would answer the cancelled request."""
        self._request, self.leaving = None, True

    def retire(self) -> None:
        self.leaving = True

    def ping(self) -> None:
        """HTTP/1.1 has none."""

    def receive_data(self, octets: bytes) -> None:
        if self._request is None:
            self.leaving = True  # there was no request: what follows cannot be trusted
            return
        outcome: Outcome | None
        try:
            outcome = self._reader.receive_data(octets)
        except TooLong:
            outcome = overlong(self._body_octets_max)
        except NotHttp as error:
            outcome = TransportFailed(f"it sends {error}")
        self._settle(outcome)

    def receive_end(self) -> str:
        """The server has closed the connection; say so in words."""
        if self._request is not None:
            self._settle(self._reader.receive_end())
        self.leaving = True
        cut = self._request is not None and self._reader.begun
        return "the endpoint closed the connection in mid-answer" if cut else DISCONNECTED

    def _settle(self, outcome: Outcome | None) -> None:
        if outcome is not None and self._request is not None:
            self._settled.append((self._request, outcome))
            self._request = None
            self.leaving = self._reader.last or not isinstance(outcome, HttpResponse)


class ResponseReader:
    """Reads one response with a body of at most `octets_max`."""

    def __init__(self, octets_max: int) -> None:
        self._octets_max = octets_max
        self._buffer = b""
        self._reply: HttpResponse | None = None
        self._left: int | None = None  # octets of the body; None: until the connection ends
        self._chunked = False
        self._interim = 0
        self._chunks = 0
        self._body = bytearray()
        self.begun = False  # the server has sent something
        self.last = False  # the connection takes no other request

    def receive_data(self, octets: bytes) -> HttpResponse | None:
        """Return the response if these octets complete it. Raises NotHttp, TooLong."""
        self.begun = True
        self._buffer += octets
        while self._reply is None:
            if not self._read_head():
                return None
        if self._chunked:
            return self._read_chunks()
        take = len(self._buffer) if self._left is None else min(self._left, len(self._buffer))
        self._read_body(take)
        return self._end() if self._left == 0 else None

    def receive_end(self) -> HttpResponse | None:
        """Return the response if the end of the connection completes it."""
        if self._reply is None or self._chunked or self._left is not None:
            return None
        self.last = True
        self._reply.body = bytes(self._body)
        return self._reply

    def _end(self) -> HttpResponse:
        assert self._reply is not None
        if self._buffer:
            self.last = True  # more than one response: what follows cannot be trusted
        self._reply.body = bytes(self._body)
        return self._reply

    def _read_head(self) -> bool:
        head, found, rest = self._buffer.partition(b"\r\n\r\n")
        if len(head) > FIELDS_OCTETS_MAX:
            raise NotHttp("too long a head")
        if not (found or b"HTTP/1."[: len(head)] == head[:7]):
            raise NotHttp("no HTTP")
        if not found:
            return False
        self._buffer = rest
        line, *lines = head.split(b"\r\n")
        if not (status := _STATUS_LINE.fullmatch(line)):
            raise NotHttp("no HTTP")
        if (number := int(status[2])) < 200:
            if number == 101:
                raise NotHttp("another protocol")
            self._interim += 1
            if self._interim > INTERIM_MAX:
                raise NotHttp("too many interim answers")
            return True  # the final one follows
        self.last = status[1] == b"0"
        self._read_fields(HttpResponse(number), lines)
        return True

    def _read_fields(self, reply: HttpResponse, lines: list[bytes]) -> None:
        lengths: set[bytes] = set()
        coding = b""
        for line in lines:
            if not (field := _FIELD.fullmatch(line)):
                raise NotHttp("a broken header")
            name, value = field[1].lower(), field[2]
            if name == b"content-type":
                reply.kind = value
            elif name == b"date":
                reply.date = value
            elif name == b"retry-after":
                reply.retry_after = value
            elif name == b"content-length":
                lengths.add(value)
            elif name == b"transfer-encoding":
                coding += value.lower()
            elif name == b"connection" and b"close" in value.lower():
                self.last = True
        self._reply = reply
        if reply.status in (204, 304):
            self._left = 0
        elif coding:
            if coding != b"chunked" or lengths:
                raise NotHttp("an unknown transfer coding")
            self._chunked, self._left = True, 0
        elif lengths:
            length = lengths.pop()
            if lengths or not length.isdigit() or len(length) > 9:
                raise NotHttp("a broken length")
            self._left = int(length)
            if self._left > self._octets_max:
                raise TooLong

    def _read_body(self, octets: int) -> None:
        self._body += self._buffer[:octets]
        self._buffer = self._buffer[octets:]
        if len(self._body) > self._octets_max:
            raise TooLong
        if self._left is not None:
            self._left -= octets

    def _read_chunks(self) -> HttpResponse | None:
        """Read chunks; `_left` counts the octets left of the present one."""
        while True:
            if self._left:
                self._read_body(min(self._left, len(self._buffer)))
                if self._left:
                    return None
                self._chunk_ends = True
            if self._chunk_ends:
                if len(self._buffer) < 2:
                    return None
                if self._buffer[:2] != b"\r\n":
                    raise NotHttp("a broken chunk")
                self._buffer, self._chunk_ends = self._buffer[2:], False
            line, found, rest = self._buffer.partition(b"\r\n")
            if len(line) > _CHUNK_LINE_OCTETS_MAX:
                raise NotHttp("a broken chunk")
            if not found:
                return None
            if not (size := _CHUNK.fullmatch(line)):
                raise NotHttp("a broken chunk")
            self._chunks += 1
            if self._chunks > CHUNKS_MAX:
                raise NotHttp("too many chunks")
            if int(size[1], 16) == 0:
                if len(rest) < 2:
                    return None  # the size line is read again with what follows it
                if rest[:2] != b"\r\n":
                    raise NotHttp("trailers")
                self._buffer = rest[2:]
                return self._end()
            self._left, self._buffer = int(size[1], 16), rest

    _chunk_ends = False
