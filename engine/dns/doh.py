"""The transport of DNS over HTTPS (RFC 8484): all endpoints, and the task that takes their turns.

Endpoints are named by IP address, because the system's resolver is never used.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Protocol
from urllib.parse import urlsplit

import trio

from ..background import contained, log_fault, supervised
from ..net.public_addresses import numeric
from .connection import CLOSED, FAULT, DohConnection, Target
from .deadlines import DeadlineClock
from .endpoint import LOOKUPS_MAX, Endpoint, OpenCarrier
from .query_queue import Priority, Query
from .response import DNS_MESSAGE, DohResponse, HttpResponse, TransportFailed

if TYPE_CHECKING:
    import ssl


class DohTransport(Protocol):
    """Carries one query to one endpoint; the caller sets the time limit."""

    async def exchange(self, url: str, query: bytes) -> bytes:
        """Return the DNS message of the answer. Raises TransportFailed."""
        ...


def check_doh_url(url: str) -> str:
    """Return the endpoint's URL as it will be used.

    `localhost` becomes 127.0.0.1; any other name would need the resolver that this
    endpoint is. Raises ValueError with a message for the operator.
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
    # Python 3.13 calls ::ffff:127.0.0.1 loopback too; refuse it in every version.
    mapped = getattr(address, "ipv4_mapped", None) is not None
    if parts.scheme == "http" and (mapped or not address.is_loopback):
        raise ValueError("http:// is taken for loopback addresses alone; use https://")
    where = f"[{address}]" if address.version == 6 else str(address)
    where += f":{port}" if port is not None else ""
    return f"{parts.scheme}://{where}{parts.path}" + (f"?{parts.query}" if parts.query else "")


Settle = Callable[[DohResponse | TransportFailed], None]


class _DirectQuery(Query):
    """A query that no look-up sends. No late one has to give way to it."""

    __slots__ = ("_settle",)

    def __init__(self, question: bytes, settle: Settle) -> None:
        super().__init__("", question, {"": Priority.PROBE})
        self.preempted = True
        self._settle = settle

    def received(self, result: DohResponse | TransportFailed) -> None:
        self._settle(result)


class _TaskCarrier:
    """Carries queries by a transport that can only be awaited: each has a task of its own."""

    capacity = LOOKUPS_MAX
    leaving = worn = False

    def __init__(
        self,
        transport: DohTransport,
        url: str,
        nursery: trio.Nursery,
        owner: Endpoint,
        capacity: int,
        quota: float,
    ) -> None:
        self._transport = transport
        self._url = url
        self._nursery = nursery
        self._owner = owner
        self._scopes: dict[Query, trio.CancelScope] = {}

    @property
    def room(self) -> int:
        return LOOKUPS_MAX - len(self._scopes)

    def send(self, query: Query, now: float) -> None:
        scope = self._scopes[query] = trio.CancelScope()
        self._nursery.start_soon(contained, self._carry, query, scope)

    def cancel(self, query: Query) -> None:
        self._scopes.pop(query).cancel()

    def retire(self) -> None:
        """Do nothing: it never has to be replaced."""

    def fail(self) -> None:
        """Do nothing: a fault of one query does not affect the others."""

    async def run(self) -> None:
        self._owner.opened(is_http1=False)

    async def _carry(self, query: Query, scope: trio.CancelScope) -> None:
        result: HttpResponse | TransportFailed
        with scope:
            try:
                octets = await self._transport.exchange(self._url, query.question)
                result = HttpResponse(200, DNS_MESSAGE.encode(), body=octets)
            except TransportFailed as error:
                result = error
            except OSError as error:
                result = TransportFailed(str(error) or type(error).__name__)
            except Exception:
                log_fault(self._carry)
                result = TransportFailed(FAULT)
            if self._scopes.get(query) is scope:  # else it was cancelled meanwhile
                del self._scopes[query]
                self._owner.receive(query, result, None)
                self._owner.mark()


