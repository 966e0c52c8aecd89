"""Mail hosts that cost next to nothing, in a process of their own: the load side of a bench.

    with start_sink(hosts=200, pipelining=False) as sink:
        settings = Settings.read(sink.env).engine
        ... sink.mailbox(17) ...
        print(sink.cpu_s())

One loop over epoll, one listening socket on the loopback device (all of 127.0.0.0/8,
nothing else), no state but a connection's unread octets: 1 to 7 µs a recipient, so that
the prober is what is measured. It knows the commands that a prober says, accepts
mailboxes of `ok` and a number and refuses the others. A resolver (DNS over HTTP/1.1)
answers for its domains in the same process.
"""

import json
import os
import select
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from msgspec import Struct

from ..processes import stop_process

ACCEPTED = b"250 2.1.5 Ok\r\n"
REFUSED = b"550 5.1.1 Mailbox does not exist\r\n"
REPLIES = {
    b"MAIL": b"250 2.1.0 Ok\r\n",
    b"RSET": b"250 2.0.0 Ok\r\n",
    b"NOOP": b"250 2.0.0 Ok\r\n",
    b"HELO": b"250 sink\r\n",
    b"QUIT": b"221 2.0.0 Bye\r\n",
}
# A host that does not tell its software, or is named as one that tolerates many refusals.
BANNERS = {False: b"220 sink ESMTP ready\r\n", True: b"220 sink ESMTP Postfix\r\n"}
OFFER = {True: b"250-sink\r\n250 PIPELINING\r\n", False: b"250 sink\r\n"}
RECEIVE_OCTETS = 64 * 1024
BACKLOG = 4096
STOP_S = 5.0
TTL = (86_400).to_bytes(4, "big")
_TYPE_A, _TYPE_MX = b"\0\1", b"\0\x0f"


class SmtpSink(Struct, frozen=True):
    """Running mail hosts: `domains` domains, spread over `hosts` addresses."""

    env: dict[str, str]  # the settings that reach it
    hosts: int
    domains: int
    process: "subprocess.Popen[str]"

    def domain(self, number: int) -> str:
        """The n-th domain; the count begins anew behind the last."""
        return f"d{number % self.domains}.test"

    def mailbox(self, number: int, *, exists: bool = True) -> str:
        """An address at the n-th domain that no other number has."""
        return f"{'ok' if exists else 'no'}{number}@{self.domain(number)}"

    def turnarounds(self) -> int:
        """How often it has received something from mail clients."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("?")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())

    def cpu_s(self) -> float:
        """The processor time that it has used (proc(5); to 10 ms)."""
        with open(f"/proc/{self.process.pid}/stat", encoding="ascii") as stat:
            fields = stat.read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def start_sink(
    *,
    hosts: int,
    domains: int | None = None,
    delay_ms: float = 0.0,
    pipelining: bool = True,
    named: bool = False,
    accepts_all: bool = False,
) -> Iterator[SmtpSink]:
    """Run mail hosts as long as the block lasts. Each reply is `delay_ms` late, in its turn.

    `named`: their greeting names a software; `accepts_all`: they accept every recipient. Replies to
    commands that were written together come together, as over a long line.
    """
    domains = domains or hosts
    words = json.dumps(
        {
            "hosts": hosts,
            "domains": domains,
            "delay_ms": delay_ms,
            "pipelining": pipelining,
            "named": named,
            "accepts_all": accepts_all,
        }
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "mailprobe.bench.load.smtp_sink", words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,  # a Ctrl-C is for us alone
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        ports = json.loads(process.stdout.readline() or "null")
        if ports is None:
            raise OSError("the sink did not start; it has said why")
        env = {
            "MAILPROBE_DOH_URLS": f"http://127.0.0.1:{ports['doh']}/dns-query",
            "MAILPROBE_SMTP_PORT": str(ports["smtp"]),
            "MAILPROBE_ALLOW_PRIVATE": "1",
            "MAILPROBE_SMTP_HELO": "bench.test",
        }
        yield SmtpSink(env, hosts, domains, process)
    finally:
        stop_process(process, STOP_S)


def host_address(number: int) -> str:
    """The n-th host's address, in 127.64.0.0/10, which other programs rarely use."""
    return f"127.{64 + (number >> 16)}.{number >> 8 & 255}.{number & 255}"


def _is_living(line: bytes) -> bool:
    return line[8:11] == b"<ok" and line[11:12].isdigit()  # a random name has letters there


