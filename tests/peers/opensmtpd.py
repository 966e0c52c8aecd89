"""OpenSMTPD: one daemon at many addresses, each with a listener and filters of its own."""

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import trustme

from tests.peers.programs import ROOT, Program, folder_of, free_port, running

SPOOL = ROOT / "var/spool/smtpd"  # compiled in, as its socket is: one daemon at a time


@contextmanager
def opensmtpd(
    configuration: str, listeners: Mapping[str, str], tables: Mapping[str, str]
) -> Iterator[tuple[Program, int]]:
    """Listen at each of the addresses with its options; and the port. Tables are `/peers/opensmtpd/NAME`,
    and beside them are the `chain` and `key` of a certificate.
    """
    port = free_port()
    folder = folder_of("opensmtpd")
    _furnish()
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
    with running("opensmtpd", command) as program:
        program.wait_for(port, next(iter(listeners)))
        yield program, port


def _furnish() -> None:
    """What the package's script would make: an empty spool with the owners that the daemon checks."""
    shutil.rmtree(SPOOL, ignore_errors=True)
    SPOOL.mkdir(parents=True)
    SPOOL.chmod(0o711)
    (ROOT / "var/run").mkdir(exist_ok=True)
    (ROOT / "var/run/smtpd.sock").unlink(missing_ok=True)
