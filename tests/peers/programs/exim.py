"""Exim: one daemon at many addresses. Its ACLs depend on the address of the connection."""

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from mailprobe.bench.load.private_postgres import free_port
from tests.peers.programs.process import Program, make_folder, open_program, uid_of


@contextmanager
def open_exim(
    addresses: Sequence[str], configuration: bytes, chain: bytes
) -> Iterator[tuple[Program, int]]:
    """Run Exim at these addresses. `chain` is a key with its certificates, PEM. Yields the port too."""
    port = free_port()
    folder = make_folder("exim")
    (folder / "spool").mkdir()
    (folder / "chain").write_bytes(chain)
    for path in (folder, folder / "spool", folder / "chain"):
        shutil.chown(path, uid_of("Debian-exim"))
    interfaces = " ; ".join(f"{address}.{port}" for address in addresses)
    begin = f"local_interfaces = <; {interfaces}\n"
    (folder / "configuration").write_bytes(begin.encode() + configuration)
    command = ["/usr/sbin/exim4", "-C", "/peers/exim/configuration", "-bdf"]
    with open_program("exim", command) as program:
        program.wait_for_port(port, addresses[0])
        yield program, port
