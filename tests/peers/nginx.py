"""nginx in front of the service, with the very words of docs/operating.md."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import trustme

from tests.peers.programs import Program, folder_of, free_port, running

PAGE = Path(__file__).parents[2] / "docs/operating.md"
NAME = "mailprobe.example.org"

# Around the page's text: a process in the foreground, and where it may write.
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
    """The one block of nginx's words on the page."""
    (block,) = re.findall(r"```nginx\n(.*?)```", PAGE.read_text(), re.DOTALL)
    return block


def _put(text: str, old: str, new: str) -> str:
    assert text.count(old) == 1, f"{PAGE.name} does not say {old!r} once"
    return text.replace(old, new)


@contextmanager
def nginx(service_port: int) -> Iterator[Nginx]:
    """The page's configuration, with ports of ours, a certificate, and HTTP/2."""
    folder = folder_of("nginx")
    port = free_port()
    authority = trustme.CA()
    issued = authority.issue_cert(NAME)
    authority.cert_pem.write_to_path(str(folder / "authority"))
    issued.private_key_pem.write_to_path(str(folder / "key"))
    issued.cert_chain_pems[0].write_to_path(str(folder / "chain"))
    certificate = "ssl_certificate /peers/nginx/chain; ssl_certificate_key /peers/nginx/key;"
    page = _put(page_text(), "127.0.0.1:8080", f"127.0.0.1:{service_port}")
    page = _put(page, "listen 443 ssl http2;", f"listen 127.0.0.1:{port} ssl http2;")
    page = _put(page, "# ssl_certificate, ssl_certificate_key", certificate)
    (folder / "nginx.conf").write_text(AROUND.format(page=page))
    command = ["/usr/sbin/nginx", "-c", "/peers/nginx/nginx.conf", "-e", "/peers/nginx/error.log"]
    with running("nginx", command) as program:
        program.wait_for(port)
        yield Nginx(program, port, folder / "authority")
