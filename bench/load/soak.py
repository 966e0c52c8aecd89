"""A service under mixed load for minutes: what of it grows, by the slopes once its caches are full.

SQLite's page caches fill with the rows that answers leave. So the clients first send without a
pause, until there are more rows than the largest cache holds; then comes what counts, with
pauses. Rows are kept until their retention ends them: their octets an answer are not a leak, and
are shown apart from what of the database holds no row. The service, its mail hosts and the load
are processes of this machine; nothing outside is asked.
"""

import random
import sqlite3
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing, suppress
from itertools import combinations
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import trio
from msgspec import Struct

from mailprobe.api.cli.runner import run
from mailprobe.storage.sqlite.file import WRITER_CACHE_KIB

from ..lab import Lab, start_lab
from .service_process import (
    PLANS,
    ServiceFailed,
    ServiceProcess,
    children,
    start_service,
)

SAMPLE_S = 5.0
LOW_SAMPLES = 6  # half a minute: a list comes and goes in 20 s
GROWTH_MAX = 0.1  # MiB a minute
FILES_MAX = 0.5  # descriptors a minute: in ten minutes, idle connections alone make up to 0.25
FULL_MIB = 1.75 * WRITER_CACHE_KIB / 1024  # of rows: until then memory still grew
FILL_S_MAX = 1800.0  # two cores that do much else took eight minutes, with three times the load 18
PAUSE_S = 0.2  # of each client between two requests: some 100 addresses a second in all
LIST_ROWS = 300
LISTS_S = 20.0  # between two lists
MIB = 1024 * 1024
NEW_SHARE = 0.5  # of the addresses are asked for the first time


class Sample(Struct, frozen=True):
    """The service at one moment, all its processes together."""

    minutes: float
    memory_mib: float
    descriptors: int
    rows_mib: float  # pages of the database with rows
    bloat_mib: float  # its free pages, and its log
    answered: int


class ResourceGrowth(Struct, frozen=True):
    """What grows, each minute."""

    memory_mib: float
    descriptors: float
    bloat_mib: float
    rows_mib: float
    answered: float

    @property
    def is_flat(self) -> bool:
        """Does nothing grow? A service that answered nothing has not shown it."""
        growing = max(self.memory_mib, self.bloat_mib)
        return self.answered > 0 and growing < GROWTH_MAX and self.descriptors < FILES_MAX

    @property
    def answer_octets(self) -> float:
        return self.rows_mib * MIB / self.answered if self.answered else 0.0


class Clients(Struct):
    """The clients' counters, pace and chance."""

    texts: Sequence[str]
    rng: random.Random
    pause_s: float = 0.0
    answered: int = 0

    def addresses(self, count: int) -> list[str]:
        chosen = self.rng.choices(self.texts, k=count)
        return [
            f"n{self.rng.getrandbits(40)}.{text}" if self.rng.random() < NEW_SHARE else text
            for text in chosen
        ]


Client = Callable[[httpx.AsyncClient, Clients], Awaitable[None]]


def soak(minutes: float, show: Callable[[Sample], None]) -> list[Sample]:
    """Fill the caches, then run it; `show` is called with each sample, also those before they are full.

    Raises ServiceFailed if the service ends, or is too slow to fill them.
    """
    with (
        start_lab() as lab,
        TemporaryDirectory() as folder,
        start_service(lab.env, Path(folder), plans=PLANS) as service,
    ):
        return run(lambda: _soak(service, lab, minutes, show))


def growth(samples: Sequence[Sample]) -> ResourceGrowth:
    """The median of the slopes between any two half minutes (Theil-Sen).

    Each has the least of its samples, without the work that comes and goes; of descriptors
    the median, for idle connections come and go by themselves.
    """
    parts = [samples[at : at + LOW_SAMPLES] for at in range(0, len(samples), LOW_SAMPLES)]

    def slope(name: str, typical: Callable[[list[float]], float] = min) -> float:
        points = [
            (part[0].minutes, typical([float(getattr(each, name)) for each in part]))
            for part in parts
        ]
        return median((b - a) / (then - at) for (at, a), (then, b) in combinations(points, 2))

    return ResourceGrowth(
        memory_mib=slope("memory_mib"),
        descriptors=slope("descriptors", median),
        bloat_mib=slope("bloat_mib"),
        rows_mib=slope("rows_mib"),
        answered=slope("answered"),
    )


async def _soak(
    service: ServiceProcess, lab: Lab, minutes: float, show: Callable[[Sample], None]
) -> list[Sample]:
    texts = [text for outcome in sorted(lab.addresses) for text in lab.addresses[outcome][:20]]
    load, samples = Clients(texts, random.Random(0)), []
    began = time.monotonic()
    headers = {"Authorization": f"Bearer {service.key}"}
    limits = httpx.Limits(max_keepalive_connections=20)

    async def sample() -> Sample:
        await trio.sleep(SAMPLE_S)
        one = _sample(service, (time.monotonic() - began) / 60, load)
        show(one)
        return one

    async with (
        httpx.AsyncClient(
            base_url=service.url, headers=headers, timeout=30.0, trust_env=False, limits=limits
        ) as http,
        trio.open_nursery() as nursery,
    ):
        for client in (_singles, _batches, _streams, _jobs, _mistakes, _lists):
            nursery.start_soon(_restart, client, http, load)
        while (filled := await sample()).rows_mib < FULL_MIB:
            if filled.minutes * 60 > FILL_S_MAX:
                raise ServiceFailed("the service is too slow: its caches are not full yet")
        load.pause_s = PAUSE_S
        while (filled.minutes + minutes) * 60 > time.monotonic() - began:
            samples.append(await sample())
        nursery.cancel_scope.cancel()
    return samples


def _sample(service: ServiceProcess, minutes: float, load: Clients) -> Sample:
    kib = opened = 0
    for pid in (service.pid, *children(service.pid)):
        with suppress(FileNotFoundError, ProcessLookupError):  # a reader has ended meanwhile
            kib += _private_kib(pid)
            opened += len(list(Path(f"/proc/{pid}/fd").iterdir()))
    if not kib:
        raise ServiceFailed("the service has ended")
    path = service.folder / "data" / "mailprobe.db"
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as db:
        size, pages, free = (
            db.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("page_size", "page_count", "freelist_count")
        )
    log = path.with_name(f"{path.name}-wal").stat().st_size
    return Sample(
        minutes,
        kib / 1024,
        opened,
        (pages - free) * size / MIB,
        (free * size + log) / MIB,
        load.answered,
    )


def _private_kib(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text("ascii").splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1])
    return 0


# -- clients: each runs until cancelled -------------------------------------------------------


async def _restart(client: Client, http: httpx.AsyncClient, load: Clients) -> None:
    """Run it; begin it anew when a connection was closed, or a machine that does much else hung."""
    while True:
        with suppress(httpx.TransportError):
            await client(http, load)
        await trio.sleep(PAUSE_S)


async def _post(http: httpx.AsyncClient, load: Clients, path: str, count: int, body: Any) -> None:
    answer = await http.post(path, json=body)
    if answer.status_code in (200, 202):
        load.answered += count
    await trio.sleep(load.pause_s)


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
            await trio.sleep(LISTS_S)
