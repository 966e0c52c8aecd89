"""DNS over HTTPS as octets: one question to one endpoint (RFC 8484), over httpx.

The transport knows nothing of DNS but its content type. An asker that gives up
cancels nothing on the wire: httpcore loses frames and sockets where a request
is cancelled while it is written, so each exchange is a task of the transport.
Endpoints are named by address, for the system's resolver is never asked.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Protocol
from urllib.parse import urlsplit

import trio

from engine.dns import MESSAGE_OCTETS_MAX
from engine.egress import numeric

if TYPE_CHECKING:
    import ssl

    import httpx

ENDPOINT_S = 1.5  # one endpoint, connecting included
EXCHANGE_S = 5.0  # a body that drips; long after its asker has gone
HANDSHAKE_S = 0.7  # of these for TCP, and as much for TLS
TRIES_MAX = 3  # a resolver that ends its connections often can meet one question twice
CONNECTIONS_MAX = 128  # to all endpoints; HTTP/2 needs one each, HTTP/1.1 one a question
IDLE_S = 30.0


class TransportFailed(OSError):
    """No DNS message came back: not reached, not HTTP 200, no DNS, too long."""


class DohTransport(Protocol):
    """Carries one question to one endpoint; the time limit is the caller's."""

    async def exchange(self, url: str, query: bytes) -> bytes:
        """The answer's octets, or TransportFailed."""
        ...


