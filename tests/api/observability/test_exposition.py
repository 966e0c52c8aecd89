"""The metrics page: its contents and its server."""

import re
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
import trio
import trio.testing
from prometheus_client.parser import text_string_to_metric_families

from mailprobe.api.http.listeners import listeners_on, open_sockets
from mailprobe.api.observability.exposition import MEDIA_TYPE, page, serve_page
from mailprobe.api.observability.shared_counters import (
    OTHER,
    SharedCounters,
)
from tests.api.observability.counting import (
    counted,
    read,
)
from tests.api.raw_http import connected
from tests.docs.pages import ROOT, bare, table_of


def test_the_page_is_what_the_documentation_tells(board: SharedCounters) -> None:
    rows = table_of("docs/metrics.md", "metric", "type", "labels", "meaning")
    reported = {bare(row[0]): (row[1], tuple(re.findall(r"`(\w+)`", row[2]))) for row in rows}
    families = {
        family.name + ("_total" if family.type == "counter" else ""): (family.type, family.samples)
        for family in text_string_to_metric_families(page(board, "1", "1").decode())
    }
    assert reported.keys() == families.keys()
    labels = {each.name: each.labels for each in board.families}
    for name, (kind, said) in reported.items():
        assert families[name][0] == kind, name
        own = labels.get(name.removesuffix("_total"), said)
        assert said == own, name


def test_every_metric_that_an_alert_speaks_of_exists(board: SharedCounters) -> None:
    pages = ("observability", "runbook", "operating")
    text = "".join((ROOT / f"docs/{page}.md").read_text("utf-8") for page in pages)
    names = {
        family.name for family in text_string_to_metric_families(page(board, "1", "1").decode())
    }
    for said in re.findall(r"\b(?:mailprobe|process)_[a-z_]+\b", text):
        if said != "process_start_time_seconds":
            assert re.sub(r"_(total|bucket|sum|count)$", "", said) in names, said


def test_a_page_is_small_and_every_series_is_there_from_the_beginning(
    board: SharedCounters,
) -> None:
    before = read(board)
    assert len(before.samples) < 3300
    assert before("mailprobe_refusals_total") == 0
    shown = {dict(labels)["code"] for name, labels in before.samples if "refusals" in name}
    assert {"overloaded", "quota_check_failed", "internal_error", "missing_api_key"} <= shown
    assert not any(OTHER in dict(labels).values() for _, labels in before.samples)


def test_version_and_start_time_are_exposed(board: SharedCounters) -> None:
    reported = read(board)
    assert reported("mailprobe_build_info", version="1.2.3", commit="0123abc") == 1
    assert reported("process_start_time_seconds") == pytest.approx(board.started_at)


async def test_a_page_names_nobody(autojump_clock: object, board: SharedCounters) -> None:
    async with counted(board) as counting:
        shop = counting.shop
        await shop.batch("known@friendly.test", "sécret@slow.test", "sk_live_x@catchall.test", "@")
        await shop.request("GET", f"/{shop.key}")
        await shop.request(
            "GET", "/health?email=ann@friendly.test", headers={"x-y": shop.account.id}
        )
        await shop.request(
            "DELETE", f"/v1/management/keys/{shop.account.id}", key=shop.provisioning
        )
        text = counting.read().text
    for named in ("friendly", "catchall", "slow.test", "known", "cret", "sk_", "@", "mx."):
        assert named not in re.sub(r'(rule|commit)="[a-z0-9._-]+"', "", text), named
    assert shop.account.id not in text


# -- the server ----------------------------------------------------------------------


@asynccontextmanager
async def paged(make: Any, look: Any = lambda: None) -> AsyncIterator[tuple[int, trio.Event]]:
    sockets, drain = open_sockets("127.0.0.1", 0), trio.Event()
    port = sockets[0].getsockname()[1]
    async with trio.open_nursery() as nursery:
        await nursery.start(partial(serve_page, look, make, listeners_on(sockets), drain=drain))
        yield port, drain
        drain.set()


def request(method: str, path: str) -> str:
    return f"{method} {path} HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n\r\n"


async def test_there_is_one_page_and_it_is_read_with_get() -> None:
    looked: list[int] = []
    async with (
        paged(lambda: b"page\n", lambda: looked.append(1)) as (port, _),
        trio.open_nursery() as nursery,
    ):

        async def expect(method: str, path: str, status: int, body: bytes | None) -> None:
            async with connected(port) as raw:
                await raw.send(request(method, path))
                answer = await raw.answer(head_only=method == "HEAD")
            assert answer.status == status, (method, path)
            assert answer.headers["content-type"] == MEDIA_TYPE
            assert body is None or answer.body == body

        nursery.start_soon(expect, "GET", "/metrics", 200, b"page\n")
        nursery.start_soon(expect, "GET", "/metrics?x=1", 200, b"page\n")
        nursery.start_soon(expect, "HEAD", "/metrics", 200, b"")
        nursery.start_soon(expect, "POST", "/metrics", 405, None)
        nursery.start_soon(expect, "DELETE", "/metrics", 405, None)
        for path in ("/", "/metrics/", "/metricsx", "/health", "//metrics", "/v1/email/verify"):
            nursery.start_soon(expect, "GET", path, 404, None)
    assert len(looked) == 3


async def test_a_page_is_made_beside_the_loop_one_at_a_time() -> None:
    main, made, inside = threading.current_thread(), [], threading.Semaphore(1)

    def make() -> bytes:
        assert threading.current_thread() is not main
        assert inside.acquire(blocking=False)
        made.append(1)
        inside.release()
        return b"page\n"

    async with paged(make) as (port, _), trio.open_nursery() as nursery:
        for _ in range(5):

            async def fetch() -> None:
                async with connected(port) as raw:
                    assert (await raw.request(request("GET", "/metrics"))).status == 200

            nursery.start_soon(fetch)
    assert len(made) == 5


async def test_a_page_that_fails_is_500_and_the_next_one_is_there(
    caplog: pytest.LogCaptureFixture,
) -> None:
    pages: Iterator[Exception | bytes] = iter([ZeroDivisionError(), b"page\n"])

    def make() -> bytes:
        found = next(pages)
        if isinstance(found, Exception):
            raise found
        return found

    async with paged(make) as (port, _):
        for status in (500, 200):
            async with connected(port) as raw:
                assert (await raw.request(request("GET", "/metrics"))).status == status
    assert "ZeroDivisionError" in caplog.text


async def test_the_exposition_ends_when_it_is_drained() -> None:
    async with paged(lambda: b"") as (port, drain), connected(port) as idle:
        drain.set()
        await idle.assert_closed()
    with pytest.raises(ConnectionRefusedError):
        await connected(port).__aenter__()
