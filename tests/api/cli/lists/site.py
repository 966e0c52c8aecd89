"""A real HTTP server on loopback whose pages a test writes."""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import MappingProxyType


class Site(BaseHTTPRequestHandler):
    """Answers each path as the test says."""

    def __init__(self, pages: dict[str, Callable[["Site"], None]], *args: object) -> None:
        self.pages = pages
        super().__init__(*args)  # type: ignore[arg-type]

    def do_GET(self) -> None:
        with suppress(BrokenPipeError, ConnectionResetError):
            self.pages.get(self.path, no_page)(self)

    def answer(
        self, octets: bytes, status: int = 200, headers: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(octets)

    def log_message(self, *_: object) -> None: ...


def no_page(to: Site) -> None:
    to.answer(b"", 404)


@contextmanager
def site(**pages: Callable[[Site], None]) -> Iterator[str]:
    """Serve the pages; yields the URL of their folder."""
    handler = partial(Site, {f"/{name}": page for name, page in pages.items()})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
