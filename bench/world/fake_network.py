"""All mail hosts and names of a test, behind the engine's two network interfaces.

`dial` connects in memory to a scripted host; `transport` answers DNS queries from the
zone. Everything waits on trio's clock only, so it works with virtual time, and every
random choice comes from the seed, session by session.
"""

from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from ipaddress import IPv4Address
from random import Random

import trio
from msgspec import Struct, field
from trio.testing import memory_stream_pair

from mailprobe.engine.dns.pacing import read_refusal
from mailprobe.engine.dns.response import HttpResponse

from .mail_host import HostAddress, MailHost
from .resolver_faults import ResolverFaults, Unavailable
from .zone import (
    HTML,
    Behaviour,
    Zone,
    ZoneMode,
    answer_in_mode,
    answer_of_faults,
    read_question,
)

FIRST_ADDRESS = IPv4Address("11.0.0.1")  # public, and not the address of a mail host
DIALLED_KEPT = 100_000


class _Wire(Struct):
    """What both ends of one connection share."""

    broken: bool = False


class Cable(trio.abc.HalfCloseableStream):
    """One end of a connection in memory that can break as well as end."""

    def __init__(self, stream: trio.abc.HalfCloseableStream, wire: _Wire) -> None:
        self._stream = stream
        self._wire = wire

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        if self._wire.broken:
            raise trio.BrokenResourceError("connection reset")
        await self._stream.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await trio.lowlevel.checkpoint()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        octets = await self._stream.receive_some(max_bytes)
        if not octets and self._wire.broken:
            raise trio.BrokenResourceError("connection reset")
        return octets

    async def send_eof(self) -> None:
        await self._stream.send_eof()

    async def aclose(self) -> None:
        await self._stream.aclose()

    def reset(self) -> None:
        """From now on the other end gets a reset instead of the end."""
        self._wire.broken = True


def open_cable() -> tuple[Cable, Cable]:
    """Both ends of a new connection."""
    wire = _Wire()
    client, server = memory_stream_pair()
    return Cable(client, wire), Cable(server, wire)


class FakeEndpoint(Struct, frozen=True):
    """How one endpoint answers every query."""

    delay_s: float = 0.0
    mode: ZoneMode | None = None
    faults: ResolverFaults = field(default_factory=ResolverFaults)  # besides those of the zone


class FakeTransport(Struct):
    """A DohTransport that answers from a zone.

    `endpoints` sets the behaviour of single URLs; any other URL is a working resolver.
    """

    zone: Zone
    endpoints: dict[str, FakeEndpoint] = field(default_factory=dict)
    exchanged: Counter[str] = field(default_factory=Counter)  # queries by URL

    async def exchange(self, url: str, query: bytes) -> bytes:
        """Answer a query. Raises OSError if the endpoint cannot be reached; blocks if it hangs."""
        self.exchanged[url] += 1
        endpoint = self.endpoints.get(url, FakeEndpoint())
        await trio.sleep(endpoint.delay_s)
        question = read_question(query)
        answer = answer_of_faults(question, endpoint.faults)
        if answer is None and endpoint.mode is not None:
            answer = answer_in_mode(question.message, endpoint.mode)
        elif answer is None:
            answer = self.zone.answer(query)
        return answer if isinstance(answer, bytes) else await self._act(answer)

    async def _act(self, behaviour: Behaviour) -> bytes:
        if behaviour is ZoneMode.HANG:
            await trio.sleep_forever()
        if behaviour is ZoneMode.HTML:
            return HTML
        if isinstance(behaviour, Unavailable):
            date, retry_after = behaviour.date.encode(), behaviour.retry_after.encode()
            response = HttpResponse(behaviour.status, date=date, retry_after=retry_after)
            raise read_refusal(response, trio.current_time())
        raise ConnectionError(f"the resolver is {behaviour.value}")


class FakeNetwork:
    """A zone and hosts by address, with `dial` and `transport` to reach them."""

    def __init__(self, nursery: trio.Nursery, *, seed: int = 0, port: int = 25) -> None:
        self.seed = seed
        self.rng = Random(seed)
        self.port = port
        self.zone = Zone()
        self.transport = FakeTransport(self.zone)
        self.hosts: dict[str, MailHost] = {}  # by IP address
        self.dialled: deque[tuple[str, int]] = deque(maxlen=DIALLED_KEPT)
        self._opened: Counter[str] = Counter()  # connections by address
        self._nursery = nursery
        self._next_address = FIRST_ADDRESS

    def add(
        self,
        domain: str,
        host: MailHost,
        *,
        mx: str | None = None,
        address: str | None = None,
        preference: int = 10,
    ) -> str:
        """Route a domain's mail to this host through the exchange `mx`; return its address.

        A second call for the same domain adds another exchange. A host may serve many
        domains, at one address.
        """
        mx = mx or f"mx.{domain}"
        address = address or self.address_of(host) or self._free_address()
        self.hosts[address] = host
        known = self.zone.names.get(domain.lower())
        self.zone.mx(domain, *(known.mx if known else ()), (preference, mx))
        found = self.zone.names.get(mx.lower())
        addresses = found.addresses if found else ()
        if address not in addresses:
            self.zone.host(mx, *addresses, address)
        return address

    def address_of(self, host: MailHost) -> str | None:
        return next((a for a, known in self.hosts.items() if known is host), None)

    def _free_address(self) -> str:
        address, self._next_address = self._next_address, self._next_address + 1
        return str(address)

    async def dial(self, address: str, port: int) -> trio.abc.Stream:
        """Connect, and return the client's end. Raises OSError; blocks at a silent address."""
        self.dialled.append((address, port))
        host = self.hosts.get(address)
        await trio.sleep(host.connect_s if host else 0)
        if host is None or host.address is HostAddress.REFUSED or port != self.port:
            raise ConnectionRefusedError(f"nothing listens at {address} port {port}")
        if host.address is HostAddress.UNREACHABLE:
            raise OSError(113, "No route to host")
        if host.address is HostAddress.SILENT:
            await trio.sleep_forever()
        client, server = open_cable()
        self._opened[address] += 1
        session_rng = Random(f"{self.seed}/{address}/{self._opened[address]}")
        self._nursery.start_soon(host.serve, server, session_rng)
        return client


@asynccontextmanager
async def open_fake_network(*, seed: int = 0, port: int = 25) -> AsyncIterator[FakeNetwork]:
    """Open a network whose hosts live as long as the block."""
    async with trio.open_nursery() as nursery:
        yield FakeNetwork(nursery, seed=seed, port=port)
        nursery.cancel_scope.cancel()
