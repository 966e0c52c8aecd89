"""A proxy in front of two services with a file of `deploy/`, changed only in names and places."""

import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import trustme

from tests.peers.programs.process import Program

DEPLOY = Path(__file__).parents[3] / "deploy"
NAME = "mailprobe.example.org"


@dataclass(frozen=True)
class Proxy:
    program: Program
    port: int
    authority: Path
    away_port: int  # of the service that is away

    @property
    def host(self) -> str:
        return f"{NAME}:{self.port}"


def configured(name: str, changes: Mapping[str, str]) -> str:
    """The text of the file, with each of these changed, which it must have."""
    text = (DEPLOY / name).read_text("utf-8")
    for old, new in changes.items():
        assert old in text, f"{name} does not have {old!r}"
        text = text.replace(old, new)
    return text


def make_certificate(folder: Path) -> None:
    """Write a certificate of NAME: `chain` and `key`, and the `authority` that clients trust."""
    authority = trustme.CA()
    issued = authority.issue_cert(NAME)
    authority.cert_pem.write_to_path(str(folder / "authority"))
    issued.private_key_pem.write_to_path(str(folder / "key"))
    issued.cert_chain_pems[0].write_to_path(str(folder / "chain"))


@contextmanager
def away() -> Iterator[int]:
    """A port that refuses connections until the block ends."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))  # it is never listened on
        yield bound.getsockname()[1]
