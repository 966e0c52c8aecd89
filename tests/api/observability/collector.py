"""A collector of traces on a real socket: takes OTLP over HTTP, and can be slow or refuse."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

PATH = "/v1/traces"
PATIENCE_S = 60.0

Manner = Literal["takes", "fails", "hangs"]


class Collector:
    """What came so far, and how the next is answered."""

    def __init__(self, manner: Manner) -> None:
        self.manner = manner
        self.octets: list[bytes] = []
        self.headers: list[dict[str, str]] = []
        self.came = threading.Condition()
        self.closing = threading.Event()
        self.endpoint = ""

    def take(self, path: str, headers: dict[str, str], octets: bytes) -> int | None:
        """Keep a request, and return the status of its answer; None to hang up at the end."""
        assert path == PATH
        with self.came:
            self.octets.append(octets)
            self.headers.append(headers)
            self.came.notify_all()
        if self.manner == "hangs":
            self.closing.wait(PATIENCE_S)
            return None
        return 200 if self.manner == "takes" else 500

    def wait_for(self, count: int) -> None:
        """Wait until so many requests have come."""
        with self.came:
            assert self.came.wait_for(lambda: len(self.octets) >= count, PATIENCE_S)

    def wait_for_spans(self, count: int) -> dict[str, Any]:
        """Wait until so many spans have come; return the last of each name."""
        with self.came:
            assert self.came.wait_for(lambda: len(self.spans()) >= count, PATIENCE_S)
        return {span.name: span for span in self.spans()}

    def resources(self) -> list[dict[str, Any]]:
        return [
            attributes_of(each.resource)
            for octets in self.octets
            for each in ExportTraceServiceRequest.FromString(octets).resource_spans
        ]

    def spans(self) -> list[Any]:
        return [
            span
            for octets in self.octets
            for each in ExportTraceServiceRequest.FromString(octets).resource_spans
            for scope in each.scope_spans
            for span in scope.spans
        ]


def attributes_of(holder: Any) -> dict[str, Any]:
    return {
        each.key: getattr(each.value, each.value.WhichOneof("value")) for each in holder.attributes
    }


@contextmanager
def open_collector(manner: Manner = "takes") -> Iterator[Collector]:
    """Collect for the duration of the block, in threads."""
    collector = Collector(manner)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            octets = self.rfile.read(int(self.headers["content-length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            status = collector.take(self.path, headers, octets)
            if status is not None:
                self.send_response(status)
                self.send_header("content-length", "0")
                self.end_headers()

        def log_message(self, format: str, *arguments: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    collector.endpoint = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield collector
    finally:
        collector.closing.set()
        server.shutdown()
        thread.join()
        server.server_close()
