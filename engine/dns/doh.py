"""The transport of DNS over HTTPS (RFC 8484): the bytes of one query to one endpoint.

The transport does not read DNS messages. Endpoints are named by IP
address, because the system's resolver is never used.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Protocol
from urllib.parse import urlsplit

import trio

from mailprobe.engine.dns.connections import DohRequest, Settle
from mailprobe.engine.dns.endpoint import DohEndpoint
from mailprobe.engine.dns.response import DohResponse, TransportFailed
from mailprobe.engine.net.public_addresses import numeric

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


class Transport:
    """DNS over HTTPS on real sockets: no redirect, no cookie, no proxy from the environment."""

    def __init__(self, nursery: trio.Nursery, ca_file: str | None) -> None:
        self._nursery = nursery
        self._ca_file = ca_file
        self._tls: ssl.SSLContext | None = None
        self._endpoints: dict[str, DohEndpoint] = {}

    async def exchange(self, url: str, query: bytes) -> bytes:
        return (await self.post(url, query)).octets

    async def post(self, url: str, query: bytes) -> DohResponse:
        """Send a query and return the response.

        It is sent again if its connection ends (GOAWAY), TRIES_MAX times in all. Raises
        TransportFailed, or ValueError for a URL that check_doh_url refuses.
        """
        task = trio.lowlevel.current_task()
        results: list[DohResponse | TransportFailed] = []
        waiting = False

        def settle(result: DohResponse | TransportFailed) -> None:
            results.append(result)
            if waiting:
                trio.lowlevel.reschedule(task)

        def abort(_: object) -> trio.lowlevel.Abort:
            cancel()
            return trio.lowlevel.Abort.SUCCEEDED

        cancel = self.begin(url, query, settle)
        if results:
            await trio.lowlevel.checkpoint()
        else:
            waiting = True
            await trio.lowlevel.wait_task_rescheduled(abort)
        [result] = results
        if isinstance(result, TransportFailed):
            raise result
        return result

    def begin(self, url: str, query: bytes, settle: Settle) -> Callable[[], None]:
        """Send a query; call `settle` once with the response or the failure, perhaps at once.

        Returns a function that cancels the query; `settle` is then never called. Raises
        ValueError for a URL that check_doh_url refuses.
        """
        endpoint = self._endpoint(url)
        request = DohRequest(query, settle)
        endpoint.submit(request)
        return request.cancel

    def subscribe_capacity(self, url: str, on_change: Callable[[int], None]) -> None:
        """Call `on_change` with the number of requests that the endpoint takes at a time.

        It is called at once, and when the number changes. Raises ValueError as `begin` does.
        """
        self._endpoint(url).subscribe_capacity(on_change)

    def _endpoint(self, url: str) -> DohEndpoint:
        endpoint = self._endpoints.get(url)
        if endpoint is None:
            checked = check_doh_url(url)
            endpoint = self._endpoints.get(checked)
            if endpoint is None:
                endpoint = DohEndpoint(checked, self._nursery, self._context)
            self._endpoints[url] = self._endpoints[checked] = endpoint
        return endpoint

    def _context(self) -> "ssl.SSLContext":
        if self._tls is None:
            self._tls = tls_context(self._ca_file)
            self._tls.set_alpn_protocols(["h2", "http/1.1"])
        return self._tls

    def close(self) -> None:
        for endpoint in self._endpoints.values():
            endpoint.close()


@asynccontextmanager
async def open_transport(ca_file: str | None = None) -> AsyncIterator[Transport]:
    """Open a transport to real endpoints; its connections end with the block.

    An endpoint must show a certificate for its address by an authority in `ca_file` (PEM),
    or else of the system. The authorities are read when the first connection needs them.
    """
    async with trio.open_nursery() as nursery:
        transport = Transport(nursery, ca_file)
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
