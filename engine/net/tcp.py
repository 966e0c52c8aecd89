"""Opens a TCP connection to an IP address, and words its failure."""

import contextlib
import errno
import os
import socket

import trio

IP_BIND_ADDRESS_NO_PORT = 24  # of Linux; Python 3.11 has no name for it


class CannotConnect(OSError):
    """No connection. The message is a few words for the evidence."""


class EgressFailed(CannotConnect):
    """Our own way out has failed: nothing was learned of the address."""


# errno -> the words in the evidence; for others the system's own words
_WORDS = {
    errno.ECONNREFUSED: "connection refused",
    errno.ECONNRESET: "connection reset",
    errno.EHOSTUNREACH: "no route to host",
    errno.ENETUNREACH: "network unreachable",
    errno.ETIMEDOUT: "connection timed out",
}


async def connect(address: str, port: int, source: str | None = None) -> trio.SocketStream:
    """Connect to an IP address; SocketStream sets TCP_NODELAY. Raises CannotConnect.

    `source` is the address of this machine to connect from; without it, the system chooses.
    Raises EgressFailed if this machine does not have it.
    """
    family = trio.socket.AF_INET6 if ":" in address else trio.socket.AF_INET
    try:
        connection = trio.socket.socket(family, trio.socket.SOCK_STREAM)
        try:
            if source is not None:
                await _bind(connection, source)
            await connection.connect((address, port))
        except BaseException:
            connection.close()
            raise
    except EgressFailed:
        raise
    except OSError as error:
        number = error.errno or 0
        raise CannotConnect(_WORDS.get(number) or os.strerror(number).lower()) from error
    return trio.SocketStream(connection)


async def _bind(connection: trio.socket.SocketType, source: str) -> None:
    with contextlib.suppress(OSError):
        # The system chooses the port at connect(): else two connections could not share one.
        connection.setsockopt(socket.IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1)
    try:
        await connection.bind((source, 0))
    except OSError as error:
        raise EgressFailed(f"this machine cannot use {source}: {error.strerror}") from error
