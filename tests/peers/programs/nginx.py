"""nginx in front of the service: with the configuration of `deploy/nginx.conf`, or with hardly any."""

import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import trustme

from tests.peers.programs.process import Program, free_port, make_folder, open_program

CONFIGURATION = Path(__file__).parents[3] / "deploy/nginx.conf"
NAME = "mailprobe.example.org"
COMMAND = ("/usr/sbin/nginx", "-c", "/peers/nginx/nginx.conf", "-e", "/peers/nginx/error.log")

# What a quick start has: HTTP/1.0 to the service, and a connection for each request.
DEFAULT = """
worker_rlimit_nofile 16384;
events { worker_connections 8192; }
http {
    server {
        listen 127.0.0.1:%d backlog=4096;
        access_log off;
        location / { proxy_pass http://127.0.0.1:%d; }
    }
}
"""


@dataclass(frozen=True)
class Nginx:
    program: Program
    port: int
    authority: Path
    away_port: int  # of the service that is away

    @property
    def url(self) -> str:
        return f"https://{NAME}:{self.port}"


def configured(changes: Mapping[str, str]) -> str:
    """The text of the file, with each of these changed, which it must have exactly once."""
    text = CONFIGURATION.read_text("utf-8")
    for old, new in changes.items():
        assert text.count(old) == 1, f"{CONFIGURATION.name} does not have {old!r} exactly once"
        text = text.replace(old, new)
    return text


@contextmanager
def open_nginx(service_port: int) -> Iterator[Nginx]:
    """Run nginx with the file, changed only in its addresses, certificate, workers and log.

    The second service of the file is away: its address refuses connections.
    """
    folder = make_folder("nginx")
    port = free_port()
    authority = trustme.CA()
    issued = authority.issue_cert(NAME)
    authority.cert_pem.write_to_path(str(folder / "authority"))
    issued.private_key_pem.write_to_path(str(folder / "key"))
    issued.cert_chain_pems[0].write_to_path(str(folder / "chain"))
    with socket.socket() as away:
        away.bind(("127.0.0.1", 0))  # it is never listened on
        away_port = away.getsockname()[1]
        changes = {
            "worker_processes auto;": "worker_processes 1;",  # tests count its connections
            "mailprobe-1:8080": f"127.0.0.1:{service_port}",
            "mailprobe-2:8080": f"127.0.0.1:{away_port}",
            "listen 443 ": f"listen 127.0.0.1:{port} ",
            "/etc/nginx/tls/fullchain.pem": "/peers/nginx/chain",
            "/etc/nginx/tls/privkey.pem": "/peers/nginx/key",
            "/var/log/nginx/access.log": "/peers/nginx/access.log",
        }
        (folder / "nginx.conf").write_text(configured(changes))
        with open_program("nginx", [*COMMAND, "-g", "daemon off;"]) as program:
            program.wait_for_port(port)
            yield Nginx(program, port, folder / "authority", away_port)


@contextmanager
def open_default_nginx(service_port: int) -> Iterator[int]:
    """Run nginx with its default proxying; yield its port."""
    folder, port = make_folder("nginx"), free_port()
    (folder / "nginx.conf").write_text(DEFAULT % (port, service_port))
    with open_program("nginx", [*COMMAND, "-g", "daemon off;"]) as program:
        program.wait_for_port(port)
        yield port