class Transport:
    """The endpoints by URL; each is made when it is needed. Look-ups and direct queries share them.

    With `exchange` it carries every query; otherwise over real sockets: no redirect, no
    cookie, no proxy from the environment.
    """

    def __init__(
        self,
        nursery: trio.Nursery,
        *,
        ca_file: str | None = None,
        exchange: DohTransport | None = None,
    ) -> None:
        self.clock = DeadlineClock()
        self._nursery = nursery
        self._ca_file = ca_file
        self._exchange = exchange
        self._tls: ssl.SSLContext | None = None
        self._endpoints: dict[str, Endpoint] = {}
        self._closed = False
        nursery.start_soon(supervised, self.clock.run)

    def endpoint(self, url: str) -> Endpoint:
        """The endpoint of this URL. Raises ValueError for one that check_doh_url refuses."""
        endpoint = self._endpoints.get(url)
        if endpoint is None:
            open_carrier: OpenCarrier
            if self._exchange is not None:
                open_carrier = partial(_TaskCarrier, self._exchange, url, self._nursery)
            else:
                target = Target.of(check_doh_url(url), self._context)
                open_carrier = partial(DohConnection, target, self.clock)
            endpoint = Endpoint(url, self.clock, self._nursery, open_carrier)
            self._endpoints[url] = endpoint
        return endpoint

    async def exchange(self, url: str, query: bytes) -> bytes:
        return (await self.post(url, query)).octets

    async def post(self, url: str, query: bytes) -> DohResponse:
        """Send a query and return the response.

        It is sent again if its connection ends (GOAWAY), TRIES_MAX times in all. Raises
        TransportFailed, or ValueError for a URL that check_doh_url refuses.
        """
        task = trio.lowlevel.current_task()
        results: list[DohResponse | TransportFailed] = []

        def settle(result: DohResponse | TransportFailed) -> None:
            results.append(result)
            trio.lowlevel.reschedule(task)

        def abort(_: object) -> trio.lowlevel.Abort:
            cancel()
            return trio.lowlevel.Abort.SUCCEEDED

        if self._closed:
            raise TransportFailed(CLOSED)
        cancel = self.begin(url, query, settle)
        await trio.lowlevel.wait_task_rescheduled(abort)
        [result] = results
        if isinstance(result, TransportFailed):
            raise result
        return result

    def begin(self, url: str, query: bytes, settle: Settle) -> Callable[[], None]:
        """Send a query; call `settle` once with the response or the failure.

        That happens after this call, unless the transport is closed. Returns a function that
        cancels the query; `settle` is then never called. Raises ValueError as `endpoint` does.
        """
        endpoint = self.endpoint(url)
        direct = _DirectQuery(query, settle)
        if self._closed:
            settle(TransportFailed(CLOSED))
        else:
            endpoint.submit(direct)
        return lambda: endpoint.cancel(direct)

    def _context(self) -> "ssl.SSLContext":
        if self._tls is None:
            self._tls = tls_context(self._ca_file)
            self._tls.set_alpn_protocols(["h2", "http/1.1"])
        return self._tls

    def close(self) -> None:
        """Fail all queries, and take no others."""
        self._closed = True
        for endpoint in self._endpoints.values():
            endpoint.close()


@asynccontextmanager
async def open_transport(ca_file: str | None = None) -> AsyncIterator[Transport]:
    """Open a transport to real endpoints; its connections end with the block.

    An endpoint must show a certificate for its address by an authority in `ca_file` (PEM),
    or else of the system. The authorities are read when the first connection needs them.
    """
    async with trio.open_nursery() as nursery:
        transport = Transport(nursery, ca_file=ca_file)
        try:
            yield transport
        finally:
            transport.close()
            nursery.cancel_scope.cancel()


def tls_context(ca_file: str | None) -> "ssl.SSLContext":
    """A client context that trusts only the authorities in this file (PEM), or the system's."""
    import ssl

    context = ssl.create_default_context(cafile=ca_file)
    context.hostname_checks_common_name = False  # RFC 9525 6.3: by its names alone
    known = ssl.get_default_verify_paths()
    if ca_file is None and known.cafile is None and known.capath is None:
        import certifi  # a container without the system's authorities

        context.load_verify_locations(certifi.where())
    return context
