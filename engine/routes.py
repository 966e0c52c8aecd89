"""Layer 3: where a domain's mail goes, asked over HTTPS and remembered (RFC 8484).

    async with open_routes(settings, rng=rng) as routes:
        answer = routes.known("example.org") or await routes.find("example.org")

One look-up at a time for each name however many ask; it belongs to the block, not
to an asker, so one who gives up takes nothing from the others. Endpoints are asked
in order, the next one as well when the first is slow, and only when all have failed
has the look-up failed. The system's resolver is never asked for anything, which is
why endpoints are named by address.
"""

import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING, Generic, Literal, Protocol, TypeVar
from urllib.parse import urlsplit

import trio

from engine.dns import (
    MESSAGE_OCTETS_MAX,
    AddressAnswer,
    Addresses,
    LookupFailed,
    MailExchange,
    NoAddress,
    Route,
    RouteAnswer,
    ask,
    read_addresses,
    read_pointers,
    read_route,
    reverse_name,
)
from engine.egress import is_public, numeric
from engine.settings import EngineSettings

if TYPE_CHECKING:
    import ssl

    import httpx

ENDPOINT_S = 1.5  # one endpoint, connecting included
EXCHANGE_S = 5.0  # a body that drips; long after its asker has gone
HANDSHAKE_S = 0.7  # of these for TCP, and as much for TLS
HEDGE_S = 0.3  # a cached answer takes 20 ms, one that must be found about 100
LOOKUP_S = 3.0  # all endpoints together
LINE_S = 15.0  # waiting for one of LOOKUPS_MAX to end; 2,000 domains at once take 3 to 8
LOOKUPS_MAX = 50  # the processor bears about 500 a second: more would only make each slower
DOMAINS_MAX = 100_000  # remembered, of domains and of exchanges each; about 500 octets apiece
FAILURE_KEPT_S = 5.0
ADDRESSES_KEPT_MIN_S = 300.0
ADDRESSES_KEPT_MAX_S = 6 * 3600.0
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
    if parts.scheme == "http" and not address.is_loopback:
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
        """Ask once; once more where the connection ended under the question (GOAWAY).

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
    tls = _tls_context(ca_file)
    async with (
        httpx.AsyncHTTPTransport(verify=tls, http2=True, limits=limits, trust_env=False) as http,
        trio.open_nursery() as nursery,
    ):
        yield HttpxTransport(http, nursery)
        nursery.cancel_scope.cancel()


def _tls_context(ca_file: str | None) -> "ssl.SSLContext":
    import ssl

    context = ssl.create_default_context(cafile=ca_file)
    known = ssl.get_default_verify_paths()
    if ca_file is None and known.cafile is None and known.capath is None:
        import certifi  # a container without the system's authorities; httpx brings these

        context.load_verify_locations(certifi.where())
    return context


Answer = TypeVar("Answer")


@dataclass(slots=True)
class _Flight(Generic[Answer]):
    """A look-up under way, and those who wait for it."""

    done: trio.Event = field(default_factory=trio.Event)
    answer: Answer | None = None


class Remembered(Generic[Answer]):
    """Answers by name until they are too old, and one look-up at a time for each name.

    A look-up gives its answer and for how many seconds that may be told again.
    Beyond `names_max` the one learned first is forgotten.
    """

    def __init__(
        self,
        nursery: trio.Nursery,
        look_up: Callable[[str], Awaitable[tuple[Answer, float]]],
        *,
        names_max: int = DOMAINS_MAX,
    ) -> None:
        self._nursery = nursery
        self._look_up = look_up
        self._names_max = names_max
        self._answers: dict[str, tuple[float, Answer]] = {}  # until when; oldest first
        self._flights: dict[str, _Flight[Answer]] = {}

    def known(self, name: str) -> Answer | None:
        until, answer = self._answers.get(name, _NEVER)
        return answer if trio.current_time() < until else None

    async def find(self, name: str) -> Answer:
        """The answer, from memory or from the one look-up that all who ask now share."""
        if (answer := self.known(name)) is not None:
            await trio.lowlevel.checkpoint()
            return answer
        flight = self._flights.get(name)
        if flight is None:
            flight = self._flights[name] = _Flight()
            self._nursery.start_soon(self._fly, name, flight)
        await flight.done.wait()
        assert flight.answer is not None  # else the look-up crashed, and we with it
        return flight.answer

    async def _fly(self, name: str, flight: _Flight[Answer]) -> None:
        try:
            flight.answer, kept_s = await self._look_up(name)
            self._keep(name, flight.answer, kept_s)
        finally:
            del self._flights[name]
            flight.done.set()

    def _keep(self, name: str, answer: Answer, kept_s: float) -> None:
        self._answers.pop(name, None)  # so that it goes to the end
        self._answers[name] = (trio.current_time() + kept_s, answer)
        if len(self._answers) > self._names_max:
            del self._answers[next(iter(self._answers))]


_NEVER = (float("-inf"), None)


@dataclass(slots=True)
class _Endpoint:
    """A resolver's URL, and whether it has been silent since it last spoke."""

    url: str
    failing: bool = False
    answered_at: float = float("-inf")

    def after_answer(self) -> None:
        self.failing, self.answered_at = False, trio.current_time()

    def after_silence(self, since: float) -> None:
        self.failing = self.failing or self.answered_at < since


