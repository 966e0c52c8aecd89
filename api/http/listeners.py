"""Listening sockets: opens them before any fork, and accepts without delay."""

import errno
import logging
import os
import socket
import time
from collections.abc import Iterable
from math import inf

import trio

logger = logging.getLogger("mailprobe.http")

BACKLOG = 4096  # a burst waits in the kernel; a dropped connection is retried after 1 s
USER_TIMEOUT_MS = 20_000  # the kernel drops a client that acknowledges nothing for so long


def open_sockets(host: str, port: int) -> list[socket.socket]:
    """Open listening sockets for this address, once, before any fork.

    A host name may have several addresses. With port 0 all get the port of the first.
    Addresses that this machine lacks (::1 without IPv6) are skipped. Raises OSError if an
    address is in use, or if none can be bound.
    """
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    sockets: list[socket.socket] = []
    lacking: OSError | None = None
    for family, address in dict.fromkeys((entry[0], entry[4]) for entry in found):
        taken = sockets[0].getsockname()[1] if sockets else port
        try:
            sockets.append(_listening(family, (address[0], taken, *address[2:])))
        except OSError as error:
            if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                for sock in sockets:
                    sock.close()
                raise
            lacking = error
    if lacking is not None and not sockets:
        raise lacking
    return sockets


def _listening(family: int, address: tuple[object, ...]) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # accepted sockets inherit it
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, USER_TIMEOUT_MS)
        sock.bind(address)
        sock.listen(BACKLOG)
    except OSError:
        sock.close()
        raise
    return sock


def listeners_on(sockets: Iterable[socket.socket]) -> list[trio.SocketListener]:
    """Wrap these sockets in trio listeners, which own them from now on."""
    return [trio.SocketListener(trio.socket.from_stdlib_socket(sock)) for sock in sockets]


LOGGED_EVERY_S = 1.0
_FULL = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}


class _Failures:
    """Logs failures to accept, of all listeners together, at most once in LOGGED_EVERY_S."""

    def __init__(self) -> None:
        self._logged_at = -inf
        self._unlogged = 0

    def log(self, error: OSError) -> None:
        now = time.monotonic()
        self._unlogged += 1
        if now - self._logged_at >= LOGGED_EVERY_S:
            logger.error("accept failed: error=%s times=%d", error, self._unlogged)
            self._logged_at, self._unlogged = now, 0


_failures = _Failures()


async def accept(listener: trio.SocketListener) -> trio.SocketStream:
    """Accept a connection; wait while the process is out of file descriptors or memory."""
    while True:
        try:
            return await listener.accept()
        except OSError as error:
            if error.errno not in _FULL:
                raise
            _failures.log(error)
            await trio.sleep(0.1)  # as trio.serve_listeners does


def accept_now(listener: trio.SocketListener) -> trio.SocketStream | None:
    """Accept a connection that is waiting in the kernel; None if there is none.

    trio's accept yields to the scheduler each time. With long turns of the event loop, a
    connection would wait one turn for each one before it.
    """
    try:
        with socket.socket(fileno=os.dup(listener.socket.fileno())) as listening:
            accepted, _ = listening.accept()
    except OSError:  # none; or an error that the next accept() reports
        return None
    accepted.setblocking(False)
    return trio.SocketStream(trio.socket.from_stdlib_socket(accepted))
