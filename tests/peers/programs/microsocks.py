"""microsocks, a SOCKS5 proxy: what goes through it comes from an address of its own."""

from collections.abc import Iterator
from contextlib import contextmanager

from mailprobe.bench.load.private_postgres import free_port
from tests.peers.programs.process import make_folder, open_program


@contextmanager
def open_microsocks(source: str) -> Iterator[str]:
    """Run it for the block with this address of loopback; the value is its URL."""
    name, port = f"microsocks-{source}", free_port()
    make_folder(name)
    command = ["/usr/bin/microsocks", "-i", "127.0.0.1", "-p", str(port), "-b", source]
    with open_program(name, command) as program:
        program.wait_for_port(port)
        yield f"socks5://127.0.0.1:{port}"
