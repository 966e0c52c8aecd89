"""Which addresses may be connected to, and the connection: direct or by a SOCKS5 proxy.

The guard of probes and callbacks alike. It is applied inside the dialer, on the
very address that is then connected to, so nothing that resolves, caches or
redirects can get round it. Names are never taken: the system's resolver is not asked.
"""

import errno
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Protocol
from urllib.parse import unquote_to_bytes, urlsplit

import trio

# Special-purpose addresses by the registries of RFC 6890, as of 2025. Not
# ipaddress.is_global: it lets NAT64, multicast, 3fff::/20 and more through, and
# what it says changes with Python's version.
NOT_PUBLIC_4 = tuple(
    IPv4Network(network)
    for network in (
        "0.0.0.0/8",  # this network
        "10.0.0.0/8",  # private
        "100.64.0.0/10",  # carrier-grade NAT
        "127.0.0.0/8",  # loopback
        "169.254.0.0/16",  # link-local, and clouds' metadata
        "172.16.0.0/12",  # private
        "192.0.0.0/24",  # IETF protocols
        "192.0.2.0/24",  # documentation
        "192.88.99.0/24",  # 6to4 relays
        "192.168.0.0/16",  # private
        "198.18.0.0/15",  # benchmarks
        "198.51.100.0/24",  # documentation
        "203.0.113.0/24",  # documentation
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved, and the broadcast
    )
)
PUBLIC_6 = IPv6Network("2000::/3")  # all that IANA gives out; the rest wraps, maps or is local
NOT_PUBLIC_6 = tuple(
    IPv6Network(network)
    for network in (
        "2001::/23",  # IETF protocols, Teredo (which wraps IPv4)
        "2001:db8::/32",  # documentation
        "2002::/16",  # 6to4, which wraps IPv4
        "3fff::/20",  # documentation
    )
)


def is_public(ip: str) -> bool:
    """Is this the address of a host on the public Internet? False for what is no address."""
    try:
        address = _plain(ip)
    except ValueError:
        return False
    if address.version == 4:
        return not any(address in network for network in NOT_PUBLIC_4)
    return address in PUBLIC_6 and not any(address in network for network in NOT_PUBLIC_6)


def _plain(ip: str) -> IPv4Address | IPv6Address:
    """Read an address in its one spelling, or ValueError; a zone is no part of it."""
    if "%" in ip:
        raise ValueError("an address with a zone")
    return ip_address(ip)


def numeric(host: str) -> IPv4Address | IPv6Address:
    """The address that a URL's host is, or ValueError; `localhost` is 127.0.0.1 to us."""
    return _plain("127.0.0.1" if host == "localhost" else host)


class CannotConnect(OSError):
    """No connection; the message is a few words for the evidence."""


class NotPublic(CannotConnect):
    """An address that may not be connected to; nothing was sent to it."""


class Dial(Protocol):
    """Opens a connection to an address, or raises OSError; the time limit is the caller's."""

    async def __call__(self, address: str, port: int) -> trio.abc.Stream: ...


@dataclass(frozen=True, slots=True)
class Proxy:
    """A SOCKS5 proxy (RFC 1928), and who we are to it (RFC 1929)."""

    host: str  # an IP address
    port: int
    user: bytes | None = None
    password: bytes = b""

    def __repr__(self) -> str:  # no password in tracebacks and logs
        return f"Proxy({self.host!r}, {self.port})"


def check_proxy_url(url: str) -> Proxy:
    """Read `socks5://[user:pass@]address:port`, or ValueError in words for the operator."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError as error:
        raise ValueError(f"{error}; it takes socks5://[user:pass@]address:port") from None
    if parts.scheme != "socks5" or not host or not port or parts.path.strip("/") or parts.query:
        raise ValueError("it takes socks5://[user:pass@]address:port")
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


@dataclass(frozen=True, slots=True)
class ProxyBackoff:
    """How long a proxy that failed is left alone: from 5 s, doubling, to 5 minutes."""

    until: float = float("-inf")
    length_s: float = 2.5

    def after_failure(self, now: float) -> "ProxyBackoff":
        length_s = min(self.length_s * 2, 300.0)
        return ProxyBackoff(now + length_s, length_s)


READY_BYTE = ProxyBackoff()
HANDSHAKE_S = 0.6  # a proxy's own part, so that the next has a chance in a connect's second
SILENCE_S = 0.6  # so long without a reply counts; whoever gave up sooner did not want it
OPINIONS_MAX = 2  # what two proxies fail to reach is not there: no third one knocks at it
REFUTED_MAX = 3  # so many targets in a row that another proxy then reached, and it rests
SILENT_MAX = 8  # so many in a row without an answer, while another works; some hosts are silent


@dataclass(slots=True)
class _Record:
    """How a proxy fared. `refuted` and `silent` hold targets in a row, so at most their limits."""

    backoff: ProxyBackoff = READY_BYTE
    worked_at: float = float("-inf")
    refuted: set[str] = field(default_factory=set)
    silent: set[str] = field(default_factory=set)
    silent_since: float = float("-inf")

    def worked(self, now: float) -> None:
        """It connected, or said clearly why the target can't be connected to."""
        self.backoff = READY_BYTE
        self.worked_at = now
        self.refuted.clear()
        self.silent.clear()

    def refute(self, target: str) -> bool:
        """Another proxy reached what this one did not. Is it this one's failure by now?

        A proxy that has rested and not worked since is given one chance only.
        """
        self.refuted.add(target)
        return len(self.refuted) >= (REFUTED_MAX if self.backoff is READY_BYTE else 1)

    def be_silent(self, target: str, now: float) -> bool:
        """It gave no answer for this target. Has it been silent for too many?"""
        if not self.silent:
            self.silent_since = now
        if len(self.silent) < SILENT_MAX:
            self.silent.add(target)
        return len(self.silent) >= SILENT_MAX

    def fall_asleep(self, now: float) -> None:
        self.backoff = self.backoff.after_failure(now)
        self.refuted.clear()
        self.silent.clear()


