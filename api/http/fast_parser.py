"""The fast path through HTTP/1.1: one simple request in one piece, and its answer.

Most clients send an unambiguous head followed by the whole body. Two regular expressions
parse it here, and the answer is joined from bytes. All other requests go through h11 and
hypercorn's protocol, which take ten times as long. `read_fast` accepts a request only if
every line of its head is beyond doubt; it rejects nothing, but leaves the decision to h11.
"""

import re
from dataclasses import dataclass
from typing import Any

import h11

from mailprobe.api.http.exchange import WHOLE_BODY, Message
from mailprobe.api.http.strict_h11 import HOST

Fields = list[tuple[bytes, bytes]]

# Possessive quantifiers, so that any head takes linear time. Fields that change the framing
# or the connection are left to h11.
_HEAD = re.compile(
    rb"(GET|POST) (/[!-~]*+) HTTP/1\.1\r\n"
    rb"((?:(?!(?i:connection:(?! keep-alive\r)|expect:|transfer-encoding:|upgrade:))"
    rb"[!#-'*+.0-9A-Z^_`a-z|~-]++:[\t -~\x80-\xff]*+\r\n)++)\r\n"
)
_LENGTH = re.compile(rb"[0-9]{1,9}")
_OUR_FIELDS = re.compile(rb"(?:[!#-'*+.0-9A-Z^_`a-z|~-]++: [\t -~\x80-\xff]*+\r\n)*+")
_STATUS_LINES = tuple(b"HTTP/1.1 %d \r\n" % status for status in range(600))


@dataclass(frozen=True, slots=True)
class FastRequest:
    """One complete request."""

    method: str
    target: bytes
    fields: Fields  # names in lower case
    body: bytes

    def scope(self, client: Any, server: Any) -> Message:
        """Return the ASGI scope that hypercorn would make, with the body in `extensions`."""
        path, _, query = self.target.partition(b"?")
        return {
            "type": "http",
            "http_version": "1.1",
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
            "extensions": {WHOLE_BODY: self.body},
        }


def read_fast(octets: bytes, head_octets_max: int) -> FastRequest | None:
    """Return the request if these octets are exactly one unambiguous request.

    None means that h11 must decide.
    """
    head = _HEAD.match(octets)
    if head is None or head.end() > head_octets_max:
        return None
    fields = [_field(line) for line in head[3].split(b"\r\n")[:-1]]
    hosts = [value for name, value in fields if name == b"host"]
    if len(hosts) != 1 or not HOST.fullmatch(hosts[0]):
        return None
    body = octets[head.end() :]
    if not _is_length(body, fields, head[1]):
        return None
    return FastRequest(head[1].decode(), head[2], fields, body)


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


class FastAnswer:
    """Formats the answer to a fast request; raises h11's LocalProtocolError for an invalid one."""

    __slots__ = ("_begun", "_chunked", "_left", "closes", "ended")

    def __init__(self) -> None:
        self.closes = False  # the connection closes after it
        self.ended = False
        self._begun = False
        self._chunked = False
        self._left = 0  # of a body with declared length

    def octets_of(self, message: Message, ours: Fields) -> bytes:
        """Return the octets of this ASGI message; `ours` are the server's own fields."""
        if message["type"] == "http.response.start" and not self._begun:
            return self._head(int(message["status"]), [*message["headers"], *ours])
        if message["type"] == "http.response.body" and self._begun and not self.ended:
            return self._body(message.get("body", b""), more=message.get("more_body", False))
        raise h11.LocalProtocolError(f"{message['type']} is out of turn")

    def _head(self, status: int, fields: Fields) -> bytes:
        length = None
        for name, value in fields:
            if name == b"content-length":
                length = int(value)
            elif name == b"connection" and value == b"close":
                self.closes = True
        if status in (204, 304):
            length = 0
        elif length is None:
            self._chunked = True
            fields.append((b"Transfer-Encoding", b"chunked"))
        octets = head_of(status, fields)
        self._left, self._begun = length or 0, True
        return octets

    def _body(self, octets: bytes, *, more: bool) -> bytes:
        self.ended = not more
        if self._chunked:
            chunk = b"%x\r\n%b\r\n" % (len(octets), octets) if octets else b""
            return chunk if more else chunk + b"0\r\n\r\n"
        self._left -= len(octets)
        if self._left < 0 or (self._left and not more):
            raise h11.LocalProtocolError("the body does not have its declared length")
        return octets


def head_of(status: int, fields: Fields) -> bytes:
    """Return the head of an answer. Raises h11's LocalProtocolError for an invalid field."""
    lines = b"".join([b"%b: %b\r\n" % field for field in fields])
    if lines.count(b"\r\n") != len(fields) or not _OUR_FIELDS.fullmatch(lines):
        raise h11.LocalProtocolError("an invalid header field")
    return b"%b%b\r\n" % (_STATUS_LINES[status], lines)
