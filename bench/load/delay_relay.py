"""A relay in a process of its own that delays every packet to a server, as distance does.

    python -m mailprobe.bench.load.delay_relay PORT DELAY_MS OWN_PORT

It prints the port that it listens on; OWN_PORT 0 is any. Only what goes to the
server is delayed, so that a round trip takes DELAY_MS longer.
"""

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import trio

OCTETS_MAX = 65_536  # read at a time
PACKETS_MAX = 1_000  # on their way on one connection; more wait in the socket


async def _delayed(source: trio.SocketStream, to: trio.SocketStream, delay_s: float) -> None:
    """Pass on what arrives, each piece `delay_s` later, several at once on their way."""
    sent, arriving = trio.open_memory_channel[tuple[float, bytes]](PACKETS_MAX)

    async def read() -> None:
        async with sent:
            while piece := await source.receive_some(OCTETS_MAX):
                await sent.send((trio.current_time() + delay_s, piece))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        async for due, piece in arriving:
            await trio.sleep_until(due)
            await to.send_all(piece)
    with suppress(trio.BrokenResourceError):
        await to.send_eof()


async def _serve(port: int, delay_s: float, own_port: int) -> None:
    async def relay(client: trio.SocketStream) -> None:
        with suppress(OSError, trio.BrokenResourceError, trio.ClosedResourceError):
            async with await trio.open_tcp_stream("127.0.0.1", port) as server, client:
                with suppress(ExceptionGroup):
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(_delayed, client, server, delay_s)
                        nursery.start_soon(_delayed, server, client, 0.0)

    listeners = await trio.open_tcp_listeners(own_port, host="127.0.0.1")
    print(listeners[0].socket.getsockname()[1], flush=True)
    await trio.serve_listeners(relay, listeners)


@contextmanager
def delayed(url: str, delay_ms: float, own_port: int = 0) -> Iterator[str]:
    """Return the URL of a PostgreSQL server on loopback as one so far away.

    At the end of the block all connections end, and others are refused.
    """
    port = re.search(r":(\d+)/", url)
    assert port
    command = [sys.executable, "-m", __name__, port[1], str(delay_ms), str(own_port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            own = process.stdout.readline().strip()
            yield url.replace(f":{port[1]}/", f":{own}/")
        finally:
            process.kill()


if __name__ == "__main__":
    trio.run(_serve, int(sys.argv[1]), float(sys.argv[2]) / 1000, int(sys.argv[3]))
