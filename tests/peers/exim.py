"""Exim: one daemon at many addresses; its ACLs look at the address that was connected to."""

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tests.peers.programs import Program, folder_of, free_port, number_of, running


@contextmanager
def exim(
    addresses: Sequence[str], configuration: bytes, chain: bytes
) -> Iterator[tuple[Program, int]]:
    """Listen at these addresses, with this key and certificate; and the port."""
    port = free_port()
    folder = folder_of("exim")
    (folder / "spool").mkdir()
    (folder / "chain").write_bytes(chain)
    for path in (folder, folder / "spool", folder / "chain"):
        shutil.chown(path, number_of("Debian-exim"))
    interfaces = " ; ".join(f"{address}.{port}" for address in addresses)
    begin = f"local_interfaces = <; {interfaces}\n"
    (folder / "configuration").write_bytes(begin.encode() + configuration)
    with running("exim", ["/usr/sbin/exim4", "-C", "/peers/exim/configuration", "-bdf"]) as program:
        program.wait_for(port, addresses[0])
        yield program, port
