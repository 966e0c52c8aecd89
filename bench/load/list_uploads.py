"""Measures what the service computes for a short list, beside a request for the same addresses."""

import json
import time
from contextlib import closing
from http.client import HTTPConnection
from statistics import median

from ..harness.figures import Figure
from .service_process import ServiceFailed, ServiceProcess

ROWS = 10
ROUNDS = 5
ROUND = 8  # lists of an account: ten that have not ended are its limit
ADDRESSES = [f"person{number}@mailinator.com" for number in range(ROWS)]  # throwaways: no probes
# path, media type, body
LIST = "/v1/lists?start=0", "text/csv", "\n".join(["email", *ADDRESSES]).encode()
REQUEST = "/v1/email/verify/batch", "application/json", json.dumps({"emails": ADDRESSES}).encode()


def measure_lists(service: ServiceProcess) -> list[Figure]:
    """Alternate rounds of paused lists and of requests; the cheapest round counts, as elsewhere."""
    lists_ms, batches_ms, took_ms = [], [], []
    keys = [service.another_key() for _ in range(ROUNDS)]
    with closing(HTTPConnection(*service.at)) as connection:
        _send(connection, keys[0], *LIST)  # starts a reader
        for key in keys:
            cpu_ms = service.cpu_s() * 1000
            for _ in range(ROUND):
                _send(connection, key, *REQUEST)
            between_ms = service.cpu_s() * 1000
            took_ms += [_send(connection, key, *LIST) for _ in range(ROUND)]
            batches_ms.append((between_ms - cpu_ms) / ROUND)
            lists_ms.append((service.cpu_s() * 1000 - between_ms) / ROUND)
    return [
        Figure("a list of ten rows, median", median(took_ms), "ms"),
        Figure("a list of ten rows: processor time of the service", min(lists_ms), "ms"),
        Figure("a list of ten rows, of a request", min(lists_ms) / min(batches_ms), "times"),
    ]


def _send(connection: HTTPConnection, key: str, path: str, media_type: str, body: bytes) -> float:
    """Send it, and return the milliseconds to its answer."""
    headers = {"Authorization": f"Bearer {key}", "Content-Type": media_type}
    began = time.perf_counter()
    connection.request("POST", path, body, headers)
    answer = connection.getresponse()
    text = answer.read()
    if answer.status not in (200, 202):
        raise ServiceFailed(f"{path}: {answer.status} {text!r}")
    return (time.perf_counter() - began) * 1000
