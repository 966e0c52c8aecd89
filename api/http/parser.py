"""Reads requests: one interface, with a fast reader and a strict one.

Most clients send an unambiguous head followed by the whole body in one piece. `FastReader`
parses that with two regular expressions. It accepts a request only if every line of its head
is beyond doubt, and leaves all others to `StrictReader`, which is h11 made strict and takes
ten times as long. Both report the same events, and only the strict one refuses a request:
which of them reads a request decides nothing but speed (tests/api/http/test_two_readers.py).

Where two servers disagree on where a request ends, request smuggling is possible
(RFC 9112 11.2). `StrictBuffer` refuses such heads and chunks before h11 parses them;
`_admit` refuses requests that h11 accepts and this server does not serve.
Each rule has a test in tests/api/http/test_strict_h11.py that fails with h11 alone.
"""

import re
from collections import deque
from enum import Enum, auto
from typing import Protocol

import h11
from h11._receivebuffer import ReceiveBuffer  # no public way to see the octets of a head
from msgspec import Struct
from msgspec.structs import replace

from .received_request import WHOLE_BODY

ONE_PIECE_CHUNKS_MAX = 8  # of a body read before it is asked for: a chunk costs some 20 us

Fields = list[tuple[bytes, bytes]]


class MalformedRequest(Exception):
    """The request must be refused, and its connection closed: where it ends is unknown."""


class Mark(Enum):
    """An event without a value of its own."""

    END = auto()  # of a request, whose body is whole
    NEED_DATA = auto()


class RequestHead(Struct, frozen=True):
    """The head of a request whose framing is unambiguous; `target` is in origin form."""

    method: str
    target: bytes
    fields: Fields  # names in lower case
    version: str = "1.1"
    octets: int | None = 0  # the declared length of the body; None: it comes in chunks
    body: bytes | None = None  # whole, if it came with the head: then no more events follow
    closes: bool = False  # the client wants the connection closed after the answer
    expects_continue: bool = False
    upgrade: bytes = b""  # the value of a valid Upgrade field

    @property
    def path(self) -> bytes:
        return self.target.partition(b"?")[0]

    @property
    def is_websocket(self) -> bool:
        """Does the client ask for a WebSocket (RFC 6455 4.2.1)?"""
        if self.upgrade.lower() != b"websocket" or (self.method, self.octets) != ("GET", 0):
            return False
        fields = dict(self.fields)
        return b"sec-websocket-key" in fields and fields.get(b"sec-websocket-version") == b"13"

    def scope(self, client: object, server: object) -> dict[str, object]:
        """The ASGI scope, as hypercorn makes it, with a whole body in `extensions`."""
        path, _, query = self.target.partition(b"?")
        return {
            "type": "http",
            "http_version": self.version,
            "asgi": {"spec_version": "2.1", "version": "3.0"},
            "method": self.method,
            "scheme": "http",
            "path": path.decode("ascii"),  # not percent-decoded: an encoded path is another path
            "raw_path": path,
            "query_string": query,
            "root_path": "",
            "headers": self.fields,
            "client": client,
            "server": server,
            "state": {},
            "extensions": {} if self.body is None else {WHOLE_BODY: self.body},
        }


ReadEvent = RequestHead | bytes | Mark  # bytes: a part of the body


class RequestReader(Protocol):
    """Octets of a client in, requests out."""

    def receive(self, octets: bytes) -> bool:
        """Accept the octets; False if this reader cannot read them and has kept nothing."""

    def next_event(self) -> ReadEvent:
        """Return the next event of what was received. Raises MalformedRequest."""


# -- the fast reader ----------------------------------------------------------------------------

# A host that frameworks can route by; other values would cause an error 500.
_LABEL = rb"[a-z0-9_-]{1,63}"
_HOST = re.compile(
    rb"(\[[0-9a-f:.]{2,45}\]|%b(\.%b){0,63}\.?)?(:[0-9]{0,5})?" % (_LABEL, _LABEL), re.IGNORECASE
)
# Possessive quantifiers, so that any head takes linear time. Fields that change the framing
# or the connection are left to h11.
_HEAD = re.compile(
    rb"(GET|POST) (/[!-~]*+) HTTP/1\.1\r\n"
    rb"((?:(?!(?i:connection:(?! keep-alive\r)|expect:|transfer-encoding:|upgrade:))"
    rb"[!#-'*+.0-9A-Z^_`a-z|~-]++:[\t -~\x80-\xff]*+\r\n)++)\r\n"
)
_LENGTH = re.compile(rb"[0-9]{1,9}")


class FastReader:
    """Reads octets that are exactly one unambiguous request."""

    __slots__ = ("_head", "_head_octets_max")

    def __init__(self, head_octets_max: int) -> None:
        self._head_octets_max = head_octets_max
        self._head: RequestHead | None = None

    def receive(self, octets: bytes) -> bool:
        self._head = read_fast(octets, self._head_octets_max)
        return self._head is not None

    def next_event(self) -> ReadEvent:
        head, self._head = self._head, None
        return Mark.NEED_DATA if head is None else head


