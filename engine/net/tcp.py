"""Opens a TCP connection to an IP address, and words its failure."""

import errno
import os

import trio


class CannotConnect(OSError):
    """No connection. The message is a few words for the evidence."""


# errno -> the words in the evidence; for others the system's own words
_WORDS = {
    errno.ECONNREFUSED: "connection refused",
    errno.ECONNRESET: "connection reset",
    errno.EHOSTUNREACH: "no route to host",
    errno.ENETUNREACH: "network unreachable",
    errno.ETIMEDOUT: "connection timed out",
}


async def connect(address: str, port: int) -> trio.SocketStream:
    """Connect to an IP address; SocketStream sets TCP_NODELAY. Raises CannotConnect."""
    family = trio.socket.AF_INET6 if ":" in address else trio.socket.AF_INET
    try:
        connection = trio.socket.socket(family, trio.socket.SOCK_STREAM)
        try:
            await connection.connect((address, port))
        except BaseException:
            connection.close()
            raise
    except OSError as error:
        number = error.errno or 0
        raise CannotConnect(_WORDS.get(number) or os.strerror(number).lower()) from error
    return trio.SocketStream(connection)
