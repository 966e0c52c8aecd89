"""A neighbour's share of each thing that accounts share, alone and beside the worst accounts."""

import gzip
import json
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from http.client import HTTPConnection, HTTPException
from itertools import count
from pathlib import Path

from ...harness.figures import RESULTS, Figure
from ...lab import Lab, start_lab
from ...load.callback_receiver import HANGS, CallbackReceiver, open_receiver
from ...load.service_process import PLANS, SINGLE, ServiceProcess, start_service
from .watched_singles import watched_singles

UPLOADS = 20
NEIGHBOURS = 4  # accounts: each sends at most 20 lists a minute
WITHIN_S = 10.0
FREE, SCALE = 4, 2  # accounts that attack
EACH = 4  # of an account at a time
AGAIN_S = 0.2
ALONE_S = 5.0
BEGUN_S = 3.0  # until all of them are under way
ROWS = 40_000
DOWNLOADS = 40
CALLBACKS, HANGING = 10, 200
TIMEOUT_S = 150.0
# Sixteen MiB of escaped quotes, the worst text for its reader, in 16 KiB; 200 MiB of blank lines in
# 204 KiB; and twice as much of the former as a paid account may send.
ESCAPED = b'"' + b'\\"' * 16_000 + b'",a@b.test\n'
FREE_FILES = (b"name,email\n" + ESCAPED * 490, b"email\n" + b"\n" * (200 << 20))
SCALE_FILE = b"name,email\n" + ESCAPED * 1_000

Act = Callable[[HTTPConnection], None]


def run() -> list[Figure]:
    RESULTS.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="fair-", dir=RESULTS) as name, start_lab() as lab:
        folder = Path(name)
        with open_receiver(lab, folder) as receiver:
            env = {**lab.env, "MAILPROBE_WEBHOOK_CA_FILE": str(receiver.authority)}
            with start_service(env, folder, plans=PLANS) as service:
                return [
                    *measure_uploads(service),
                    *measure_downloads(service),
                    *measure_callbacks(service, receiver, lab),
                ]


def measure_uploads(service: ServiceProcess) -> list[Figure]:
    """Short lists of neighbours, and single verifications, beside lists that are dear to read."""
    keys = [service.another_key() for _ in range(NEIGHBOURS)]
    alone = _upload_all(service, keys)
    alone_ms: list[float] = []
    with watched_singles(service.at, service.another_key(), alone_ms):
        time.sleep(ALONE_S)
    files = [gzip.compress(each) for each in (*FREE_FILES, SCALE_FILE)]
    bad = [(service.another_key("free"), files[:2]) for _ in range(FREE)]
    bad += [(service.another_key("scale"), files[2:]) for _ in range(SCALE)]
    numbers = count()

    def attack(key: str, bodies: Sequence[bytes]) -> Act:
        def send(connection: HTTPConnection) -> None:
            status = _send(connection, key, bodies[next(numbers) % len(bodies)])[0]
            if status != 202:
                time.sleep(AGAIN_S)

        return send

    acts = [attack(*each) for each in bad for _ in range(EACH)]
    with _beside(service, acts):
        waits_ms: list[float] = []
        with watched_singles(service.at, service.another_key(), waits_ms):
            beside = _upload_all(service, [service.another_key() for _ in range(NEIGHBOURS)])
    in_time = sum(took_s <= WITHIN_S for took_s in beside)
    return [
        Figure("uploads alone: the slowest", max(alone), "s"),
        Figure("uploads beside the worst accounts: the slowest", max(beside), "s"),
        Figure(f"uploads beside the worst accounts, of {UPLOADS}: within 10 s", in_time, ""),
        Figure("singles alone: 99 %", _at(alone_ms, 99), "ms"),
        Figure("singles beside the worst uploads: 99 %", _at(waits_ms, 99), "ms"),
        Figure(
            "singles beside the worst uploads: median, of alone",
            _at(waits_ms, 50) / _at(alone_ms, 50),
            "times",
        ),
    ]


def measure_downloads(service: ServiceProcess) -> list[Figure]:
    """A neighbour's rows as CSV, beside many downloads of another account."""
    rows = "".join(f"a{number}@mailinator.com\n" for number in range(ROWS))
    octets = f"email\n{rows}".encode()
    neighbour, other = service.another_key(), service.another_key()
    with closing(HTTPConnection(*service.at, timeout=TIMEOUT_S)) as connection:
        ours, theirs = (_send(connection, key, octets)[1] for key in (neighbour, other))
        alone_s = min(_download(connection, neighbour, ours) for _ in range(3))

        def attack(connection: HTTPConnection) -> None:
            _download(connection, other, theirs)

        with _beside(service, [attack] * DOWNLOADS):
            waits_ms: list[float] = []
            with watched_singles(service.at, service.another_key(), waits_ms):
                beside_s = _download(connection, neighbour, ours)
    return [
        Figure(f"{ROWS:,} rows alone", alone_s, "s"),
        Figure(
            f"{ROWS:,} rows beside {DOWNLOADS} downloads, of alone", beside_s / alone_s, "times"
        ),
        Figure("singles beside downloads: 99 %", _at(waits_ms, 99), "ms"),
    ]