def read_fast(octets: bytes, head_octets_max: int) -> RequestHead | None:
    """Return the request if these octets are exactly one unambiguous request, else None."""
    found = _HEAD.match(octets)
    if found is None or found.end() > head_octets_max:
        return None
    fields = [_field(line) for line in found[3].split(b"\r\n")[:-1]]
    hosts = [value for name, value in fields if name == b"host"]
    if len(hosts) != 1 or not _HOST.fullmatch(hosts[0]):
        return None
    body = octets[found.end() :]
    if not _is_length(body, fields, found[1]):
        return None
    return RequestHead(found[1].decode(), found[2], fields, octets=len(body), body=body)


def _field(line: bytes) -> tuple[bytes, bytes]:
    name, _, value = line.partition(b":")
    return name.lower(), value.strip(b" \t")


def _is_length(body: bytes, fields: Fields, method: bytes) -> bool:
    """Does the body have the declared length? A GET must have neither."""
    lengths = [value for name, value in fields if name == b"content-length"]
    if method == b"GET":
        return not lengths and not body
    return (
        len(lengths) == 1
        and _LENGTH.fullmatch(lengths[0]) is not None
        and int(lengths[0]) == len(body)
    )


# -- the strict reader --------------------------------------------------------------------------


class StrictReader:
    """h11 behind a StrictBuffer: reads every request that is sound, in whatever pieces it comes.

    A body that came with its head is reported with it, as the fast reader does.

    Only h11's reading half is used, so each request has an h11 connection of its own, which
    begins with the octets that the one before has left. None is kept between requests.
    """

    __slots__ = ("_buffer", "_h11", "_head_octets_max", "_parts", "is_head")

    def __init__(self, head_octets_max: int) -> None:
        self._head_octets_max = head_octets_max
        self._parts: deque[bytes] = deque()  # of a body, read but not reported yet
        self._h11: h11.Connection | None = None
        self._buffer: StrictBuffer | None = None
        self.is_head = False  # the last request was a HEAD, even if it was malformed

    @property
    def is_amid_request(self) -> bool:
        """Is a part of a request's body still missing, or its end unknown?"""
        return self._h11 is not None and self._h11.their_state in (h11.SEND_BODY, h11.ERROR)

    @property
    def has_input(self) -> bool:
        """Are there octets that no event has reported yet?"""
        return bool(self._parts or self._buffer)

    def release_input(self) -> bytes:
        """Return the octets that no event has reported yet, and forget them."""
        octets = b"" if self._buffer is None else bytes(self._buffer)
        self._h11 = self._buffer = None
        return octets

    def receive(self, octets: bytes) -> bool:
        if self._h11 is None:
            octets_max = self._head_octets_max
            self._h11 = h11.Connection(h11.SERVER, max_incomplete_event_size=octets_max)
            self._buffer = StrictBuffer(octets_max, self._h11)
            self._h11._receive_buffer = self._buffer
        self._h11.receive_data(octets)
        return True

    def next_event(self) -> ReadEvent:
        if self._parts:
            return self._parts.popleft()
        if self._is_request_over:
            self.is_head = False
            if octets := self.release_input():
                self.receive(octets)
        if self._h11 is None or self._buffer is None:
            return Mark.NEED_DATA
        try:
            event = self._h11.next_event()
        except h11.RemoteProtocolError as error:
            raise MalformedRequest(str(error)) from error
        if isinstance(event, h11.Request):
            self.is_head = event.method == b"HEAD"
            return self._with_body(_admit(event, self._buffer.upgrades), self._h11)
        if isinstance(event, h11.Data):
            return bytes(event.data)
        return Mark.END if isinstance(event, h11.EndOfMessage) else Mark.NEED_DATA

    def _with_body(self, head: RequestHead, connection: h11.Connection) -> RequestHead:
        """The head with its body if all of it is here; else the head alone, parts follow."""
        while len(self._parts) < ONE_PIECE_CHUNKS_MAX:
            try:
                event = connection.next_event()
            except h11.RemoteProtocolError:
                break  # h11 raises it again at the next event, behind the parts
            if isinstance(event, h11.Data):
                self._parts.append(bytes(event.data))
                continue
            if isinstance(event, h11.EndOfMessage):
                body = b"".join(self._parts)
                self._parts.clear()
                return replace(head, body=body)
            break
        return head

    @property
    def _is_request_over(self) -> bool:
        states = (h11.IDLE, h11.SEND_BODY, h11.ERROR)
        return self._h11 is not None and self._h11.their_state not in states


# A line ends in CRLF only. RFC 9112 2.2 allows leniency, but two recipients that are lenient
# in different ways make request smuggling possible.
_LONE = re.compile(rb"(?<!\r)\n|\r(?!\n)|\0")
_FOLD = re.compile(rb"\r\n[ \t]")  # RFC 9112 5.2
_FRAMING = re.compile(rb"\r\n(content-length|transfer-encoding)[ \t]*:", re.IGNORECASE)
_UPGRADE = re.compile(rb"\r\nupgrade:[ \t]*([^\r\n]*)", re.IGNORECASE)
_CHUNK = re.compile(rb"[0-9a-f]{1,16}(;[\t -~]*)?\r\n", re.IGNORECASE)
CHUNK_LINE_OCTETS_MAX = 256  # chunk extensions are not used, and not counted as body


