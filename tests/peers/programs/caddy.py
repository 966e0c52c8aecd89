"""Caddy in front of the service, with the configuration of `deploy/Caddyfile`."""

from collections.abc import Iterator
from contextlib import contextmanager

from mailprobe.bench.load.private_postgres import free_port
from tests.peers.programs.process import make_folder, open_program
from tests.peers.programs.shipped_proxy import NAME, Proxy, away, configured, make_certificate

COMMAND = ("/usr/bin/caddy", "run", "--config", "/peers/caddy/Caddyfile", "--adapter", "caddyfile")


@contextmanager
def open_caddy(service_port: int) -> Iterator[Proxy]:
    """Run Caddy with the file, changed only in its addresses, certificate and log.

    The second service of the file is away: its address refuses connections.
    """
    folder, port = make_folder("caddy"), free_port()
    make_certificate(folder)
    with away() as away_port:
        changes = {
            # Its own certificate would need the Internet, and the redirect port 80.
            "\tadmin off\n": "\tadmin off\n\tauto_https off\n\tdefault_bind 127.0.0.1\n",
            f"\n{NAME} {{\n": f"\n{NAME}:{port} {{\n\ttls /peers/caddy/chain /peers/caddy/key\n",
            "mailprobe-1:8080": f"127.0.0.1:{service_port}",
            "mailprobe-2:8080": f"127.0.0.1:{away_port}",
            "/var/log/caddy/access.log": "/peers/caddy/access.log",
        }
        (folder / "Caddyfile").write_text(configured("Caddyfile", changes))
        with open_program("caddy", COMMAND, HOME="/peers/caddy") as program:
            program.wait_for_port(port)
            program.wait_for_log(f"127.0.0.1:{away_port}")  # its health check has failed
            yield Proxy(program, port, folder / "authority", away_port)