def measure_callbacks(
    service: ServiceProcess, receiver: CallbackReceiver, lab: Lab
) -> list[Figure]:
    """The first try of a neighbour's callbacks, beside another account's that hang at the same host."""
    alone_s = _call_all(service, receiver, service.another_key(), "/alone")
    other = service.another_key()
    with closing(HTTPConnection(*service.at, timeout=TIMEOUT_S)) as connection:
        for _ in range(HANGING):
            _submit(connection, other, receiver.url + HANGS)
    receiver.first_call(HANGS)
    beside_s = _call_all(service, receiver, service.another_key(), "/beside")
    return [
        Figure("callbacks alone: the latest first try", alone_s, "s"),
        Figure(f"callbacks beside {HANGING} that hang: the latest first try", beside_s, "s"),
    ]


def _upload_all(service: ServiceProcess, keys: Sequence[str]) -> list[float]:
    """Seconds until each of the lists was taken, however often it was sent."""
    took = []
    with closing(HTTPConnection(*service.at, timeout=TIMEOUT_S)) as connection:
        for number in range(UPLOADS):
            key, began = keys[number % len(keys)], time.perf_counter()
            octets = f"email\nann{number}@mailinator.com\n".encode()
            while (sent := _send(connection, key, octets))[0] != 202:
                time.sleep(AGAIN_S)
            took.append(time.perf_counter() - began)
            connection.request("DELETE", f"/v1/lists/{sent[1]}", headers=_bearer(key))
            connection.getresponse().read()
    return took


def _call_all(service: ServiceProcess, receiver: CallbackReceiver, key: str, path: str) -> float:
    began: dict[str, float] = {}
    with closing(HTTPConnection(*service.at, timeout=TIMEOUT_S)) as connection:
        for number in range(CALLBACKS):
            began[f"{path}/{number}"] = time.perf_counter()
            _submit(connection, key, f"{receiver.url}{path}/{number}")
    return max(receiver.first_call(each) - at for each, at in began.items())


def _submit(connection: HTTPConnection, key: str, webhook: str) -> None:
    body = json.dumps({"email": SINGLE, "webhook": webhook})
    connection.request("POST", "/v1/email/verify", body, _bearer(key))
    answer = connection.getresponse()
    text = answer.read()
    if answer.status != 202:
        raise RuntimeError(f"{answer.status} {text!r}")


def _send(connection: HTTPConnection, key: str, octets: bytes) -> tuple[int, str]:
    """Send a list that waits; its status and its id."""
    headers = {**_bearer(key), "Content-Type": "application/octet-stream"}
    connection.request("POST", "/v1/lists?start=0", octets, headers)
    answer = connection.getresponse()
    read = json.loads(answer.read())
    return answer.status, read.get("list_id", "")


def _download(connection: HTTPConnection, key: str, list_id: str) -> float:
    began = time.perf_counter()
    connection.request("GET", f"/v1/lists/{list_id}/results?format=csv", headers=_bearer(key))
    answer = connection.getresponse()
    while answer.read(1 << 16):
        pass
    return time.perf_counter() - began


@contextmanager
def _beside(service: ServiceProcess, acts: Sequence[Act]) -> Iterator[None]:
    """Repeat each of these acts, on a connection of its own, as long as the block lasts.

    Connections are then shut, whatever they wait for.
    """
    ended, connections = threading.Event(), list[HTTPConnection]()

    def repeat(act: Act) -> None:
        while not ended.is_set():
            connection = HTTPConnection(*service.at, timeout=TIMEOUT_S)
            connections.append(connection)
            with closing(connection), suppress(OSError, HTTPException, ValueError):
                while not ended.is_set():
                    act(connection)

    with ThreadPoolExecutor(len(acts)) as threads:
        for act in acts:
            threads.submit(repeat, act)
        ended.wait(BEGUN_S)
        try:
            yield
        finally:
            ended.set()
            for connection in connections:
                if connection.sock is not None:
                    with suppress(OSError):
                        connection.sock.shutdown(socket.SHUT_RDWR)


def _bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}


def _at(waits_ms: Sequence[float], percent: int) -> float:
    return sorted(waits_ms)[len(waits_ms) * percent // 100]
