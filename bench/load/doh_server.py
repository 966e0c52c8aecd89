"""A DNS-over-HTTPS resolver that costs next to nothing, in a process of its own: for bench/suites/dns.py.

    python -m mailprobe.bench.load.doh_server h2 | http/1.1

prints its URL and the file of its authority as one JSON line, and serves until its
input ends. Every domain has two exchanges of its own, every host one address: the
answers are put together octet by octet, and frames are read and written by hand, for
the load side shall not be the limit. It is not a model of a resolver; the lab's is.
"""

import json
import socket
import ssl
import struct
import sys
import tempfile
import threading
from collections import deque
from contextlib import suppress
from pathlib import Path

import trustme
from msgspec import Struct, field

ADDRESS = "127.0.0.1"
PATH = "/dns-query"
READ_OCTETS = 64 * 1024
STREAMS_MAX = 250
WINDOW = 65_535  # of a connection, before its peer has said more

DATA, HEADERS, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 4, 6, 7, 8
END_STREAM, ACK, END_HEADERS = 1, 1, 4
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

# :status 200, the type and the caching as entries of the dynamic table (RFC 7541): the
# first answer of a connection puts them there. The length stays outside of it.
FIRST_FIELDS = b"\x88\x5f\x17application/dns-message\x58\x0cmax-age=3600"
NEXT_FIELDS = b"\x88\xbf\xbe"


def answer_to(question: bytes) -> bytes:
    """Two exchanges under the name asked about, or one address."""
    asked = question[12 : question.index(b"\0", 12) + 5]
    body = b"\0\0\x81\x80\0\1" + bytes(6) + asked
    kind = asked[-3]
    if kind == 15:
        records = (
            b"\xc0\x0c\0\x0f\0\1\0\0\x0e\x10\0\x08\0\x0a\x03mx1\xc0\x0c"
            b"\xc0\x0c\0\x0f\0\1\0\0\x0e\x10\0\x08\0\x14\x03mx2\xc0\x0c"
        )
        return body[:7] + b"\2" + body[8:] + records
    if kind == 1:
        return body[:7] + b"\1" + body[8:] + b"\xc0\x0c\0\1\0\1\0\0\x0e\x10\0\x04\x0b\1\2\3"
    return body


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return (
        struct.pack(">HBBBI", len(payload) >> 8, len(payload) & 255, kind, flags, stream) + payload
    )


class H2(Struct):
    """The server's side of one HTTP/2 connection, for clients that we know."""

    window: int = WINDOW
    fields: bytes = FIRST_FIELDS
    buffer: bytearray = field(default_factory=bytearray)
    greeted: bool = False
    questions: dict[int, bytearray] = field(default_factory=dict)
    held: deque[tuple[int, bytes]] = field(default_factory=deque)  # answers without a window

    def receive(self, octets: bytes) -> bytes:
        """What is to be written after these octets."""
        self.buffer += octets
        out = bytearray()
        if not self.greeted:
            if len(self.buffer) < len(PREFACE):
                return b""
            del self.buffer[: len(PREFACE)]
            self.greeted = True
            out += frame(SETTINGS, 0, 0, struct.pack(">HI", 3, STREAMS_MAX))
        at, read = 0, 0
        while len(self.buffer) - at >= 9:
            high, low, kind, flags, stream = struct.unpack_from(">HBBBI", self.buffer, at)
            length = high << 8 | low
            if len(self.buffer) - at < 9 + length:
                break
            payload = bytes(self.buffer[at + 9 : at + 9 + length])
            at += 9 + length
            read += length if kind == DATA else 0
            self._receive_frame(kind, flags, stream, payload, out)
        del self.buffer[:at]
        if read:
            out += frame(WINDOW_UPDATE, 0, 0, read.to_bytes(4, "big"))
        while self.held and self.window >= len(self.held[0][1]):
            self._answer(*self.held.popleft(), out)
        return bytes(out)

    def _receive_frame(
        self, kind: int, flags: int, stream: int, payload: bytes, out: bytearray
    ) -> None:
        if kind == HEADERS:
            self.questions[stream] = bytearray()
        elif kind == DATA:
            question = self.questions[stream]
            question += payload
            if flags & END_STREAM:
                self.held.append((stream, answer_to(bytes(self.questions.pop(stream)))))
        elif kind == SETTINGS and not flags & ACK:
            out += frame(SETTINGS, ACK, 0, b"")
        elif kind == PING and not flags & ACK:
            out += frame(PING, ACK, 0, payload)
        elif kind == WINDOW_UPDATE and stream == 0:
            self.window += int.from_bytes(payload, "big")

    def _answer(self, stream: int, answer: bytes, out: bytearray) -> None:
        length = str(len(answer)).encode()
        fields = self.fields + b"\x0f\x0d" + bytes([len(length)]) + length
        self.fields = NEXT_FIELDS
        self.window -= len(answer)
        out += frame(HEADERS, END_HEADERS, stream, fields) + frame(DATA, END_STREAM, stream, answer)


class Http1(Struct):
    """The server's side of one HTTP/1.1 connection, for clients that we know."""

    buffer: bytes = b""

    def receive(self, octets: bytes) -> bytes:
        self.buffer += octets
        head, found, rest = self.buffer.partition(b"\r\n\r\n")
        if not found:
            return b""
        length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n", 1)[0])
        if len(rest) < length:
            return b""
        self.buffer = rest[length:]
        answer = answer_to(rest[:length])
        return (
            b"HTTP/1.1 200 OK\r\nContent-Type: application/dns-message\r\n"
            b"Cache-Control: max-age=3600\r\nContent-Length: %d\r\n\r\n" % len(answer)
        ) + answer


def converse(connection: socket.socket, tls: ssl.SSLContext) -> None:
    with suppress(OSError), tls.wrap_socket(connection, server_side=True) as stream:
        side = H2() if stream.selected_alpn_protocol() == "h2" else Http1()
        while octets := stream.recv(READ_OCTETS):
            if out := side.receive(octets):
                stream.sendall(out)


def main(protocol: str) -> None:
    authority = trustme.CA(organization_name="mailprobe bench")
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.set_alpn_protocols([protocol])
    authority.issue_cert(ADDRESS).configure_cert(tls)
    with tempfile.TemporaryDirectory() as folder, socket.create_server((ADDRESS, 0)) as listener:
        trusted = Path(folder) / "authority.pem"
        authority.cert_pem.write_to_path(str(trusted))
        url = f"https://{ADDRESS}:{listener.getsockname()[1]}{PATH}"
        print(json.dumps({"url": url, "ca_file": str(trusted)}), flush=True)
        threading.Thread(target=accept, args=(listener, tls), daemon=True).start()
        sys.stdin.read()


def accept(listener: socket.socket, tls: ssl.SSLContext) -> None:
    while True:
        connection, _ = listener.accept()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        threading.Thread(target=converse, args=(connection, tls), daemon=True).start()


if __name__ == "__main__":
    main(sys.argv[1])
