"""Connects through a SOCKS5 proxy (RFC 1928), always to an IP address."""

from ipaddress import ip_address
from urllib.parse import unquote_to_bytes, urlsplit

import trio
from msgspec import Struct

from .public_addresses import numeric
from .tcp import CannotConnect, connect

# For the proxy's own part, so that another can be tried within a connect's second.
HANDSHAKE_S = 0.6


class Proxy(Struct, frozen=True):
    """A SOCKS5 proxy, with the user and password for it (RFC 1929)."""

    host: str  # an IP address
    port: int
    user: bytes | None = None
    password: bytes = b""

    def __repr__(self) -> str:  # no password in tracebacks and logs
        return f"Proxy({self.host!r}, {self.port})"


def check_proxy_url(url: str) -> Proxy:
    """Parse `socks5://[user:pass@]address:port`. Raises ValueError with a message for the operator."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError as error:
        raise ValueError(
            f"{error}; it takes socks5://address:port, with user:pass@ before the address if needed"
        ) from None
    if parts.scheme != "socks5" or not host or not port or parts.path.strip("/") or parts.query:
        raise ValueError(
            "it takes socks5://address:port, with user:pass@ before the address if needed"
        )
    try:
        address = numeric(host)
    except ValueError:
        raise ValueError(
            f"name the proxy by its address, not as {host}: the system's resolver is not asked"
        ) from None
    if parts.username is None:
        return Proxy(str(address), port)
    user, password = unquote_to_bytes(parts.username), unquote_to_bytes(parts.password or "")
    if not 0 < len(user) < 256 or len(password) > 255:
        raise ValueError("a user has 1 to 255 octets, a password at most 255")
    return Proxy(str(address), port, user, password)


class ProxyFailed(Exception):
    """The proxy itself has failed. `backoff`: it should not be used for a while."""

    def __init__(self, words: str, *, backoff: bool = True) -> None:
        super().__init__(words)
        self.backoff = backoff


class UnclearFailure(ProxyFailed):
    """No connection, and the proxy did not say whether it failed or the target."""


# reply code (RFC 1928 6) -> the target's failure, in words
_TARGET_FAILURES = {
    3: "network unreachable",
    4: "no route to host",
    5: "connection refused",
    6: "connection timed out",
}
_PROXY_FAILURES = {
    2: "not allowed by its rules",
    7: "command not supported",
    8: "address type not supported",
}
_NO_SUCH_ADDRESSES = 8  # for example no IPv6; the proxy is fine otherwise
_GENERAL_FAILURE = 1  # many proxies reply so for any target they cannot connect to
_ADDRESS_OCTETS = {1: 4, 4: 16}
_ADDRESS_IS_NAME = 3  # its length comes before it, in one octet


async def connect_through(proxy: Proxy, address: str, port: int) -> trio.SocketStream:
    """Connect to the target through this proxy.

    The proxy's own part is limited to HANDSHAKE_S; the caller limits the rest. Raises
    ProxyFailed, or CannotConnect if the target has failed.
    """
    stream: trio.SocketStream | None = None
    try:
        with trio.move_on_after(HANDSHAKE_S) as handshake:
            stream = await _connect_to_proxy(proxy)
            await _authenticate(stream, proxy)
        if stream is None or handshake.cancelled_caught:
            raise ProxyFailed(f"no answer within {HANDSHAKE_S:g} s")
        await _request_connection(stream, address, port)
    except BaseException:
        if stream is not None:
            stream.socket.close()
        raise
    return stream


async def _connect_to_proxy(proxy: Proxy) -> trio.SocketStream:
    try:
        return await connect(proxy.host, proxy.port)
    except CannotConnect as error:
        raise ProxyFailed(str(error)) from error


async def _authenticate(stream: trio.SocketStream, proxy: Proxy) -> None:
    """Agree on a method of authentication, and authenticate."""
    methods = b"\0" if proxy.user is None else b"\0\2"
    await _send(stream, bytes([5, len(methods)]) + methods)
    version, method = await _read(stream, 2)
    if version != 5 or method not in methods:
        raise ProxyFailed("it wants another way to authenticate")
    if method == 2 and proxy.user is not None:
        user, password = proxy.user, proxy.password
        await _send(stream, bytes([1, len(user)]) + user + bytes([len(password)]) + password)
        if (await _read(stream, 2))[1] != 0:
            raise ProxyFailed("user or password refused")


async def _request_connection(stream: trio.SocketStream, address: str, port: int) -> None:
    """Send the CONNECT request and read the reply."""
    target = ip_address(address)
    kind = 1 if target.version == 4 else 4
    try:
        await _send(stream, bytes([5, 1, 0, kind]) + target.packed + port.to_bytes(2, "big"))
        version, reply, _, kind = await _read(stream, 4)
    except ProxyFailed as error:
        raise UnclearFailure(str(error)) from error  # some proxies hang up when they cannot connect
    if version != 5:
        raise ProxyFailed("not a SOCKS5 reply")
    if reply in _TARGET_FAILURES:
        raise CannotConnect(_TARGET_FAILURES[reply])
    if reply in _PROXY_FAILURES:
        raise ProxyFailed(_PROXY_FAILURES[reply], backoff=reply != _NO_SUCH_ADDRESSES)
    if reply != 0:
        raise UnclearFailure("general failure" if reply == _GENERAL_FAILURE else f"reply {reply}")
    # The proxy's own address has to be read, because the target's bytes follow it.
    if kind == _ADDRESS_IS_NAME:
        octets = (await _read(stream, 1))[0]
    elif kind in _ADDRESS_OCTETS:
        octets = _ADDRESS_OCTETS[kind]
    else:
        raise ProxyFailed("not a SOCKS5 reply")
    await _read(stream, octets + 2)


async def _send(stream: trio.SocketStream, octets: bytes) -> None:
    try:
        await stream.send_all(octets)
    except trio.BrokenResourceError as error:
        raise ProxyFailed("connection reset") from error


async def _read(stream: trio.SocketStream, octets: int) -> bytes:
    """Read exactly this many octets, and none of the target's after them."""
    read = bytearray()
    while len(read) < octets:
        try:
            more = await stream.receive_some(octets - len(read))
        except trio.BrokenResourceError as error:
            raise ProxyFailed("connection reset") from error
        if not more:
            raise ProxyFailed("it closed the connection")
        read += more
    return bytes(read)
