"""Three services behind nginx with one PostgreSQL 1 ms away, and two proxies to the mail hosts.

The mail hosts refuse what comes from one of the proxies. Each service has its own way to the
database, which a test can cut.
"""

import base64
import json
import re
import ssl
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import trio
from prometheus_client.parser import text_string_to_metric_families

from mailprobe.api.keys import key_hash
from mailprobe.api.results.stored_row import StoredRow, encode_row
from mailprobe.bench.lab import Lab, start_lab
from mailprobe.bench.lab.scenarios import REFUSED_SOURCE
from mailprobe.bench.load.delay_relay import delayed
from mailprobe.bench.load.private_postgres import free_port, private_postgres
from mailprobe.bench.load.running_lists import BOUNDS, answered
from mailprobe.engine.smtp.tolerance.bans import RESTS_S
from mailprobe.storage import StoreSize, open_store
from mailprobe.storage.list_records import ListChunk, ListOrder, LoadedList
from tests.api.service_process import (
    Credentials,
    Place,
    Running,
    free_bind,
    make_place,
    running,
)
from tests.api.stores import asked
from tests.peers.programs.microsocks import open_microsocks
from tests.peers.programs.nginx import open_nginx
from tests.peers.programs.shipped_proxy import NAME, Proxy
from tests.storage.fixed_clock import SECRET

SERVICES = 3
PLACES = 20  # for probes, of each service: few, so that they and not the processors are the limit
UNITS = 20  # of a chunk, for so few places; an upload has 100
DELAY_MS = 1.0
ACCOUNTS = 300
PATIENCE_S = 120.0  # the longest wait for one event, on a busy machine
POLL_S = 0.2
STARTS_MAX = 5  # of a service
PLANS = "[free]\nrate_limit_per_min = 1_000_000\nmonthly_calls = 1_000_000\n"
SOURCES = {"good": "127.0.0.65", "refused": REFUSED_SOURCE}  # of the egresses

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]  # name and labels -> value


class Way:
    """A service's way to the database."""

    def __init__(self, database: str) -> None:
        self._database = database
        self._port = free_port()  # the same after each cut
        self._open = ExitStack()
        self.url = self._open.enter_context(delayed(database, DELAY_MS, self._port))

    def cut(self) -> None:
        """End its connections; others are refused."""
        self._open.close()

    def mend(self) -> None:
        self._open.enter_context(delayed(self._database, DELAY_MS, self._port))


