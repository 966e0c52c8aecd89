"""The short way through HTTP/1.1: one plain request in one piece, and its answer.

What most clients send is a head that no two servers read differently, with its whole
body behind it. That is read here by two expressions and answered by joining octets;
all else goes through h11 and hypercorn's protocol, which take ten times as long. A
request is plain where every line of its head is beyond doubt (`read_fast`); where it
is not, nothing is said of it, and h11 has to tell.
"""

import re
from dataclasses import dataclass
from typing import Any

import h11

from mailprobe.api.http.exchange import WHOLE_BODY, Message
from mailprobe.api.http.strict_h11 import HOST

Fields = list[tuple[bytes, bytes]]

# Possessive, so that a head of any kind takes time in proportion to its length. What
# changes where a message ends, or what the connection is for, is not plain.
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
    """One whole request."""

    method: str
    target: bytes
    fields: Fields  # names in lower case
    body: bytes

    def scope(self, client: Any, server: Any) -> Message:
        """As hypercorn makes it, and the body: nobody need wait for what is there."""
        path, _, query = self.target.partition(b"?")
        return {
            "type": "http",
            "http_version": "1.1",
            "asgi": {"spec_version": "2.1", "version": "3.0"},
            "method": self.method,
            "scheme": "http",
            "path": path.decode("ascii"),  # an encoded path is another path
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
    """The request, if these are one and nothing else, so plain that no server reads it otherwise.

    None says nothing: it may be one all the same.
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
    """Do the fields say that the body is just as long? A GET has none."""
    said = [value for name, value in fields if name == b"content-length"]
    if method == b"GET":
        return not said and not body
    return len(said) == 1 and _LENGTH.fullmatch(said[0]) is not None and int(said[0]) == len(body)


class FastAnswer:
    """The answer to a plain request, message by message; h11's LocalProtocolError for what is none."""

    __slots__ = ("_begun", "_chunked", "_left", "closes", "ended")

    def __init__(self) -> None:
        self.closes = False  # the connection ends with it
        self.ended = False
        self._begun = False
        self._chunked = False
        self._left = 0  # of a body whose length was said

    def octets_of(self, message: Message, ours: Fields) -> bytes:
        """Of this message of the application; `ours` are the server's own fields."""
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
            raise h11.LocalProtocolError("a body of another length than was said")
        return octets


def head_of(status: int, fields: Fields) -> bytes:
    """The head of an answer. Raises h11's LocalProtocolError for a field that is none."""
    lines = b"".join([b"%b: %b\r\n" % field for field in fields])
    if lines.count(b"\r\n") != len(fields) or not _OUR_FIELDS.fullmatch(lines):
        raise h11.LocalProtocolError("a field that no header has")
    return b"%b%b\r\n" % (_STATUS_LINES[status], lines)