class Dialer:
    """The `Dial` of real sockets: guarded, numeric, through the proxies where there are any.

    Proxies are used in turn. One that fails by itself (it refuses the connection,
    the user or the command, or talks no SOCKS) is left alone for a while and the
    next is tried; the last one awake never rests. A target that a proxy reports
    as refusing or unreachable is the target's failure. What does not say whose
    failure it is (a general failure, a close or silence after the request) is
    held against the proxy only when others succeed meanwhile.
    """

    def __init__(self, proxies: Sequence[str] = (), *, allow_private: bool = False) -> None:
        self._proxies = [check_proxy_url(url) for url in proxies]
        self._records = {proxy: _Record() for proxy in self._proxies}
        self._allow_private = allow_private

    async def __call__(self, address: str, port: int) -> trio.abc.Stream:
        """Connect; NotPublic before anything is sent, else CannotConnect."""
        self._guard(address)
        if not self._proxies:
            return await _connect(address, port)
        failed: _ProxyFailed | None = None
        doubted: list[Proxy] = []
        for proxy in self._by_preference():
            if len(doubted) == OPINIONS_MAX or (doubted and not self._is_available(proxy)):
                break
            try:
                stream = await self._through(proxy, address, port)
            except _InDoubt as error:
                failed = error
                doubted.append(proxy)
            except _ProxyFailed as error:
                failed = error
                if error.backoff:
                    self._back_off(proxy)
            else:
                for other in doubted:
                    if self._records[other].refute(address):
                        self._back_off(other)
                return stream
        raise CannotConnect(f"no proxy could be used: {failed}") from failed

    async def _through(self, proxy: Proxy, address: str, port: int) -> trio.abc.Stream:
        """Connect through this proxy and note what it is worth."""
        record, began = self._records[proxy], trio.current_time()
        try:
            stream = await _connect_through(proxy, address, port)
        except CannotConnect:
            record.worked(trio.current_time())
            raise
        except trio.Cancelled:
            now = trio.current_time()
            if now - began >= SILENCE_S and record.be_silent(address, now):
                self._back_off_if_others_worked(proxy, since=record.silent_since)
            raise
        record.worked(trio.current_time())
        return stream

    def _back_off_if_others_worked(self, proxy: Proxy, *, since: float) -> None:
        others = (record for other, record in self._records.items() if other != proxy)
        if any(record.worked_at >= since for record in others):
            self._back_off(proxy)

    def _back_off(self, proxy: Proxy) -> None:
        """Leave it alone for a while, unless no other is awake."""
        if any(self._is_available(other) for other in self._proxies if other != proxy):
            self._records[proxy].fall_asleep(trio.current_time())

    def _is_available(self, proxy: Proxy) -> bool:
        return self._records[proxy].backoff.until <= trio.current_time()

    def _guard(self, address: str) -> None:
        try:
            _plain(address)
        except ValueError:
            raise NotPublic(f"not an IP address: {address[:80]!r}") from None
        if not self._allow_private and not is_public(address):
            raise NotPublic("not a public address")

    def _by_preference(self) -> list[Proxy]:
        """The proxies to try for this connection; the first goes to the end of the line.

        After those awake comes the resting one that wakes first, as a last resort.
        """
        self._proxies.append(self._proxies.pop(0))
        awake = [proxy for proxy in self._proxies if self._is_available(proxy)]
        resting = (proxy for proxy in self._proxies if not self._is_available(proxy))
        by_waking = sorted(resting, key=lambda proxy: self._records[proxy].backoff.until)
        return awake + by_waking[:1]


# errno -> what evidence says; anything else in the system's own words
_WORDS = {
    errno.ECONNREFUSED: "connection refused",
    errno.ECONNRESET: "connection reset",
    errno.EHOSTUNREACH: "no route to host",
    errno.ENETUNREACH: "network unreachable",
    errno.ETIMEDOUT: "connection timed out",
}