@dataclass(frozen=True)
class Machine:
    """A service, its way to the database, and where its metrics are."""

    service: Running
    metrics: str
    way: Way
    http: httpx.Client

    def metrics_text(self) -> str:
        """All that Prometheus would read now."""
        return self.http.get(f"http://{self.metrics}/metrics").text

    def samples(self) -> Samples:
        return {
            (sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in text_string_to_metric_families(self.metrics_text())
            for sample in family.samples
        }

    def probes(self) -> float:
        """Addresses in layer 4."""
        found = re.search(r"^mailprobe_probes (\S+)", self.metrics_text(), re.M)
        assert found
        return float(found[1])

    def is_ready(self) -> bool:
        return self.http.get(f"{self.service.url}/health?ready=1").status_code == 200


@dataclass(frozen=True)
class OneList:
    id: str
    key: str
    texts: list[str]


@dataclass(frozen=True)
class Fleet:
    database: str  # without the delay
    machines: list[Machine]
    accounts: list[Credentials]
    lab: Lab
    http: httpx.Client  # of the proxy
    lists: list[OneList] = field(default_factory=list)  # all that were made

    def _new_texts(self, count: int) -> list[str]:
        """Addresses that no list has yet, at all hosts in turn."""
        known, first = self.lab.addresses["deliverable"], sum(len(e.texts) for e in self.lists)
        return [f"known{n}.{known[n % len(known)]}" for n in range(first, first + count)]

    def send_list(self, key: str, rows: int) -> None:
        """Upload a list; it runs at once."""
        texts = self._new_texts(rows)
        response = self.repeated(
            "/v1/lists",
            content="\n".join(["email", *texts]).encode(),
            headers={**authorization(key), "content-type": "text/csv"},
        )
        assert response.status_code == 202, response.text
        self.lists.append(OneList(response.json()["list_id"], key, texts))

    def store_lists(self, keys: Sequence[str], rows: int) -> None:
        """Store a running list for each key, as an upload does: it would take a process for each."""
        with ThreadPoolExecutor(1) as thread:
            thread.submit(trio.run, self._store_lists, keys, rows).result()

    async def _store_lists(self, keys: Sequence[str], rows: int) -> None:
        size = StoreSize(answer_s=PATIENCE_S)
        async with open_store(self.database, secret_key=SECRET, size=size) as store:
            for key in keys:
                caller = await store.caller(key_hash(key))
                assert caller
                one = OneList(str(uuid4()), key, self._new_texts(rows))
                await store.create_list(caller, ListOrder(one.id, "list.csv", None, ""), BOUNDS)
                chunks = [
                    chunk_of(place, one.texts[first : first + UNITS])
                    for place, first in enumerate(range(0, rows, UNITS))
                ]
                await store.add_chunks(one.id, chunks, octets_max=1 << 30)
                loaded = LoadedList(["email"], rows, rows)
                assert await store.change_list(one.id, "running", before=["loading"], loaded=loaded)
                self.lists.append(one)

    def wait_for_lists(self) -> None:
        """Wait until all lists have ended, also at hosts that are left alone for a while."""
        until = time.monotonic() + PATIENCE_S + RESTS_S[0]
        while answered(self.database).done < len(self.lists):
            assert time.monotonic() < until, self._left()
            time.sleep(POLL_S)

    def _left(self) -> object:
        """The rows that wait for a mail host, what is known of the host, and what is not begun."""
        return asked(
            self.database,
            "SELECT * FROM list_waits LIMIT 20",
            "SELECT egress, host, learned, refusals FROM host_tolerances"
            " WHERE host IN (SELECT host FROM list_waits) LIMIT 20",
            "SELECT list, place, units, due_at, lease_until, holder, passing FROM list_chunks"
            " WHERE units > 0 AND list IN (SELECT number FROM lists WHERE state = 'running') LIMIT 20",
        )

    def results(self, each: OneList) -> list[dict[str, Any]]:
        response = self.http.get(
            f"/v1/lists/{each.id}/results", headers=authorization(each.key)
        ).raise_for_status()
        return [json.loads(line) for line in response.text.splitlines()]

    def repeated(self, path: str, *, headers: Mapping[str, str], **more: Any) -> httpx.Response:
        """POST as a good client does: what is refused with 503 again, and done once."""
        headers = {**headers, "idempotency-key": uuid4().hex}
        until = time.monotonic() + PATIENCE_S
        while True:
            response = self.http.post(path, headers=headers, **more)
            if response.status_code not in (503, 409) or time.monotonic() > until:
                return response
            time.sleep(POLL_S)

    def is_served(self, key: str) -> bool:
        """Verify an address that needs no mail host, once."""
        body = {"email": "ann@mailinator.com"}
        response = self.http.post("/v1/email/verify", headers=authorization(key), json=body)
        return response.status_code == 200


def chunk_of(place: int, texts: Sequence[str]) -> ListChunk:
    """The rows of a chunk as `api/results/chunk_lines.py` reads them."""
    rows = (encode_row(StoredRow(place, n, text, [text])) for n, text in enumerate(texts))
    return ListChunk(place, len(texts), "".join(rows))


def authorization(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def wait_until(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < until
        time.sleep(POLL_S)


@contextmanager
def open_fleet(folder: Path) -> Iterator[Fleet]:
    with (
        start_lab("distant") as lab,
        private_postgres(fsync="off", full_page_writes="off") as server,
        ExitStack() as stack,
    ):
        url = server.new_database()
        egresses = folder / "egress.toml"
        egresses.write_text(
            "".join(
                f'[[egress]]\nname = "{name}"\n'
                f'proxy = "{stack.enter_context(open_microsocks(source))}"\n'
                f'helo = "{name}.probe.test"\n'
                for name, source in SOURCES.items()
            )
        )
        settings = {
            "secret_key": base64.b64encode(SECRET).decode(),
            "max_probes": str(PLACES),
            "egress_file": str(egresses),
            "list_rows_max": "10000",
        }
        accounts = make_place(
            folder / "accounts", lab, PLANS, database=url, **settings
        ).make_accounts("free", ACCOUNTS)
        direct = stack.enter_context(httpx.Client(trust_env=False, timeout=PATIENCE_S))
        machines = [
            stack.enter_context(_machine(folder / str(number), lab, url, settings, direct))
            for number in range(SERVICES)
        ]
        ports = [machine.service.port for machine in machines]
        proxy = stack.enter_context(open_nginx(*ports, name="nginx-fleet"))
        with _client(proxy) as http:
            yield Fleet(url, machines, accounts, lab, http)


@contextmanager
def _machine(
    path: Path, lab: Lab, url: str, settings: Mapping[str, str], http: httpx.Client
) -> Iterator[Machine]:
    metrics, way = free_bind(), Way(url)
    place = make_place(path, lab, PLANS, **settings, database=way.url, metrics_bind=metrics)
    with ExitStack() as stack:
        stack.callback(way.cut)
        yield Machine(_started(stack, place), metrics, way, http)


def _started(stack: ExitStack, place: Place) -> Running:
    """Start the service as its unit does: again, if the database answers too late at its start."""
    for _ in range(STARTS_MAX - 1):
        with suppress(AssertionError):
            return stack.enter_context(running(place, bind=free_bind()))
    return stack.enter_context(running(place, bind=free_bind()))


def _client(proxy: Proxy) -> httpx.Client:
    trusted = ssl.create_default_context(cafile=str(proxy.authority))

    def name_server(request: httpx.Request) -> None:
        request.extensions = {**request.extensions, "sni_hostname": NAME}

    return httpx.Client(
        event_hooks={"request": [name_server]},
        base_url=f"https://127.0.0.1:{proxy.port}",
        headers={"host": NAME},
        verify=trusted,
        trust_env=False,
        timeout=PATIENCE_S,
    )
