"""Measures the live socket beside the NDJSON stream: the same list, by turns, over one service.

Each side is the client of `mailprobe clean --server`, with `--live` and without. The first
result is that of one request, or socket, of 50 addresses; the connection is open before.
"""

import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from statistics import median

import httpx
import msgspec
import trio

from mailprobe.api.cli.remote.live_way import PATH, open_live_socket
from mailprobe.api.cli.remote.source import Way, open_remote_source
from mailprobe.api.cli.source import AnswerSource

from ...harness.figures import RESULTS, Figure
from ...lab import start_lab
from ...load.service_process import PLANS, ServiceProcess, start_service
from .service import first_lines

ADDRESSES = 4_000
ROUNDS = 5
FIRST = 50  # addresses of a request whose first result is timed
FIRST_ROUNDS = 10
WAYS: tuple[Way, ...] = ("stream", "live")
LIMIT_S = 180.0


def run() -> list[Figure]:
    RESULTS.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="live-", dir=RESULTS) as folder,
        start_lab("many") as lab,
        start_service(lab.env, Path(folder), plans=PLANS) as service,
    ):
        return trio.run(measure, service, lab.addresses["deliverable"])


async def measure(service: ServiceProcess, addresses: Sequence[str]) -> list[Figure]:
    """Return the figures of both sides; every result is checked."""
    texts = addresses[:ADDRESSES]
    sides: dict[str, Callable[[], AbstractAsyncContextManager[AnswerSource]]] = {
        way: partial(open_remote_source, service.url, service.key, way) for way in WAYS
    }
    rates: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(ROUNDS + 1):
        for name, open_source in sides.items():
            rate = await _rate(open_source(), texts)
            if turn:  # the first warms the caches
                rates[name].append(rate)
    stream_ms = median(await first_lines(service, addresses[: FIRST * FIRST_ROUNDS]))
    live_ms = median(
        [
            await _first_result_ms(service, addresses[number * FIRST :][:FIRST])
            for number in range(FIRST_ROUNDS)
        ]
    )
    stream, live = max(rates["stream"]), max(rates["live"])
    return [
        Figure("stream: results", stream, "a second"),
        Figure("live: results", live, "a second"),
        Figure("live: results, against the stream", live / stream, "times"),
        Figure("stream: first result", stream_ms, "ms"),
        Figure("live: first result", live_ms, "ms"),
        Figure("live: first result, against the stream", live_ms / stream_ms, "times"),
    ]


async def _rate(opening: AbstractAsyncContextManager[AnswerSource], texts: Sequence[str]) -> float:
    with trio.fail_after(LIMIT_S):
        async with opening as source:
            began = time.perf_counter()
            async with source.open_answers(texts) as answers:
                statuses = [answer.verdict.status async for answer in answers]
            took_s = time.perf_counter() - began
    if statuses != ["deliverable"] * len(texts):
        raise AssertionError(f"{len(statuses)} results, not all right")
    return len(texts) / took_s


async def _first_result_ms(service: ServiceProcess, texts: Sequence[str]) -> float:
    message = "\n".join(msgspec.json.encode({"email": text}).decode() for text in texts)
    async with open_live_socket(httpx.URL(service.url + PATH), service.key) as socket:
        await socket.get_message()  # the credit
        began = time.perf_counter()
        await socket.send_message(message)
        while '"result"' not in await socket.get_message():
            pass
        return (time.perf_counter() - began) * 1000
