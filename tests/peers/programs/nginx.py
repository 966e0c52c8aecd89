"""nginx in front of the service: with the configuration of `deploy/nginx.conf`, or with hardly any."""

from collections.abc import Iterator
from contextlib import contextmanager

from tests.peers.programs.process import free_port, make_folder, open_program
from tests.peers.programs.shipped_proxy import Proxy, away, configured, make_certificate

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


@contextmanager
def open_nginx(service_port: int, second_port: int | None = None) -> Iterator[Proxy]:
    """Run nginx with the file, changed only in its addresses, certificate, workers and log.

    Without `second_port` the second service of the file is away: its address refuses connections.
    """
    folder, port = make_folder("nginx"), free_port()
    make_certificate(folder)
    with away() as away_port:
        changes = {
            "worker_processes auto;": "worker_processes 1;",  # tests count its connections
            "mailprobe-1:8080": f"127.0.0.1:{service_port}",
            "mailprobe-2:8080": f"127.0.0.1:{second_port or away_port}",
            "listen 443 ": f"listen 127.0.0.1:{port} ",
            "/etc/nginx/tls/fullchain.pem": "/peers/nginx/chain",
            "/etc/nginx/tls/privkey.pem": "/peers/nginx/key",
            "/var/log/nginx/access.log": "/peers/nginx/access.log",
        }
        (folder / "nginx.conf").write_text(configured("nginx.conf", changes))
        with open_program("nginx", [*COMMAND, "-g", "daemon off;"]) as program:
            program.wait_for_port(port)
            yield Proxy(program, port, folder / "authority", away_port)


@contextmanager
def open_default_nginx(service_port: int) -> Iterator[int]:
    """Run nginx with its default proxying; yield its port."""
    folder, port = make_folder("nginx"), free_port()
    (folder / "nginx.conf").write_text(DEFAULT % (port, service_port))
    with open_program("nginx", [*COMMAND, "-g", "daemon off;"]) as program:
        program.wait_for_port(port)
        yield port
