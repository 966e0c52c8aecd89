"""Egresses over real sockets: source addresses of this machine, and SOCKS5 proxies."""

import random
import socket

import pytest
import trio

from mailprobe.bench.world.fake_network import FakeTransport
from mailprobe.bench.world.mail_host import MailHost
from mailprobe.bench.world.zone import Zone
from mailprobe.engine import EngineSettings, open_engine
from mailprobe.engine.egress import Egress, Egresses
from mailprobe.engine.net.tcp import EgressFailed, connect
from tests.engine.net.socks_server import closed_port, exactly, greet, open_server
from tests.engine.smtp.egress.worlds import LISTED, answers_of, reasons

TEXTS = [f"known{n}@shop{m}.test" for n in range(2) for m in range(12)]
MISSING = "192.0.2.77"  # no machine has it


async def relay(stream: trio.SocketStream) -> None:
    """A SOCKS5 proxy: connects to the target, and passes everything on."""
    await exactly(stream, (await exactly(stream, 2))[1])
    await stream.send_all(b"\5\0")
    request = await exactly(stream, 10)
    target = await trio.open_tcp_stream(
        socket.inet_ntoa(request[4:8]), int.from_bytes(request[8:], "big")
    )
    await stream.send_all(b"\5\0\0\1" + bytes(6))

    async def pass_on(one: trio.SocketStream, other: trio.SocketStream) -> None:
        async for octets in one:
            await other.send_all(octets)
        nursery.cancel_scope.cancel()

    async with target, trio.open_nursery() as nursery:
        nursery.start_soon(pass_on, stream, target)
        nursery.start_soon(pass_on, target, stream)


def refused(port: int) -> Egress:
    return Egress("a", source="127.0.0.2")


def missing(port: int) -> Egress:
    return Egress("a", source=MISSING)


def of_another_family(port: int) -> Egress:
    return Egress("a", source="::1")


def of_a_dead_proxy(port: int) -> Egress:
    return Egress("a", proxy=f"socks5://127.0.0.1:{closed_port()}")


def working_proxy(port: int) -> Egress:
    return Egress("b", proxy=f"socks5://127.0.0.1:{port}")


def working_source(port: int) -> Egress:
    return Egress("b", source="127.0.0.3")


@pytest.mark.parametrize("deferred_start", [False, True], ids=["requests", "list"])
@pytest.mark.parametrize("other", [working_source, working_proxy])
@pytest.mark.parametrize("first", [refused, missing, of_another_family, of_a_dead_proxy])
async def test_another_egress_asks_what_one_cannot(idle_clock, first, other, deferred_start):
    host, turned_away = MailHost(), MailHost(banner=LISTED)
    sources = set()

    async def serve(stream: trio.SocketStream) -> None:
        sources.add(source := stream.socket.getpeername()[0])
        await (turned_away if source == "127.0.0.2" else host).serve(stream)

    zone = Zone()
    for number in range(12):
        zone.mx(f"shop{number}.test", (10, f"mx{number}.test"))
        zone.host(f"mx{number}.test", "127.0.0.1")
    async with open_server(serve) as smtp_port, open_server(relay) as proxy_port:
        rows = first(proxy_port), other(proxy_port)
        settings = EngineSettings(smtp_port=smtp_port, allow_private=True, egresses=Egresses(rows))
        async with open_engine(
            settings, transport=FakeTransport(zone), rng=random.Random(0)
        ) as engine:
            found = await answers_of(engine, TEXTS, deferred_start=deferred_start)
    assert set(reasons(found)) == {"accepted"}
    uses = {row.source or "127.0.0.1" for row in rows}
    assert sources <= uses
    assert (rows[1].source or "127.0.0.1") in sources


async def test_a_connection_leaves_from_its_source_address():
    async with open_server(greet) as port:
        stream = await connect("127.0.0.1", port, "127.0.0.3")
        assert stream.socket.getsockname()[0] == "127.0.0.3"
        await stream.aclose()
        with pytest.raises(EgressFailed, match=f"cannot use {MISSING}"):
            await connect("127.0.0.1", port, MISSING)