# What came of asking one endpoint, and whom.
_Outcome = tuple[_Endpoint, Answer | LookupFailed]


class Resolvers:
    """All endpoints as one: the first certain answer wins."""

    def __init__(
        self, urls: tuple[str, ...], transport: DohTransport, nursery: trio.Nursery
    ) -> None:
        self._endpoints = [_Endpoint(url) for url in urls]
        self._transport = transport
        self._nursery = nursery
        self._seats = trio.Semaphore(LOOKUPS_MAX)

    async def ask(
        self, question: bytes, read: Callable[[bytes], Answer | LookupFailed]
    ) -> Answer | LookupFailed:
        """A certain answer, or LookupFailed with what each endpoint did."""
        with trio.move_on_after(LINE_S) as line:
            await self._seats.acquire()
        if line.cancelled_caught:
            return LookupFailed("too many look-ups under way")
        try:
            with trio.move_on_after(LOOKUP_S):
                return await self._race(question, read)
            return LookupFailed(f"no answer within {LOOKUP_S:g} s")
        finally:
            self._seats.release()

    async def _race(
        self, question: bytes, read: Callable[[bytes], Answer | LookupFailed]
    ) -> Answer | LookupFailed:
        """Ask in order; the next at once after a failure, or when the last asked is slow.

        Those still asked when one has answered are let go on until their limit: a
        connection half made serves the next question.
        """
        waiting = list(reversed(self._endpoints))
        reasons: list[str] = []
        send, outcomes = trio.open_memory_channel[_Outcome[Answer]](len(waiting))
        with send, outcomes:
            under_way = 0
            while waiting or under_way:
                patience = float("inf")
                if waiting:
                    endpoint = waiting.pop()
                    under_way += 1
                    self._nursery.start_soon(self._attempt, endpoint, question, read, send.clone())
                    if waiting:
                        patience = 0.0 if endpoint.failing else HEDGE_S
                with trio.move_on_after(patience):
                    asked, answer = await outcomes.receive()
                    under_way -= 1
                    if not isinstance(answer, LookupFailed):
                        return answer
                    reasons.append(f"{urlsplit(asked.url).netloc}: {answer.reason}")
        return LookupFailed("; ".join(reasons))

    async def _attempt(
        self,
        endpoint: _Endpoint,
        question: bytes,
        read: Callable[[bytes], Answer | LookupFailed],
        send: "trio.MemorySendChannel[_Outcome[Answer]]",
    ) -> None:
        answer: Answer | LookupFailed = LookupFailed(f"no answer within {ENDPOINT_S:g} s")
        began = trio.current_time()
        answered = False
        with send:
            with trio.move_on_after(ENDPOINT_S):
                try:
                    octets = await self._transport.exchange(endpoint.url, question)
                except OSError as error:  # TransportFailed is one
                    answer = LookupFailed(str(error) or type(error).__name__)
                else:
                    answered, answer = True, read(octets)
            if answered:
                endpoint.after_answer()
            else:
                endpoint.after_silence(began)
            with suppress(trio.BrokenResourceError):  # another one was first
                send.send_nowait((endpoint, answer))