async def _connect(address: str, port: int) -> trio.SocketStream:
    """A TCP connection to a numeric address, TCP_NODELAY set (by SocketStream)."""
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


class _ProxyFailed(Exception):
    """The proxy's own failure; `rest` where it should be left alone for a while."""

    def __init__(self, words: str, *, rest: bool = True) -> None:
        super().__init__(words)
        self.backoff = rest


class _InDoubt(_ProxyFailed):
    """No connection, and the proxy did not say whether it or the target failed."""


# reply (RFC 1928 6) -> the target's failure, in words
_TARGET_SAYS = {
    3: "network unreachable",
    4: "no route to host",
    5: "connection refused",
    6: "connection timed out",
}
_PROXY_SAYS = {
    2: "not allowed by its rules",
    7: "command not supported",
    8: "address type not supported",
}
_NO_SUCH_ADDRESSES = 8  # it has no IPv6, say: nothing else is wrong with it
_GENERAL_FAILURE = 1  # many proxies say so of every target that can't be connected to
_ADDRESS_OCTETS = {1: 4, 4: 16}
_ADDRESS_IS_NAME = 3  # one octet of length before it


async def _connect_through(proxy: Proxy, address: str, port: int) -> trio.SocketStream:
    """A connection to the target through this proxy, or _ProxyFailed, or CannotConnect.

    The proxy's own part has HANDSHAKE_S; how long it may take to connect is the caller's.
    """
    stream: trio.SocketStream | None = None
    try:
        with trio.move_on_after(HANDSHAKE_S) as handshake:
            stream = await _connect_to_proxy(proxy)
            await _introduce(stream, proxy)
        if stream is None or handshake.cancelled_caught:
            raise _ProxyFailed(f"no answer within {HANDSHAKE_S:g} s")
        await _request(stream, address, port)
    except BaseException:
        if stream is not None:
            stream.socket.close()
        raise
    return stream


async def _connect_to_proxy(proxy: Proxy) -> trio.SocketStream:
    try:
        return await _connect(proxy.host, proxy.port)
    except CannotConnect as error:
        raise _ProxyFailed(str(error)) from error


async def _introduce(stream: trio.SocketStream, proxy: Proxy) -> None:
    """Agree on a way to authenticate, and do so."""
    methods = b"\0" if proxy.user is None else b"\0\2"
    await _send(stream, bytes([5, len(methods)]) + methods)
    version, method = await _read(stream, 2)
    if version != 5 or method not in methods:
        raise _ProxyFailed("it wants another way to authenticate")
    if method == 2 and proxy.user is not None:
        user, password = proxy.user, proxy.password
        await _send(stream, bytes([1, len(user)]) + user + bytes([len(password)]) + password)
        if (await _read(stream, 2))[1] != 0:
            raise _ProxyFailed("user or password refused")


async def _request(stream: trio.SocketStream, address: str, port: int) -> None:
    """Ask for the connection, always by address."""
    target = ip_address(address)
    kind = 1 if target.version == 4 else 4
    try:
        await _send(stream, bytes([5, 1, 0, kind]) + target.packed + port.to_bytes(2, "big"))
        version, reply, _, kind = await _read(stream, 4)
    except _ProxyFailed as error:
        raise _InDoubt(str(error)) from error  # some hang up when they can't connect
    if version != 5:
        raise _ProxyFailed("not a SOCKS5 reply")
    if reply in _TARGET_SAYS:
        raise CannotConnect(_TARGET_SAYS[reply])
    if reply in _PROXY_SAYS:
        raise _ProxyFailed(_PROXY_SAYS[reply], rest=reply != _NO_SUCH_ADDRESSES)
    if reply != 0:
        raise _InDoubt("general failure" if reply == _GENERAL_FAILURE else f"reply {reply}")
    # The address it connects from: of no use to us, but what the target says follows it.
    if kind == _ADDRESS_IS_NAME:
        octets = (await _read(stream, 1))[0]
    elif kind in _ADDRESS_OCTETS:
        octets = _ADDRESS_OCTETS[kind]
    else:
        raise _ProxyFailed("not a SOCKS5 reply")
    await _read(stream, octets + 2)


async def _send(stream: trio.SocketStream, octets: bytes) -> None:
    try:
        await stream.send_all(octets)
    except trio.BrokenResourceError as error:
        raise _ProxyFailed("connection reset") from error


async def _read(stream: trio.SocketStream, octets: int) -> bytes:
    """Exactly so many octets, and none of what the target says after them."""
    read = bytearray()
    while len(read) < octets:
        try:
            more = await stream.receive_some(octets - len(read))
        except trio.BrokenResourceError as error:
            raise _ProxyFailed("connection reset") from error
        if not more:
            raise _ProxyFailed("it closed the connection")
        read += more
    return bytes(read)
