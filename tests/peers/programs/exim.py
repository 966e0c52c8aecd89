"""Exim: a daemon is at many addresses. Its ACLs depend on the address of the connection."""

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from mailprobe.bench.load.private_postgres import free_port
from tests.peers.programs.process import Program, make_folder, open_program, uid_of

BEGIN = """
primary_hostname = mx.exim.test
exim_path = /usr/sbin/exim4
spool_directory = FOLDER/spool
log_file_path = FOLDER/%slog
pid_file_path = FOLDER/pid
host_lookup =
rfc1413_query_timeout = 0s
keep_environment =
daemon_smtp_ports = 25
smtp_accept_max = 100
recipients_max = 5000
"""


@contextmanager
def open_exim(
    addresses: Sequence[str],
    configuration: bytes,
    chain: bytes = b"",
    *,
    name: str = "exim",
    port: int | None = None,
) -> Iterator[tuple[Program, int]]:
    """Run Exim at these addresses, at a free port if none is given. Yields the port too.

    `chain` is a key with its certificates, PEM. In the configuration FOLDER is the daemon's folder and
    PORT its port. Each daemon that runs at a time has a name of its own.
    """
    port = port or free_port()
    folder = make_folder(name)
    (folder / "spool").mkdir()
    (folder / "chain").write_bytes(chain)
    for path in (folder, folder / "spool", folder / "chain"):
        shutil.chown(path, uid_of("Debian-exim"))
    interfaces = " ; ".join(f"{address}.{port}" for address in addresses)
    begin = f"local_interfaces = <; {interfaces}\n"
    configuration = (BEGIN + begin).encode() + configuration
    configuration = configuration.replace(b"FOLDER", f"/peers/{name}".encode())
    configuration = configuration.replace(b"PORT", str(port).encode())
    (folder / "configuration").write_bytes(configuration)
    command = ["/usr/sbin/exim4", "-C", f"/peers/{name}/configuration", "-bdf"]
    with open_program(name, command) as program:
        program.wait_for_port(port, addresses[0])
        yield program, port
