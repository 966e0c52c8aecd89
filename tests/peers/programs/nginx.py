"""nginx in front of the service, with the configuration that docs/operating.md shows."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import trustme

from tests.peers.programs.process import Program, free_port, make_folder, open_program

PAGE = Path(__file__).parents[3] / "docs/operating.md"
NAME = "mailprobe.example.org"

# Encloses the page's text: run in the foreground, and write only to the program's folder.
AROUND = """
daemon off;
user www-data;
worker_processes 1;
pid /peers/nginx/pid;
error_log /peers/nginx/error.log info;
events {{ worker_connections 512; }}
http {{
  log_format peers '$request_method $uri $status $upstream_connect_time $server_protocol';
  access_log /peers/nginx/access.log peers;
  client_body_temp_path /peers/nginx/body;
  proxy_temp_path /peers/nginx/proxy;
  fastcgi_temp_path /peers/nginx/fastcgi;
  uwsgi_temp_path /peers/nginx/uwsgi;
  scgi_temp_path /peers/nginx/scgi;
{page}
}}
"""


@dataclass(frozen=True)
class Nginx:
    program: Program
    port: int
    authority: Path

    @property
    def url(self) -> str:
        return f"https://{NAME}:{self.port}"


def page_text() -> str:
    """The page's only block of nginx configuration."""
    block: str
    (block,) = re.findall(r"```nginx\n(.*?)```", PAGE.read_text(), re.DOTALL)
    return block


def _replace_once(text: str, old: str, new: str) -> str:
    assert text.count(old) == 1, f"{PAGE.name} does not have {old!r} exactly once"
    return text.replace(old, new)


@contextmanager
def open_nginx(service_port: int) -> Iterator[Nginx]:
    """Run nginx with the page's configuration, changed only in its ports and its certificate."""
    folder = make_folder("nginx")
    port = free_port()
    authority = trustme.CA()
    issued = authority.issue_cert(NAME)
    authority.cert_pem.write_to_path(str(folder / "authority"))
    issued.private_key_pem.write_to_path(str(folder / "key"))
    issued.cert_chain_pems[0].write_to_path(str(folder / "chain"))
    certificate = "ssl_certificate /peers/nginx/chain; ssl_certificate_key /peers/nginx/key;"
    page = _replace_once(page_text(), "127.0.0.1:8080", f"127.0.0.1:{service_port}")
    page = _replace_once(page, "listen 443 ssl http2;", f"listen 127.0.0.1:{port} ssl http2;")
    page = _replace_once(page, "# ssl_certificate, ssl_certificate_key", certificate)
    (folder / "nginx.conf").write_text(AROUND.format(page=page))
    command = ["/usr/sbin/nginx", "-c", "/peers/nginx/nginx.conf", "-e", "/peers/nginx/error.log"]
    with open_program("nginx", command) as program:
        program.wait_for_port(port)
        yield Nginx(program, port, folder / "authority")
