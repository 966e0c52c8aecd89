"""nginx in front of the service: with the configuration of `deploy/nginx.conf`, or with hardly any."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from mailprobe.bench.load.private_postgres import free_port
from tests.peers.programs.process import make_folder, open_program
from tests.peers.programs.shipped_proxy import Proxy, away, configured, make_certificate

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


def command(name: str) -> list[str]:
    at = f"/peers/{name}"
    return [
        "/usr/sbin/nginx",
        "-c",
        f"{at}/nginx.conf",
        "-e",
        f"{at}/error.log",
        "-g",
        "daemon off;",
    ]


@contextmanager
def open_nginx(
    service_port: int, second_port: int | None = None, *more_ports: int, name: str = "nginx"
) -> Iterator[Proxy]:
    """Run nginx with the file, changed only in its addresses, certificate, workers and log.

    Without `second_port` the second service of the file is away: its address refuses connections.
    `name` is that of its folder, which one process of the tests may use at a time.
    """
    folder, port = make_folder(name), free_port()
    make_certificate(folder)
    with away() as away_port:
        changes = {
            "worker_processes auto;": "worker_processes 1;",  # tests count its connections
            "mailprobe-1:8080": f"127.0.0.1:{service_port}",
            "mailprobe-2:8080": f"127.0.0.1:{second_port or away_port}",
            "listen 443 ": f"listen 127.0.0.1:{port} ",
            "/etc/nginx/tls/fullchain.pem": f"/peers/{name}/chain",
            "/etc/nginx/tls/privkey.pem": f"/peers/{name}/key",
            "/var/log/nginx/access.log": f"/peers/{name}/access.log",
        }
        text = configured("nginx.conf", changes)
        first = re.compile(rf"^ *server 127\.0\.0\.1:{service_port} .*\n", re.M)
        old = f":{service_port} "
        for line in set(first.findall(text)):
            text = text.replace(
                line, line + "".join(line.replace(old, f":{more} ") for more in more_ports)
            )
        (folder / "nginx.conf").write_text(text)
        with open_program(name, command(name)) as program:
            program.wait_for_port(port)
            yield Proxy(program, port, folder / "authority", away_port)


@contextmanager
def open_default_nginx(service_port: int) -> Iterator[int]:
    """Run nginx with its default proxying; yield its port."""
    folder, port = make_folder("nginx"), free_port()
    (folder / "nginx.conf").write_text(DEFAULT % (port, service_port))
    with open_program("nginx", command("nginx")) as program:
        program.wait_for_port(port)
        yield port