class _SmtpSinkProcess:
    def __init__(
        self,
        hosts: int,
        domains: int,
        delay_ms: float,
        pipelining: bool,
        named: bool,
        accepts_all: bool,
    ) -> None:
        self._banner = BANNERS[named]
        self._accepts_all = accepts_all
        self._received = 0
        self._hosts = hosts
        self._delay_s = delay_ms / 1000
        self._offer = OFFER[pipelining]
        self._epoll = select.epoll()
        self._smtp = self._listen(socket.INADDR_ANY)
        self._doh = self._listen(socket.INADDR_LOOPBACK)
        self._unread: dict[socket.socket, bytes] = {}
        self._open: dict[int, tuple[socket.socket, bool]] = {}  # by descriptor; is it SMTP?
        self._late: deque[tuple[float, socket.socket, bytes]] = deque()

    def _listen(self, address: int) -> socket.socket:
        listening = socket.socket()
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Every loopback address with one socket, and nothing beyond this machine.
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"lo\0")
        listening.bind((socket.inet_ntoa(address.to_bytes(4, "big")), 0))
        listening.listen(BACKLOG)
        listening.setblocking(False)
        self._epoll.register(listening.fileno(), select.EPOLLIN)
        return listening

    def run(self) -> None:
        """Announce the ports, then serve until standard input ends."""
        ports = {"smtp": self._smtp.getsockname()[1], "doh": self._doh.getsockname()[1]}
        print(json.dumps(ports), flush=True)
        self._epoll.register(0, select.EPOLLIN)
        while True:
            for number, _ in self._ready():
                if number == 0:
                    if not os.read(0, 1):
                        return
                    print(self._received, flush=True)
                    continue
                if number == self._smtp.fileno():
                    self._greet(self._smtp, smtp=True)
                elif number == self._doh.fileno():
                    self._greet(self._doh, smtp=False)
                else:
                    self._receive(*self._open[number])
            self._send_late()

    def _ready(self) -> list[tuple[int, int]]:
        """What has come, at the latest when a late reply is due."""
        if not self._late:
            return self._epoll.poll()
        # epoll counts whole milliseconds, rounded up; select counts microseconds.
        select.select([self._epoll], [], [], max(0.0, self._late[0][0] - time.monotonic()))
        return self._epoll.poll(0)

    def _greet(self, listening: socket.socket, *, smtp: bool) -> None:
        with suppress(BlockingIOError):
            while True:
                caller, _ = listening.accept()
                caller.setblocking(False)
                caller.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._open[caller.fileno()] = caller, smtp
                self._epoll.register(caller.fileno(), select.EPOLLIN)
                if smtp:
                    self._send(caller, self._banner)

    def _receive(self, caller: socket.socket, smtp: bool) -> None:
        try:
            octets = caller.recv(RECEIVE_OCTETS)
        except OSError:
            octets = b""
        if not octets:
            self._hang_up(caller)
            return
        if caller in self._unread:
            octets = self._unread.pop(caller) + octets
        if smtp:
            self._receive_smtp(caller, octets)
        else:
            self._receive_query(caller, octets)

    def _receive_smtp(self, caller: socket.socket, octets: bytes) -> None:
        self._received += 1
        *lines, rest = octets.split(b"\r\n")
        if rest:
            self._unread[caller] = rest
        replies = []
        for line in lines:
            if line[:4] == b"RCPT":
                is_accepted = self._accepts_all or _is_living(line)
                replies.append(ACCEPTED if is_accepted else REFUSED)
            else:
                replies.append(REPLIES.get(line[:4], self._offer))
        if replies:
            self._send(caller, b"".join(replies))

    def _send(self, caller: socket.socket, octets: bytes) -> None:
        if self._delay_s:
            self._late.append((time.monotonic() + self._delay_s, caller, octets))
            return
        with suppress(OSError):
            caller.send(octets)

    def _send_late(self) -> None:
        now = time.monotonic()
        while self._late and self._late[0][0] <= now:
            _, caller, octets = self._late.popleft()
            with suppress(OSError):
                caller.send(octets)

    def _hang_up(self, caller: socket.socket) -> None:
        self._epoll.unregister(caller.fileno())
        del self._open[caller.fileno()]
        self._unread.pop(caller, None)
        caller.close()

    # -- the resolver ------------------------------------------------------------------------

    def _receive_query(self, caller: socket.socket, octets: bytes) -> None:
        head, end, body = octets.partition(b"\r\n\r\n")
        length = next(
            (
                int(line[15:])
                for line in head.lower().split(b"\r\n")
                if line[:15] == b"content-length:"
            ),
            0,
        )
        if not end or len(body) < length:
            self._unread[caller] = octets
            return
        answer = self._answer(body[:length])
        caller.send(
            b"HTTP/1.1 200 OK\r\ncontent-type: application/dns-message\r\ncontent-length: "
            + str(len(answer)).encode()
            + b"\r\n\r\n"
            + answer
        )

    def _answer(self, query: bytes) -> bytes:
        """MX of `dN.test` is `mxM.test`; an exchange's address is its number's; else nothing."""
        asked = query[12:]
        kind = asked[asked.index(b"\0") + 1 :][:2]
        label = asked[1 : 1 + asked[0]]
        record = b""
        if kind == _TYPE_MX and label[:1] == b"d":
            name = b"mx%d" % (int(label[1:]) % self._hosts)
            target = bytes([len(name)]) + name + b"\4test\0"
            record = (len(target) + 2).to_bytes(2, "big") + b"\0\x0a" + target
        elif kind == _TYPE_A and label[:2] == b"mx":
            record = b"\0\4" + socket.inet_aton(host_address(int(label[2:])))
        count = b"\0\1" if record else b"\0\0"
        head = query[:2] + b"\x81\x80\0\1" + count + b"\0\0\0\0"
        question = asked[: asked.index(b"\0") + 5]
        return head + question + (b"\xc0\x0c" + kind + b"\0\1" + TTL + record if record else b"")


if __name__ == "__main__":
    _SmtpSinkProcess(**json.loads(sys.argv[1])).run()
