"""OpenSMTPD: one daemon at many addresses, each with its own listener and filters."""

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import trustme

from mailprobe.bench.load.private_postgres import free_port
from tests.peers.programs.process import ROOT, Program, make_folder, open_program

SPOOL = ROOT / "var/spool/smtpd"  # compiled in, as its socket is: only one daemon at a time


@contextmanager
def open_opensmtpd(
    configuration: str, listeners: Mapping[str, str], tables: Mapping[str, str]
) -> Iterator[tuple[Program, int]]:
    """Run OpenSMTPD: by address, a listener's options; by name, a table. Yields the port too.

    The tables, and a certificate's `chain` and `key`, are files in `/peers/opensmtpd`.
    """
    port = free_port()
    folder = make_folder("opensmtpd")
    _make_spool()
    for name, text in tables.items():
        (folder / name).write_text(text)
    issued = trustme.CA().issue_cert("mx.smtpd.test")
    issued.cert_chain_pems[0].write_to_path(str(folder / "chain"))
    issued.private_key_pem.write_to_path(str(folder / "key"))
    (folder / "key").chmod(0o600)
    lines = [
        f"listen on {address} port {port} {options}\n" for address, options in listeners.items()
    ]
    path = folder / "configuration"
    path.write_text(configuration.replace("LISTENERS", "".join(lines)))
    path.chmod(0o600)
    command = ["/usr/sbin/smtpd", "-d", "-v", "-f", "/peers/opensmtpd/configuration"]
    with open_program("opensmtpd", command) as program:
        program.wait_for_port(port, next(iter(listeners)))
        yield program, port


def _make_spool() -> None:
    """Make what the package's script would: an empty spool with the owners that the daemon checks."""
    shutil.rmtree(SPOOL, ignore_errors=True)
    SPOOL.mkdir(parents=True)
    SPOOL.chmod(0o711)
    (ROOT / "var/run").mkdir(exist_ok=True)
    (ROOT / "var/run/smtpd.sock").unlink(missing_ok=True)
