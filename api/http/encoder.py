"""Writes answers as octets: the application's, and those that the server gives itself."""

import re
from collections.abc import Callable
from http import HTTPStatus

import h11
from msgspec import Struct

from .parser import Fields
from .received_request import Message

ErrorBody = Callable[[str], bytes]  # a code of PROTOCOL_ERRORS -> a complete JSON error body

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
BODILESS = (204, 304)

_FIELDS = re.compile(rb"(?:[!#-'*+.0-9A-Z^_`a-z|~-]++: [\t -~\x80-\xff]*+\r\n)*+")
# RFC 9112 lets the phrase be empty, but some clients read a status line only with one.
_PHRASES = {status.value: status.phrase.encode() for status in HTTPStatus}
_STATUS_LINES = tuple(
    b"HTTP/1.1 %d %b\r\n" % (status, _PHRASES.get(status, b"Other")) for status in range(600)
)


# -- what the server answers itself -----------------------------------------------------------------


class ProtocolError(Struct, frozen=True):
    """How the server answers a request that the application does not, or no longer, answer."""

    status: int
    closes: bool = False  # the connection: where the next request begins is unknown
    headers: tuple[tuple[bytes, bytes], ...] = ()


PROTOCOL_ERRORS = {
    "invalid_request": ProtocolError(400, closes=True),
    "request_timeout": ProtocolError(408, closes=True),
    "payload_too_large": ProtocolError(413, closes=True),
    "internal_error": ProtocolError(500),
    "overloaded": ProtocolError(503, headers=((b"retry-after", b"1"),)),
}


def error_messages(code: str, body: bytes, request_id: str) -> tuple[Message, Message]:
    """The ASGI messages of a protocol error with this JSON body."""
    error = PROTOCOL_ERRORS[code]
    headers = [
        *error.headers,
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"x-request-id", request_id.encode()),
    ]
    if error.closes:
        headers.append((b"connection", b"close"))
    return (
        {"type": "http.response.start", "status": error.status, "headers": headers},
        {"type": "http.response.body", "body": body},
    )


# -- any answer -------------------------------------------------------------------------------------


class ResponseEncoder:
    """Encodes one answer; raises h11's LocalProtocolError for an invalid one.

    A body of unknown length is chunked; in HTTP/1.0 it ends with the connection. `closes`
    becomes true if the answer itself says so.
    """

    __slots__ = ("_begun", "_is_bodiless", "_is_chunked", "_left", "closes", "ended", "is_http10")

    def __init__(
        self, *, is_head: bool = False, is_http10: bool = False, closes: bool = False
    ) -> None:
        self.closes = closes or is_http10  # the connection closes after it
        self.ended = False
        self.is_http10 = is_http10
        self._is_bodiless = is_head
        self._begun = False
        self._is_chunked = False
        self._left: int | None = 0  # of a body with declared length; None: unknown

    def octets_of(self, message: Message, ours: Fields) -> bytes:
        """Return the octets of this ASGI message; `ours` are the server's own fields."""
        if message["type"] == "http.response.start" and not self._begun:
            return self._head(int(message["status"]), [*message["headers"], *ours])
        if message["type"] == "http.response.body" and self._begun and not self.ended:
            return self._body(message.get("body", b""), more=message.get("more_body", False))
        raise h11.LocalProtocolError(f"{message['type']} is out of turn")

    def _head(self, status: int, fields: Fields) -> bytes:
        length, says_close, is_chunked = None, False, False
        if status == 204:  # RFC 9110 8.6 forbids it here; frameworks send it
            fields = [field for field in fields if field[0] != b"content-length"]
        for name, value in fields:
            if name == b"content-length":
                length = int(value)
            elif name == b"connection" and value == b"close":
                says_close = True
        is_bodiless = self._is_bodiless or status in BODILESS
        if length is None and status not in BODILESS and not self.is_http10:
            is_chunked = True
            fields.append((b"Transfer-Encoding", b"chunked"))
        if self.closes and not says_close:
            fields.append((b"connection", b"close"))
        octets = head_of(status, fields)
        self.closes = self.closes or says_close
        self._is_bodiless, self._is_chunked, self._left = is_bodiless, is_chunked, length
        self._begun = True
        return octets

    def _body(self, octets: bytes, *, more: bool) -> bytes:
        self.ended = not more
        if self._is_bodiless:
            return b""
        if self._is_chunked:
            chunk = b"%x\r\n%b\r\n" % (len(octets), octets) if octets else b""
            return chunk if more else chunk + b"0\r\n\r\n"
        if self._left is not None:
            self._left -= len(octets)
            if self._left < 0 or (self._left and not more):
                raise h11.LocalProtocolError("the body does not have its declared length")
        return octets


def head_of(status: int, fields: Fields) -> bytes:
    """Return the head of an answer. Raises h11's LocalProtocolError for an invalid field."""
    lines = b"".join([b"%b: %b\r\n" % field for field in fields])
    if lines.count(b"\r\n") != len(fields) or not _FIELDS.fullmatch(lines):
        raise h11.LocalProtocolError("an invalid header field")
    return b"%b%b\r\n" % (_STATUS_LINES[status], lines)