class StrictBuffer(ReceiveBuffer):
    """h11's buffer, which refuses malformed heads and trailers.

    Refused are: a line that does not end in CRLF, a folded line, more than one framing field
    (RFC 9112 6.3), a head that is too long, a chunk size with other characters than
    hexadecimal digits. Upgrade fields are kept in `upgrades` and not shown to h11, which
    would stop reading to wait for a decision; RFC 9110 7.8 allows ignoring them.
    """

    def __init__(self, octets_max: int, connection: h11.Connection) -> None:
        super().__init__()
        self._octets_max = octets_max
        self._connection = connection
        self.upgrades: list[bytes] = []

    def maybe_extract_lines(self) -> list[bytearray] | None:
        if self._connection.their_state is h11.IDLE:
            while self._data[:2] == b"\r\n":
                self._extract(2)  # before a request line (RFC 9112 2.2)
            if not self._data or self._data == b"\r":
                return None
        elif self._data[:2] == b"\r\n":
            self._extract(2)
            return []
        end = self._data.find(b"\r\n\r\n", max(0, self._multiple_lines_search - 3))
        seen = len(self._data) if end < 0 else end
        lone = _LONE.search(self._data, max(0, self._multiple_lines_search - 1), seen)
        if lone and not (end < 0 and lone.end() == seen and lone[0] == b"\r"):
            raise h11.LocalProtocolError("a line that does not end in CRLF")
        if seen > self._octets_max:
            raise h11.LocalProtocolError("a head that is too long", error_status_hint=431)
        if end < 0:
            self._multiple_lines_search = seen
            return None
        head = bytes(self._extract(end + 4)[:-4])
        if _FOLD.search(head):
            raise h11.LocalProtocolError("a folded line")
        if len(_FRAMING.findall(head)) > 1:
            raise h11.LocalProtocolError("more than one framing field")
        self.upgrades = [value.strip(b" \t") for value in _UPGRADE.findall(head)]
        return [bytearray(line) for line in _UPGRADE.sub(b"", head).split(b"\r\n")]

    def is_next_line_obviously_invalid_request_line(self) -> bool:
        return self._data != b"\r" and super().is_next_line_obviously_invalid_request_line()

    def maybe_extract_next_line(self) -> bytearray | None:  # of a chunk
        line = super().maybe_extract_next_line()
        octets = len(self._data) if line is None else len(line)
        if octets > CHUNK_LINE_OCTETS_MAX or (line is not None and not _CHUNK.fullmatch(line)):
            raise h11.LocalProtocolError("a chunk without a valid size")
        return line


_ABSOLUTE = re.compile(rb"https?://[^/?#]+", re.IGNORECASE)


def _admit(request: h11.Request, upgrades: list[bytes]) -> RequestHead:
    """Return the request's head, its target in origin form. Raises MalformedRequest.

    Only HTTP/1.0 and 1.1 are served. HTTP/2 with prior knowledge ("PRI * HTTP/2.0") is
    refused. A transfer coding in HTTP/1.0 is faulty framing (RFC 9112 6.1). CONNECT, `*`
    and an invalid host name match no resource here. Methods are case-sensitive (RFC 9110 9.1).
    """
    if request.http_version not in (b"1.0", b"1.1"):
        raise MalformedRequest("another version")
    if request.method != request.method.upper():  # frameworks would read it as upper case
        raise MalformedRequest("a method in lower case")
    target = request.target
    if not target.startswith(b"/"):
        absolute = _ABSOLUTE.match(target)
        if absolute is None:
            raise MalformedRequest("a target that is not a path")
        rest = target[absolute.end() :]
        target = rest if rest.startswith(b"/") else b"/" + rest
    return _head_of(request, target, upgrades)


def _head_of(request: h11.Request, target: bytes, upgrades: list[bytes]) -> RequestHead:
    octets: int | None = 0
    closes = request.http_version == b"1.0"
    expects_continue = False
    tokens: set[bytes] = set()
    for name, value in request.headers:
        if name == b"host" and not _HOST.fullmatch(value):
            raise MalformedRequest("a host that is not a name")
        if name == b"content-length":
            octets = int(value)
        elif name == b"transfer-encoding":
            if request.http_version == b"1.0":
                raise MalformedRequest("a transfer coding in HTTP/1.0")
            octets = None
        elif name == b"connection":
            tokens |= {token.strip().lower() for token in value.split(b",")}
        elif name == b"expect" and value.lower() == b"100-continue":
            expects_continue = request.http_version == b"1.1"
    can_upgrade = len(upgrades) == 1 and b"upgrade" in tokens and request.http_version == b"1.1"
    return RequestHead(
        request.method.decode(),
        target,
        list(request.headers),
        request.http_version.decode(),
        octets,
        closes=closes or b"close" in tokens,
        expects_continue=expects_continue,
        upgrade=upgrades[0] if can_upgrade else b"",
    )
