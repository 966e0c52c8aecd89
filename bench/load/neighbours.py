"""Measures the delay of another customer's single requests, alone and beside bad customers."""

import json
import time
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct, field

from ..harness.figures import Figure
from .bad_customers import bad_customers
from .load_generator import (
    LoadResult,
    Unanswered,
    burst,
    generate_load,
    request,
)
from .service_process import SINGLE, ServiceProcess

REQUESTS = 300  # by one after the other on one connection, of which p99 is the third worst
PROBED_LESS = 3  # where each takes a tenth of a second
ROUNDS = 3
BURST = 2_000
PAUSE_S = 1.5  # until a queue that stood is forgotten


class Waits(Struct):
    """The response times of the neighbour in milliseconds, without 503s, which are counted."""

    whole_ms: list[float] = field(default_factory=list)
    refused: int = 0

    def at(self, percent: int) -> float:
        return sorted(self.whole_ms)[len(self.whole_ms) * percent // 100]


def measure_neighbours(
    service: ServiceProcess,
    neighbour: str,
    silent: Sequence[str],
    healthy: Sequence[str],
) -> list[Figure]:
    """Compare the times beside each kind of bad customers with those alone, in alternating rounds.

    `neighbour` is a key. Beside streams to `silent` hosts the neighbour verifies `healthy`
    addresses, a new one each time: those streams compete for probes.
    """
    figures: list[Figure] = []
    fresh = iter(healthy)
    for kind, texts in (("slow bodies", ()), ("streams", silent), ("worst bodies", ())):
        alone, beside = Waits(), Waits()
        before_mib, most_mib = rss_mib(service.pid), 0.0
        for _ in range(ROUNDS):
            count = REQUESTS // PROBED_LESS if texts else REQUESTS
            emails = [next(fresh) if texts else SINGLE for _ in range(2 * count)]
            _request(service, neighbour, emails[:count], alone)
            with bad_customers(kind, service.at, service.key, texts):
                _request(service, neighbour, emails[count:], beside)
                most_mib = max(most_mib, rss_mib(service.pid))
            time.sleep(PAUSE_S)
        what = f"beside {kind}: a neighbour's"
        figures += [
            Figure(f"{what} median", beside.at(50) / alone.at(50), "times alone"),
            Figure(f"{what} 99 %", beside.at(99) / alone.at(99), "times alone"),
            Figure(f"{what} 503s", beside.refused, f"of {len(beside.whole_ms) + beside.refused}"),
            Figure(f"beside {kind}: memory grows by", most_mib - before_mib, "MiB"),
        ]
        print(f"# {kind}: alone {alone.at(50):.1f} and {alone.at(99):.1f} ms, beside them "
              f"{beside.at(50):.1f} and {beside.at(99):.1f} ms")  # fmt: skip
    return figures


def measure_burst(service: ServiceProcess) -> list[Figure]:
    """Send BURST requests at once to an idle service, each on its own connection."""
    time.sleep(PAUSE_S)
    came = burst(service.at, _single(service, service.key), BURST)
    return [
        Figure("a burst of 2,000: served", came.served, f"of {BURST}", at_least=BURST),
        Figure("a burst of 2,000: the last after", came.took_s, "s"),
    ]


def _request(service: ServiceProcess, key: str, emails: Sequence[str], waits: Waits) -> None:
    for email in emails:
        try:
            asked: LoadResult = generate_load(service.at, [_single(service, key, email)], 1)
        except Unanswered as refused:
            if "503" not in str(refused):
                raise
            waits.refused += 1
        else:
            waits.whole_ms += asked.whole_ms


def _single(service: ServiceProcess, key: str, email: str = SINGLE) -> bytes:
    body = json.dumps({"email": email}).encode()
    return request("POST", "/v1/email/verify", host=service.host, key=key, body=body)


def rss_mib(pid: int) -> float:
    """The resident memory of a process and its children."""
    pages = int(Path(f"/proc/{pid}/statm").read_text("ascii").split()[1])
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text("ascii").split()
    return pages * 4096 / 2**20 + sum(rss_mib(int(child)) for child in children)