class Routes:
    """What is known and can be found of domains and of their exchanges."""

    def __init__(
        self,
        settings: EngineSettings,
        resolvers: Resolvers,
        nursery: trio.Nursery,
        rng: random.Random,
    ) -> None:
        self._resolvers = resolvers
        self._rng = rng
        self._allow_private = settings.allow_private
        self._mx_kept_s = settings.cache_s
        self._routes = Remembered(nursery, self._look_up_route)
        self._addresses = Remembered(nursery, self._look_up_addresses)

    def known(self, domain: str) -> RouteAnswer | None:
        """What memory holds; None means that `find` will have to ask."""
        return self._routes.known(domain.lower())

    async def find(self, domain: str) -> RouteAnswer:
        """Where this domain's mail goes. Raises ValueError for what is no domain name."""
        ask(domain, "MX")  # a name that cannot be asked about is its caller's mistake
        return await self._routes.find(domain.lower())

    def known_addresses(self, name: str) -> AddressAnswer | None:
        return self._addresses.known(name.lower())

    async def addresses(self, name: str) -> AddressAnswer:
        """An exchange's addresses: IPv4, or IPv6 too where no IPv4 one may be used.

        NoAddress only when the resolver says so of both. They may all be private;
        whoever connects has the guard.
        """
        ask(name, "A")
        return await self._addresses.find(name.lower())

    async def pointers(self, ip: str) -> tuple[str, ...] | LookupFailed:
        """The names that an address's reverse records give; asked each time."""
        return await self._resolvers.ask(
            ask(reverse_name(ip), "PTR"), lambda octets: read_pointers(octets, ip)
        )

    def in_order(self, route: Route) -> list[MailExchange]:
        """The exchanges in the order to try them now, equal ones shuffled."""
        return route.in_order(self._rng)

    async def _look_up_route(self, domain: str) -> tuple[RouteAnswer, float]:
        answer: RouteAnswer = await self._resolvers.ask(
            ask(domain, "MX"), lambda octets: read_route(octets, domain)
        )
        failed = isinstance(answer, LookupFailed)
        return answer, FAILURE_KEPT_S if failed else self._mx_kept_s

    async def _look_up_addresses(self, name: str) -> tuple[AddressAnswer, float]:
        four = await self._ask_addresses(name, "A")
        if isinstance(four, Addresses) and self._any_usable(four):
            return four, _held(four.ttl_s)
        return _both(four, await self._ask_addresses(name, "AAAA"))

    def _any_usable(self, addresses: Addresses) -> bool:
        return self._allow_private or any(map(is_public, addresses.ips))

    async def _ask_addresses(self, name: str, kind: Literal["A", "AAAA"]) -> AddressAnswer:
        return await self._resolvers.ask(
            ask(name, kind), lambda octets: read_addresses(octets, name, kind)
        )


def _both(four: AddressAnswer, six: AddressAnswer) -> tuple[AddressAnswer, float]:
    """One answer of two, where the first alone was no help; and how long to keep it."""
    if isinstance(four, LookupFailed):
        # IPv6 alone will do for now; the other half is asked again soon.
        return (six if isinstance(six, Addresses) else four), FAILURE_KEPT_S
    if isinstance(six, LookupFailed):
        return six, FAILURE_KEPT_S
    ttl_s = min(four.ttl_s, six.ttl_s)
    if isinstance(four, NoAddress) and isinstance(six, NoAddress):
        reasons = dict.fromkeys((four.reason, six.reason))
        return NoAddress(", ".join(reasons), ttl_s), _held(ttl_s)
    if isinstance(four, NoAddress):
        return replace(six, ttl_s=ttl_s), _held(ttl_s)
    others = six.ips if isinstance(six, Addresses) else ()
    return Addresses(four.ips + others, ttl_s), _held(ttl_s)


def _held(ttl_s: int) -> float:
    """A time to live, held to what is worth remembering and still true."""
    return min(max(float(ttl_s), ADDRESSES_KEPT_MIN_S), ADDRESSES_KEPT_MAX_S)


@asynccontextmanager
async def open_routes(
    settings: EngineSettings, *, transport: DohTransport | None = None, rng: random.Random
) -> AsyncIterator[Routes]:
    """Routes that live as long as the block; without a transport, over the network.

    Raises ValueError for an endpoint that cannot be asked.
    """
    if transport is None:
        for url in settings.doh_urls:
            check_doh_url(url)
        async with (
            open_transport(settings.doh_ca_file) as opened,
            open_routes(settings, transport=opened, rng=rng) as routes,
        ):
            yield routes
        return
    async with trio.open_nursery() as nursery:
        resolvers = Resolvers(settings.doh_urls, transport, nursery)
        yield Routes(settings, resolvers, nursery, rng)
        nursery.cancel_scope.cancel()