def check_doh_url(url: str) -> str:
    """The endpoint's URL as it will be asked, or ValueError in words for the operator.

    `localhost` becomes 127.0.0.1; any other name would need the resolver that this
    endpoint is.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError as error:
        raise ValueError(f"{error}; it takes https://address/path") from None
    if not (url.isascii() and url.isprintable() and " " not in url):
        raise ValueError("a URL has no spaces, control characters or letters beyond ASCII")
    if parts.scheme not in ("https", "http") or not host:
        raise ValueError("it takes https://address/path, such as https://9.9.9.9/dns-query")
    if parts.username is not None or parts.fragment:
        raise ValueError("it takes neither a user nor a fragment")
    try:
        address = numeric(host)
    except ValueError:
        raise ValueError(
            f"name the endpoint by its address, not as {host}: no other resolver is asked"
        ) from None
    # Python 3.13 calls ::ffff:127.0.0.1 loopback too; nobody writes that and means well.
    mapped = getattr(address, "ipv4_mapped", None) is not None
    if parts.scheme == "http" and (mapped or not address.is_loopback):
        raise ValueError("http:// is taken for loopback addresses alone; use https://")
    where = f"[{address}]" if address.version == 6 else str(address)
    where += f":{port}" if port is not None else ""
    return f"{parts.scheme}://{where}{parts.path}" + (f"?{parts.query}" if parts.query else "")


@dataclass(frozen=True, slots=True)
class DohResponse:
    """What an endpoint sent: the DNS message, and its Date header."""

    octets: bytes
    date: str | None


@dataclass(slots=True)
class _Exchange:
    """A question under way, and what came of it."""

    done: trio.Event = field(default_factory=trio.Event)
    outcome: DohResponse | TransportFailed = field(
        default_factory=lambda: TransportFailed("the answer was too slow")
    )


class HttpxTransport:
    """DNS over HTTPS with httpx: HTTP/2 where TLS agrees on it, HTTP/1.1 where not.

    httpx's transport is used without its client: there is no redirect, no cookie and
    no proxy from the environment, and a question costs a third less. Each exchange is
    a task of its own that whoever asks does not cancel: httpcore, cancelled while it
    writes, loses the frames, and with them the connection and everybody else on it.
    """

    def __init__(self, http: "httpx.AsyncHTTPTransport", nursery: trio.Nursery) -> None:
        self._http = http
        self._nursery = nursery
        self._urls: dict[str, httpx.URL] = {}

    async def exchange(self, url: str, query: bytes) -> bytes:
        return (await self.post(url, query)).octets

    async def post(self, url: str, query: bytes) -> DohResponse:
        """Ask; again where the connection ended under the question (GOAWAY), TRIES_MAX times in all.

        Raises TransportFailed, or ValueError for a URL that check_doh_url refuses.
        """
        import httpx

        if url not in self._urls:
            self._urls[url] = httpx.URL(check_doh_url(url))
        exchange = _Exchange()
        self._nursery.start_soon(self._carry, exchange, url, query)
        await exchange.done.wait()
        if isinstance(exchange.outcome, TransportFailed):
            raise exchange.outcome
        return exchange.outcome

    async def _carry(self, exchange: _Exchange, url: str, query: bytes) -> None:
        import httpx

        # ReadTimeout: httpcore reports it to all who share the silent connection,
        # those too who asked a moment ago.
        ended = (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError, httpx.ReadTimeout)
        try:
            with trio.move_on_after(EXCHANGE_S):
                for _ in range(TRIES_MAX - 1):
                    with suppress(*ended):
                        exchange.outcome = await self._post_once(url, query)
                        return
                exchange.outcome = await self._post_once(url, query)
        except TransportFailed as failed:
            exchange.outcome = failed
        except Exception as error:
            # Everything: besides its own errors httpx lets some of h2 and of the
            # status line's int() through, and all of them are the endpoint's doing.
            exchange.outcome = TransportFailed(_reason(error))
        finally:
            exchange.done.set()

    async def _post_once(self, url: str, query: bytes) -> DohResponse:
        with trio.CancelScope() as scope:

            async def shield_handshake(event: str, _: object) -> None:
                # Cancelled from here to its first frame, httpcore would leave the
                # socket unclosed.
                scope.shield = event in _SHAKING_HANDS

            response = await self._http.handle_async_request(
                self._request(url, query, shield_handshake)
            )
            try:
                return DohResponse(await _body(response), response.headers.get("date"))
            finally:
                await response.aclose()
        raise AssertionError("nobody cancels this scope")

    def _request(self, url: str, query: bytes, trace: object) -> "httpx.Request":
        import httpx

        asked = self._urls[url]
        headers = {
            "accept": _DNS_MESSAGE,
            "content-type": _DNS_MESSAGE,
            "content-length": str(len(query)),
            "host": asked.netloc.decode(),
        }
        # A little less than our own limit, so that httpcore learns of a connection
        # that has gone silent: when it is cancelled instead, it keeps it for the next.
        limits = dict.fromkeys(("read", "write", "pool"), ENDPOINT_S - 0.1)
        return httpx.Request(
            "POST",
            asked,
            headers=headers,
            stream=_body_type()(query),
            extensions={"timeout": {"connect": HANDSHAKE_S, **limits}, "trace": trace},
        )


_DNS_MESSAGE = "application/dns-message"
_SHAKING_HANDS = frozenset({"connection.start_tls.started", "connection.start_tls.complete"})


@cache
def _body_type() -> "Callable[[bytes], httpx.AsyncByteStream]":
    """A request's body that is no generator: httpx's own is one, left unclosed by a failure."""
    import httpx

    class Body(httpx.AsyncByteStream):
        def __init__(self, octets: bytes) -> None:
            self._left = [octets]

        def __aiter__(self) -> AsyncIterator[bytes]:
            return self

        async def __anext__(self) -> bytes:
            if not self._left:
                raise StopAsyncIteration
            return self._left.pop()

    return Body


async def _body(response: "httpx.Response") -> bytes:
    """The DNS message in this response, or TransportFailed."""
    kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
    if response.status_code != 200:
        raise TransportFailed(f"HTTP status {response.status_code}")
    if kind != _DNS_MESSAGE:
        raise TransportFailed(f"an answer of type {kind[:40] or 'unknown'}, not DNS")
    octets = bytearray()
    with trio.CancelScope() as too_long:
        async for chunk in response.aiter_raw():
            octets += chunk
            if len(octets) > MESSAGE_OCTETS_MAX:
                too_long.cancel()  # not break: it would leave httpcore's generators unclosed
    if too_long.cancel_called:
        raise TransportFailed(f"an answer of more than {MESSAGE_OCTETS_MAX} octets")
    return bytes(octets)


def _reason(error: BaseException) -> str:
    """The first cause in words: an untrusted certificate comes wrapped in three errors."""
    words = type(error).__name__
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, trio.Cancelled):
        if isinstance(cause, BaseExceptionGroup):
            cause = cause.exceptions[0]
        refused = getattr(cause, "verify_message", None)  # of an ssl.SSLCertVerificationError
        if refused:
            return f"certificate not accepted: {refused}"
        words = getattr(cause, "strerror", None) or str(cause) or words
        cause = cause.__cause__ or cause.__context__  # httpcore raises "from None"
    return words


@asynccontextmanager
async def open_transport(ca_file: str | None = None) -> AsyncIterator[HttpxTransport]:
    """A transport to real endpoints; its connections end with the block.

    Endpoints must show a certificate for their address by an authority of `ca_file`,
    or else of the system.
    """
    import httpx  # here, not above: 100 ms that no other part of the engine needs

    limits = httpx.Limits(
        max_connections=CONNECTIONS_MAX,
        max_keepalive_connections=CONNECTIONS_MAX,
        keepalive_expiry=IDLE_S,
    )
    tls = tls_context(ca_file)
    async with (
        httpx.AsyncHTTPTransport(verify=tls, http2=True, limits=limits, trust_env=False) as http,
        trio.open_nursery() as nursery,
    ):
        yield HttpxTransport(http, nursery)
        nursery.cancel_scope.cancel()


def tls_context(ca_file: str | None) -> "ssl.SSLContext":
    """How a client checks certificates: by the authorities of this file alone, or the system's."""
    import ssl

    context = ssl.create_default_context(cafile=ca_file)
    known = ssl.get_default_verify_paths()
    if ca_file is None and known.cafile is None and known.capath is None:
        import certifi  # a container without the system's authorities; httpx brings these

        context.load_verify_locations(certifi.where())
    return context
