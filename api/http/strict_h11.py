"""h11 made strict: accepts only requests that every proxy reads in the same way.

Where two servers disagree on where a request ends, request smuggling is possible
(RFC 9112 11.2). `StrictBuffer` refuses such heads and chunks before h11 parses them;
`admit` refuses requests that h11 accepts and this server does not serve.

Each rule has a test in tests/api/http/test_strict_h11.py that fails with h11 alone.
"""

import re

import h11
from h11._receivebuffer import ReceiveBuffer  # no public way to see the octets of a head

# A line ends in CRLF only. RFC 9112 2.2 allows leniency, but two recipients that are lenient
# in different ways make request smuggling possible.
_LONE = re.compile(rb"(?<!\r)\n|\r(?!\n)|\0")
_FOLD = re.compile(rb"\r\n[ \t]")  # RFC 9112 5.2
_FRAMING = re.compile(rb"\r\n(content-length|transfer-encoding)[ \t]*:", re.IGNORECASE)
_UPGRADE = re.compile(rb"\r\nupgrade:[^\r\n]*", re.IGNORECASE)
_CHUNK = re.compile(rb"[0-9a-f]{1,16}(;[\t -~]*)?\r\n", re.IGNORECASE)
CHUNK_LINE_OCTETS_MAX = 256  # chunk extensions are not used, and not counted as body


class StrictBuffer(ReceiveBuffer):
    """h11's buffer, which refuses malformed heads and trailers.

    Refused are: a line that does not end in CRLF, a folded line, more than one framing field
    (RFC 9112 6.3), a head that is too long, a chunk size with other characters than
    hexadecimal digits. Upgrade fields are dropped, as RFC 9110 7.8 allows: no upgrade is
    supported, and h11 would stop reading to wait for a decision.
    """

    def __init__(self, octets_max: int, connection: h11.Connection) -> None:
        super().__init__()
        self._octets_max = octets_max
        self._connection = connection

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
        return [bytearray(line) for line in _UPGRADE.sub(b"", head).split(b"\r\n")]

    def is_next_line_obviously_invalid_request_line(self) -> bool:
        return self._data != b"\r" and super().is_next_line_obviously_invalid_request_line()

    def maybe_extract_next_line(self) -> bytearray | None:  # of a chunk
        line = super().maybe_extract_next_line()
        octets = len(self._data) if line is None else len(line)
        if octets > CHUNK_LINE_OCTETS_MAX or (line is not None and not _CHUNK.fullmatch(line)):
            raise h11.LocalProtocolError("a chunk without a valid size")
        return line


def strict_connection(head_octets_max: int) -> tuple[h11.Connection, StrictBuffer]:
    """h11's server side behind a StrictBuffer, and that buffer."""
    connection = h11.Connection(h11.SERVER, max_incomplete_event_size=head_octets_max)
    connection._receive_buffer = buffer = StrictBuffer(head_octets_max, connection)
    return connection, buffer


# A host that frameworks can route by; other values would cause an error 500.
_LABEL = rb"[a-z0-9_-]{1,63}"
HOST = re.compile(
    rb"(\[[0-9a-f:.]{2,45}\]|%b(\.%b){0,63}\.?)?(:[0-9]{0,5})?" % (_LABEL, _LABEL), re.IGNORECASE
)
_ABSOLUTE = re.compile(rb"https?://[^/?#]+", re.IGNORECASE)


def admit(request: h11.Request) -> h11.Request | None:
    """Return the request with its target in origin form, or None to refuse it.

    Only HTTP/1.0 and 1.1 are served. HTTP/2 with prior knowledge ("PRI * HTTP/2.0") is
    refused, because in hypercorn's HTTP/2 a DATA frame after an early answer ends the
    process. A transfer coding in HTTP/1.0 is faulty framing (RFC 9112 6.1). CONNECT, `*`
    and an invalid host name match no resource here. Methods are case-sensitive (RFC 9110 9.1).
    """
    if request.http_version not in (b"1.0", b"1.1"):
        return None
    if request.method != request.method.upper():  # hypercorn would read it as upper case
        return None
    for name, value in request.headers:
        if name == b"host" and not HOST.fullmatch(value):
            return None
        if name == b"transfer-encoding" and request.http_version == b"1.0":
            return None
    if request.target.startswith(b"/"):
        return request
    absolute = _ABSOLUTE.match(request.target)
    if absolute is None:
        return None
    rest = request.target[absolute.end() :]
    return h11.Request(
        method=request.method,
        target=rest if rest.startswith(b"/") else b"/" + rest,
        headers=request.headers.raw_items(),
        http_version=request.http_version,
    )
