"""A service under mixed load for minutes: what of it grows, by the slope of its second half.

Caches fill at first and the collector's heap settles, so the first half is not counted. The
service, its mail hosts and the load are processes of this machine; nothing outside is asked.
"""

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import linear_regression
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import trio

from mailprobe.bench.lab import Lab, start_lab
from mailprobe.bench.load.service_process import PLANS, ServiceProcess, children, start_service

SAMPLE_S = 5.0
PAUSE_S = 0.2  # of each client between two requests: some 100 addresses a second in all
LIST_ROWS = 300
LISTS_S = 20.0  # between two lists
MIB = 1024 * 1024
NEW_SHARE = 0.5  # of the addresses are asked for the first time


@dataclass(frozen=True, slots=True)
class Sample:
    """The service at one moment, all its processes together."""

    minutes: float
    memory_mib: float
    descriptors: int
    database_mib: float
    answered: int


@dataclass(slots=True)
class Clients:
    """The clients' counters and chance."""

    texts: Sequence[str]
    rng: random.Random
    answered: int = 0
    failed: int = 0

    def addresses(self, count: int) -> list[str]:
        chosen = self.rng.choices(self.texts, k=count)
        return [
            f"n{self.rng.getrandbits(40)}.{text}" if self.rng.random() < NEW_SHARE else text
            for text in chosen
        ]


def soak(minutes: float, show: Callable[[Sample], None]) -> list[Sample]:
    """Run it; `show` is called with each sample."""
    with (
        start_lab() as lab,
        TemporaryDirectory() as folder,
        start_service(lab.env, Path(folder), plans=PLANS) as service,
    ):
        return trio.run(_soak, service, lab, minutes, show)


def slope(samples: Sequence[Sample], name: str) -> float:
    """The growth of a value a minute, over the second half of the samples."""
    later = samples[len(samples) // 2 :]
    values = [float(getattr(each, name)) for each in later]
    return linear_regression([each.minutes for each in later], values).slope


async def _soak(
    service: ServiceProcess, lab: Lab, minutes: float, show: Callable[[Sample], None]
) -> list[Sample]:
    texts = [text for outcome in sorted(lab.addresses) for text in lab.addresses[outcome][:20]]
    load, samples = Clients(texts, random.Random(0)), []
    began = time.monotonic()
    headers = {"Authorization": f"Bearer {service.key}"}
    limits = httpx.Limits(max_keepalive_connections=20)
    async with (
        httpx.AsyncClient(
            base_url=service.url, headers=headers, timeout=30.0, trust_env=False, limits=limits
        ) as http,
        trio.open_nursery() as nursery,
    ):
        for client in (_singles, _batches, _streams, _jobs, _mistakes, _lists):
            nursery.start_soon(client, http, load)
        while (passed := (time.monotonic() - began) / 60) < minutes:
            samples.append(_sample(service, passed, load))
            show(samples[-1])
            await trio.sleep(SAMPLE_S)
        nursery.cancel_scope.cancel()
    return samples


def _sample(service: ServiceProcess, minutes: float, load: Clients) -> Sample:
    pids = [service.pid, *children(service.pid)]
    kib = sum(_rss_kib(pid) for pid in pids)
    opened = sum(len(list(Path(f"/proc/{pid}/fd").iterdir())) for pid in pids)
    files = (service.folder / "data").glob("*.db*")
    return Sample(
        minutes, kib / 1024, opened, sum(file.stat().st_size for file in files) / MIB, load.answered
    )


def _rss_kib(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text("ascii").splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1])
    return 0


# -- clients: each runs until cancelled -------------------------------------------------------


async def _post(http: httpx.AsyncClient, load: Clients, path: str, count: int, body: Any) -> None:
    answer = await http.post(path, json=body)
    if answer.status_code in (200, 202):
        load.answered += count
    else:
        load.failed += 1
    await trio.sleep(PAUSE_S)


async def _singles(http: httpx.AsyncClient, load: Clients) -> None:
    while True:
        await _post(http, load, "/v1/email/verify", 1, {"email": load.addresses(1)[0]})


async def _batches(http: httpx.AsyncClient, load: Clients) -> None:
    while True:
        await _post(http, load, "/v1/email/verify/batch", 10, {"emails": load.addresses(10)})


async def _streams(http: httpx.AsyncClient, load: Clients) -> None:
    while True:
        await _post(http, load, "/v1/email/verify/stream", 10, {"emails": load.addresses(10)})


async def _jobs(http: httpx.AsyncClient, load: Clients) -> None:
    while True:
        body = {"email": load.addresses(1)[0], "async": True}
        await _post(http, load, "/v1/email/verify", 1, body)


async def _mistakes(http: httpx.AsyncClient, load: Clients) -> None:
    """Requests that are refused: a wrong key, a wrong path, a wrong body."""
    while True:
        await http.post("/v1/email/verify", json={}, headers={"Authorization": "Bearer no"})
        await http.get("/nothing")
        await http.post("/v1/email/verify/batch", content=b"[")
        await trio.sleep(PAUSE_S)


async def _lists(http: httpx.AsyncClient, load: Clients) -> None:
    """Send a list, wait for it, read its results, delete it."""
    kind = {"Content-Type": "text/csv"}
    while True:
        text = "\n".join(["email", *load.addresses(LIST_ROWS)])
        answer = await http.post("/v1/lists", content=text.encode(), headers=kind)
        if answer.status_code == 202:
            path = f"/v1/lists/{answer.json()['list_id']}"
            await trio.sleep(LISTS_S)
            await http.get(f"{path}/results")
            await http.delete(path)
            load.answered += LIST_ROWS
        else:
            load.failed += 1
            await trio.sleep(LISTS_S)
