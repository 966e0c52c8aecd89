"""Listening sockets: opened once before any fork, and accepted from without delay."""

import errno
import logging
import os
import socket
from collections.abc import Iterable
from typing import Any

import trio

logger = logging.getLogger("mailprobe.http")

BACKLOG = (
    4096  # a burst of connections waits in the kernel; one that it drops tries again after 1 s
)
USER_TIMEOUT_MS = 20_000  # sent and not acknowledged for so long: the kernel gives the client up


def open_sockets(host: str, port: int) -> list[socket.socket]:
    """Listening sockets for this address; to be made once, before any fork.

    A host name may have several addresses: with port 0 all get the port that the
    first was given, and one that this machine lacks (::1 where there is no IPv6) is
    left out. Raises OSError where none, or one in use, can be bound.
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


def _listening(family: int, address: tuple[Any, ...]) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # inherited by what is accepted
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, USER_TIMEOUT_MS)
        sock.bind(address)
        sock.listen(BACKLOG)
    except OSError:
        sock.close()
        raise
    return sock


def listeners_on(sockets: Iterable[socket.socket]) -> list[trio.SocketListener]:
    """trio's listeners on these sockets, which are theirs from now on."""
    return [trio.SocketListener(trio.socket.from_stdlib_socket(sock)) for sock in sockets]


_FULL = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}


async def accept(listener: trio.SocketListener) -> trio.SocketStream:
    while True:
        try:
            return await listener.accept()
        except OSError as error:
            if error.errno not in _FULL:
                raise
            logger.error("no connection can be accepted: %s", error)
            await trio.sleep(0.1)  # as trio.serve_listeners does


def accept_now(listener: trio.SocketListener) -> trio.SocketStream | None:
    """One who has come already, if there is one.

    trio's own goes round the scheduler for each: where a turn of the loop is long,
    newcomers would wait for as many turns as there are before them.
    """
    try:
        with socket.socket(fileno=os.dup(listener.socket.fileno())) as listening:
            accepted, _ = listening.accept()
    except OSError:  # nobody; or what the next turn is told
        return None
    accepted.setblocking(False)
    return trio.SocketStream(trio.socket.from_stdlib_socket(accepted))
