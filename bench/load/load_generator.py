"""A load generator that costs little: one thread, no framework, the same requests again.

It speaks just enough HTTP/1.1 to know where an answer ends, so that a request costs
it a tenth of what it costs a server.
"""

import re
import select
import socket
import time
from collections.abc import Iterable, Iterator

from msgspec import Struct, field

ANSWER_S = 60.0  # without a word from the server: it has died
READ_OCTETS = 1 << 18

_LENGTH = re.compile(rb"\r\ncontent-length: ([0-9]+)", re.IGNORECASE)
_END = b"\r\n0\r\n\r\n"  # of a chunked body, whose lines of JSON never hold it


class Unanswered(Exception):
    """The server did not answer as it should; the message has its words."""


class LoadResult(Struct):
    """The times of a number of requests, in milliseconds, one for each request."""

    took_s: float = 0.0
    cpu_s: float = 0.0  # of this client
    whole_ms: list[float] = field(default_factory=list)
    first_ms: list[float] = field(default_factory=list)  # until something of the body was there
    octets: int = 0

    @property
    def count(self) -> int:
        return len(self.whole_ms)

    @property
    def rate(self) -> float:
        return self.count / self.took_s


class _LoadConnection(Struct):
    """One connection, and the request that is under way on it."""

    sock: socket.socket
    began: float = 0.0
    first: float | None = None
    answer: bytearray = field(default_factory=bytearray)
    ends: int | None = None  # where the answer ends, if its head has said so
    head: int = -1  # where the body begins

    @property
    def status(self) -> int:
        return int(self.answer[9:12])

    def send(self, request: bytes) -> None:
        self.first, self.ends, self.head = None, None, -1
        self.answer.clear()
        self.began = time.perf_counter()
        self.sock.sendall(request)

    def receive(self) -> bool:
        """Read what is there; is the answer whole?"""
        octets = self.sock.recv(READ_OCTETS)
        if not octets:
            raise Unanswered(f"an answer ended early: {bytes(self.answer[:300])!r}")
        self.answer += octets
        if self.head < 0:
            self.head = self.answer.find(b"\r\n\r\n") + 4
            if self.head < 4:
                self.head = -1
                return False
            length = _LENGTH.search(self.answer, 0, self.head)
            self.ends = self.head + int(length[1]) if length else None
        if self.first is None and len(self.answer) > self.head:
            self.first = time.perf_counter()
        if self.ends is None:
            return self.answer.endswith(_END)
        return len(self.answer) >= self.ends


def request(
    method: str, path: str, *, host: str, key: str = "", body: bytes | None = None
) -> bytes:
    """The octets of a request."""
    lines = [f"{method} {path} HTTP/1.1", f"Host: {host}", "Accept: */*", "User-Agent: bench"]
    if key:
        lines.append(f"Authorization: Bearer {key}")
    if body is not None:
        lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    return "\r\n".join([*lines, "", ""]).encode() + (body or b"")


def generate_load(at: tuple[str, int], requests: Iterable[bytes], connections: int) -> LoadResult:
    """Send all requests; each connection sends one after the other. Raises Unanswered."""
    asked, left = LoadResult(), iter(requests)
    lines = _connected(at, connections)
    poll = select.epoll()
    by_number = {line.sock.fileno(): line for line in lines}
    cpu_s, began = time.process_time(), time.perf_counter()
    try:
        busy = sum(_requests(line, left, poll) for line in lines)
        while busy:
            ready = poll.poll(ANSWER_S)
            if not ready:
                raise Unanswered(f"no answer within {ANSWER_S} s")
            for number, _ in ready:
                line = by_number[number]
                if line.receive():
                    if line.status != 200:
                        raise Unanswered(line.answer.decode("latin-1"))
                    _note(asked, line)
                    busy -= not _requests(line, left, poll)
    finally:
        poll.close()
        for line in lines:
            line.sock.close()
    asked.took_s, asked.cpu_s = time.perf_counter() - began, time.process_time() - cpu_s
    return asked


class Flooded(Struct):
    """The results of requests sent at a fixed rate or all at once."""

    took_s: float = 0.0
    cpu_s: float = 0.0  # of this client
    served: int = 0
    shed_ms: list[float] = field(default_factory=list)  # until each 503 was there
    unsent: int = 0  # no connection was left for them


def flood(
    at: tuple[str, int], request: bytes, *, rate: float, seconds: float, connections: int
) -> Flooded:
    """Send `rate` requests per second, on at most `connections`. Raises Unanswered."""
    flooded = Flooded()
    poll = select.epoll()
    lines = _connected(at, connections)
    by_number = {line.sock.fileno(): line for line in lines}
    for number in by_number:
        poll.register(number, select.EPOLLIN)
    idle, sent = list(lines), 0
    cpu_s, began = time.process_time(), time.perf_counter()
    try:
        while (now := time.perf_counter() - began) < seconds:
            due = int(now * rate)
            while sent + flooded.unsent < due:
                if idle:
                    idle.pop().send(request)
                    sent += 1
                else:
                    flooded.unsent += 1
            for number, _ in poll.poll(0.002):
                line = by_number[number]
                if line.receive():
                    idle.append(line)
                    _judge(flooded, line)
    finally:
        poll.close()
        for line in lines:
            line.sock.close()
    flooded.took_s, flooded.cpu_s = time.perf_counter() - began, time.process_time() - cpu_s
    return flooded


def burst(at: tuple[str, int], request: bytes, count: int) -> Flooded:
    """Send `count` requests at once, each on its own connection; await all. Raises Unanswered."""
    came = Flooded()
    with select.epoll() as poll:
        lines = _connected(at, count)
        by_number = {line.sock.fileno(): line for line in lines}
        try:
            cpu_s, began = time.process_time(), time.perf_counter()
            for number, line in by_number.items():
                line.send(request)
                poll.register(number, select.EPOLLIN)
            left = count
            while left:
                ready = poll.poll(ANSWER_S)
                if not ready:
                    raise Unanswered(f"no answer within {ANSWER_S} s")
                for number, _ in ready:
                    if by_number[number].receive():
                        _judge(came, by_number[number])
                        poll.unregister(number)
                        left -= 1
        finally:
            for line in lines:
                line.sock.close()
    came.took_s, came.cpu_s = time.perf_counter() - began, time.process_time() - cpu_s
    return came


def _judge(flooded: Flooded, line: _LoadConnection) -> None:
    if line.status == 200:
        flooded.served += 1
    elif line.status == 503:
        flooded.shed_ms.append((time.perf_counter() - line.began) * 1000)
    else:
        raise Unanswered(line.answer.decode("latin-1"))


def _connected(at: tuple[str, int], count: int) -> list[_LoadConnection]:
    lines = [_LoadConnection(socket.create_connection(at, ANSWER_S)) for _ in range(count)]
    for line in lines:
        line.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return lines


def _requests(line: _LoadConnection, left: Iterator[bytes], poll: select.epoll) -> bool:
    """Send the next request; return False if there is none."""
    octets = next(left, None)
    if octets is None:
        if line.began:
            poll.unregister(line.sock)
        return False
    if not line.began:
        poll.register(line.sock, select.EPOLLIN)
    line.send(octets)
    return True


def _note(asked: LoadResult, line: _LoadConnection) -> None:
    now = time.perf_counter()
    asked.whole_ms.append((now - line.began) * 1000)
    asked.first_ms.append(((line.first or now) - line.began) * 1000)
    asked.octets += len(line.answer)
