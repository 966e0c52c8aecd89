"""What is counted: each thing once, added up over workers, and nothing that names anybody."""

import re
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from mailprobe.api.http.listeners import listeners_on, open_sockets
from mailprobe.api.observability.catalogue import families
from mailprobe.api.observability.exposition import MEDIA_TYPE, page, serve_page
from mailprobe.api.observability.metrics import POLL_EVERY_S, Metrics, open_metrics
from mailprobe.api.observability.request_context import (
    RejectedRequests,
    request_rejected,
    request_scope,
)
from mailprobe.api.observability.shared_counters import (
    OTHER,
    SILENT_S,
    Family,
    SharedCounters,
    open_shared_counters,
)
from mailprobe.api.quota.plans import PLANS
from mailprobe.api.rest.operations import OPERATIONS
from mailprobe.engine.testing.zone import ZoneMode
from mailprobe.storage.contract import StoreUnavailable
from tests.api.raw_http import connected
from tests.api.service_fixture import BATCH, STREAM, VERIFY, Shop, open_shop
from tests.test_readme import ROOT, bare, table_of

COUNTS = Family("counter", "counts", "", ("what",), (("one",), ("two",)))
STATES = Family("gauge", "states", "")
TIMES = Family("histogram", "times", "", bounds=(0.1, 1.0))
SMALL = (COUNTS, STATES, TIMES)


@dataclass
class Read:
    """A page that was read."""

    text: str

    def __post_init__(self) -> None:
        self.samples = {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(self.text)
            for sample in family.samples
        }

    def __call__(self, name: str, **labels: str) -> float:
        """The sum of the series of this name with these labels among theirs."""
        wanted = labels.items()
        found = [
            value
            for (each, said), value in self.samples.items()
            if each == name and wanted <= dict(said).items()
        ]
        return sum(found)

    def shown(self, name: str) -> list[dict[str, str]]:
        """The series of this name that are not zero."""
        return [
            dict(said) for (each, said), value in self.samples.items() if each == name and value
        ]


def read(board: SharedCounters) -> Read:
    return Read(page(board, "1.2.3").decode())


@pytest.fixture
def small() -> Iterator[SharedCounters]:
    with open_shared_counters(SMALL, 2) as board:
        yield board


@pytest.fixture
def board() -> Iterator[SharedCounters]:
    with open_metrics(1) as board:
        yield board


@dataclass
class Counted:
    """A shop of which everything is counted."""

    shop: Shop
    board: SharedCounters
    metrics: Metrics

    def read(self) -> Read:
        self.metrics.sample(self.shop.service)
        return read(self.board)


@asynccontextmanager
async def counted(
    board: SharedCounters, tier: Any = "scale", **more: Any
) -> AsyncIterator[Counted]:
    metrics = Metrics(board.attach())
    async with open_shop(tier, metrics=metrics, **more) as shop:
        yield Counted(shop, board, metrics)


# -- the board --------------------------------------------------------------------------------

FORKS = """
import os, sys, time
from mailprobe.api.observability.shared_counters import SILENT_S, Family, open_shared_counters
from tests.api.observability.test_metrics import SMALL

def worker(act):
    pid = os.fork()
    if pid == 0:
        try:
            act(board.attach())
        except RuntimeError as error:
            print(error)
        sys.stdout.flush()
        os._exit(0)
    os.waitpid(pid, 0)

def told():
    return {family.name: [(*each.labels, *each.cells) for each in all] for family, all in board.read()}

def one(row):
    row.numbers("counts").add(("one",), 3)
    row.numbers("states").put(5)
    row.numbers("times").observe(0.5)
    row.heartbeat()

def another(row):
    one(row)
    worker(one)  # beside this one, which is alive
    print(told())
    sys.stdout.flush()
    row.detach()

def one_too_many(row):
    worker(lambda row: worker(print))

with open_shared_counters(SMALL, 2) as board:
    worker(one)
    worker(another)
    print(told(), board.workers_so_far, board.workers_alive)
    sys.stdout.flush()
    worker(one_too_many)
    time.monotonic = lambda now=time.monotonic: now() + SILENT_S
    print(told(), board.workers_so_far, board.workers_alive)
"""


def test_what_workers_counted_outlives_them_and_their_states_do_not() -> None:
    """A first one dies without a word; a second takes its place, and a third works beside it."""
    done = subprocess.run(
        [sys.executable, "-c", FORKS], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    [while_two, silent_one, too_many, long_after] = done.stdout.splitlines()
    counts = "'counts': [('one', 9.0), ('two', 0.0)]"
    times = "'times': [(0.0, 3.0, 0.0, 1.5)]"
    assert while_two == f"{{{counts}, 'states': [(10.0,)], {times}}}"
    assert silent_one == f"{{{counts}, 'states': [(5.0,)], {times}}} 3 1"
    assert too_many == "there are more than 2 workers"
    assert long_after == f"{{{counts}, 'states': [(0.0,)], {times}}} 5 0"


def test_states_begin_at_nothing_and_counters_go_on(small: SharedCounters) -> None:
    row = small.attach()
    row.numbers("counts").add(("one",))
    row.numbers("states").put(7)
    row = small.attach()  # the same process: the same row
    assert [each.cells for _, all in small.read() for each in all][:3] == [[1.0], [0.0], [0.0]]


SECONDS = st.floats(min_value=0, max_value=100)


@given(st.lists(SECONDS), st.lists(SECONDS, min_size=1, unique=True).map(sorted))
def test_a_bucket_holds_what_is_at_most_its_bound(times: list[float], bounds: list[float]) -> None:
    family = Family("histogram", "times", "", bounds=tuple(bounds))
    with open_shared_counters([family], 1) as board:
        numbers = board.attach().numbers("times")
        for seconds in times:
            numbers.observe(seconds)
        reported = read(board)
    for bound in bounds:
        assert reported("times_bucket", le=repr(bound)) == sum(each <= bound for each in times)
    assert reported("times_bucket", le="+Inf") == reported("times_count") == len(times)
    assert reported("times_sum") == pytest.approx(sum(times))


@given(st.lists(st.text()))
def test_whatever_comes_in_makes_no_series(words: list[str]) -> None:
    with open_shared_counters(SMALL, 1) as board:
        numbers = board.attach().numbers("counts")
        for word in words:
            numbers.add((word,))
        reported = read(board)
    strange = sum(word not in ("one", "two") for word in words)
    assert reported("counts_total", what=OTHER) == strange
    assert len([name for name, _ in reported.samples if name == "counts_total"]) == 2 + bool(
        strange
    )


def test_counting_needs_no_lock_no_file_and_no_library(small: SharedCounters) -> None:
    """`prometheus_client` comes with the first page, and with nothing that most runs do."""
    code = (
        "import sys, mailprobe.api.cli.serve, mailprobe.api.cli.verify, mailprobe.api.rest.app, mailprobe.api.observability.metrics, mailprobe.api.observability.exposition;"
        "assert 'prometheus_client' not in sys.modules;"
        "assert 'structlog' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_who_only_verifies_loads_nothing_that_counts() -> None:
    code = (
        "import sys, mailprobe.api.cli.verify, mailprobe.api.cli.source, engine;"
        "assert not [name for name in sys.modules if 'metrics' in name or name == 'mailprobe.api.observability.logs']"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


# -- the page ---------------------------------------------------------------------------------


def test_the_page_is_what_the_documentation_tells(board: SharedCounters) -> None:
    rows = table_of("docs/observability.md", "metric", "type", "labels", "meaning")
    reported = {bare(row[0]): (row[1], tuple(re.findall(r"`(\w+)`", row[2]))) for row in rows}
    families = {
        family.name + ("_total" if family.type == "counter" else ""): (family.type, family.samples)
        for family in text_string_to_metric_families(page(board, "1").decode())
    }
    assert reported.keys() == families.keys()
    labels = {each.name: each.labels for each in board.families}
    for name, (kind, said) in reported.items():
        assert families[name][0] == kind, name
        own = labels.get(name.removesuffix("_total"), said)
        assert said == own, name


def test_every_metric_that_an_alert_speaks_of_exists(board: SharedCounters) -> None:
    text = (ROOT / "docs/observability.md").read_text("utf-8")
    names = {family.name for family in text_string_to_metric_families(page(board, "1").decode())}
    for said in re.findall(r"\b(?:mailprobe|process)_[a-z_]+\b", text):
        if said != "process_start_time_seconds":
            assert re.sub(r"_(total|bucket|sum|count)$", "", said) in names, said


def test_a_page_is_small_and_every_series_is_there_from_the_beginning(
    board: SharedCounters,
) -> None:
    before = read(board)
    assert len(before.samples) < 1500
    assert before("mailprobe_refusals_total") == 0
    shown = {dict(labels)["code"] for name, labels in before.samples if "refusals" in name}
    assert {"overloaded", "quota_check_failed", "internal_error", "missing_api_key"} <= shown
    assert not any(OTHER in dict(labels).values() for _, labels in before.samples)


def test_what_runs_and_since_when_is_told(board: SharedCounters) -> None:
    reported = read(board)
    assert reported("mailprobe_build_info", version="1.2.3") == 1
    assert reported("process_start_time_seconds") == pytest.approx(board.started_at)


# -- requests ---------------------------------------------------------------------------------


async def test_requests_are_counted_by_what_was_asked_and_answered(
    autojump_clock: object, board: SharedCounters
) -> None:
    async with counted(board) as counting:
        shop = counting.shop
        await shop.verify("known@friendly.test")
        await shop.verify("known@slow.test")
        await shop.batch("a", "b", "c")
        await shop.stream("a", "b")
        await shop.ask("GET", "/health")
        await shop.ask("GET", "/nope")
        await shop.ask("PUT", "/health")
        await shop.manage("GET", "/account")
        reported = counting.read()
    asked = {
        (each["operation"], each["status"]) for each in reported.shown("mailprobe_requests_total")
    }
    assert asked == {
        ("verify_email", "200"), ("verify_batch", "200"), ("verify_stream", "200"),
        ("health", "200"), ("none", "404"), ("none", "405"), ("get_account", "200"),
    }  # fmt: skip
    assert reported("mailprobe_requests_total") == 8
    assert reported("mailprobe_request_seconds_count", operation="verify_email") == 2
    assert reported("mailprobe_request_seconds_bucket", operation="verify_email", le="0.1") == 1
    assert reported("mailprobe_request_seconds_sum", operation="verify_email") > 0.4
    assert reported("mailprobe_addresses_asked_total", operation="verify_batch") == 3
    assert reported("mailprobe_addresses_asked_total") == 7


async def test_every_refusal_is_counted_by_its_code(
    autojump_clock: object, board: SharedCounters
) -> None:
    good = {"email": "known@slow.test"}
    async with counted(board, "free", addresses_max=1) as counting:
        shop = counting.shop
        await shop.verify(key=None)
        await shop.verify(key="sk_live_wrong")
        await shop.verify(5)
        await shop.ask("POST", VERIFY, headers={"content-length": "9999999"})
        await shop.manage("GET", "/account", key=shop.key)
        await shop.ask("DELETE", "/v1/management/keys/x", key=shop.provisioning)
        await shop.manage("POST", "/billing/portal")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(shop.verify, "known@slow.test"))
            await trio.sleep(0.1)
            await shop.ask("POST", VERIFY, good)
        for _ in range(9):
            await shop.verify("x")
        headers = {"idempotency-key": "k"}
        await trio.sleep(60)
        await shop.verify("x", headers=headers)
        await shop.verify("y", headers=headers)
        shop.store.away = {"reserve"}
        await shop.verify()
        reported = counting.read()
    counts = {
        (each["operation"], each["code"]): reported("mailprobe_refusals_total", **each)
        for each in reported.shown("mailprobe_refusals_total")
    }
    assert counts == {
        ("verify_email", "missing_api_key"): 1,
        ("verify_email", "invalid_api_key"): 1,
        ("verify_email", "invalid_request"): 1,
        ("verify_email", "payload_too_large"): 1,
        ("get_account", "wrong_key_type"): 1,
        ("revoke_api_key", "key_not_found"): 1,
        ("create_billing_portal", "no_billing_account"): 1,
        ("verify_email", "overloaded"): 1,
        ("verify_email", "rate_limit_exceeded"): 1,
        ("verify_email", "idempotency_key_reused"): 1,
        ("verify_email", "quota_check_failed"): 1,
    }
    assert reported("mailprobe_store_unavailable_total", method="reserve") == 1
    assert reported("mailprobe_store_unavailable_total") == 1


async def test_a_402_is_counted(autojump_clock: object, board: SharedCounters) -> None:
    async with counted(board, "builder", plans={**PLANS}) as counting:
        await counting.shop.change(hard_cap_micros=0)
        await counting.shop.use_up(1, units=1)
        await counting.shop.use_up(5_000)
        assert (await counting.shop.verify()).status == 402
        reported = counting.read()
    assert reported("mailprobe_refusals_total", code="payment_required") == 1
    assert reported("mailprobe_requests_total", status="402") == 1


def test_no_answer_of_an_operation_is_without_a_series() -> None:
    by_name = {family.name: family for family in families()}
    shown = set(by_name["mailprobe_requests"].series)
    for operation in OPERATIONS:
        assert {(operation.name, str(operation.status)), (operation.name, "gone")} <= shown
    assert by_name["mailprobe_refusals"].other not in by_name["mailprobe_refusals"].series


async def test_what_is_under_way_is_counted_until_it_ends(
    autojump_clock: object, board: SharedCounters
) -> None:
    def states(reported: Read) -> tuple[float, ...]:
        names = ("requests_in_flight", "streams_in_flight", "addresses_under_way", "probes")
        return tuple(reported(f"mailprobe_{name}") for name in names)

    async with counted(board, addresses_max=100) as counting:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(counting.shop.stream, "known@slow.test", "ann@friendly.test", "x")
            nursery.start_soon(counting.shop.verify, "known@slow.test")
            await trio.sleep(0.2)
            reported = counting.read()
            assert states(reported) == (2, 1, 2, 2)
            assert reported("mailprobe_addresses_under_way_max") == 100
        assert states(counting.read()) == (0, 0, 0, 0)


async def test_who_leaves_is_counted_as_gone_and_leaves_nothing_behind(
    autojump_clock: object, board: SharedCounters
) -> None:
    async with counted(board) as counting:
        shop = counting.shop
        await shop.verify("known@slow.test", hang_up_at=0.1)
        body = {"emails": ["x", "known@slow.test"]}
        await shop.ask("POST", STREAM, body, hang_up_after=lambda chunks: True)
        for steps in range(40):
            await shop.ask("POST", BATCH, body, hang_up_steps=steps)
        await trio.sleep(30)
        reported = counting.read()
    assert reported("mailprobe_requests_total", operation="verify_email", status="gone") == 1
    assert reported("mailprobe_requests_total", operation="verify_stream", status="200") == 1
    assert reported("mailprobe_requests_in_flight") == reported("mailprobe_streams_in_flight") == 0
    assert reported("mailprobe_addresses_under_way") == 0


async def test_what_the_server_itself_refuses_is_counted_once(
    autojump_clock: object, board: SharedCounters
) -> None:
    metrics = Metrics(board.attach())
    request_rejected(metrics, RejectedRequests(), "invalid_request", 400)
    with request_scope(metrics, "id", lingers=True) as request_context:
        request_context.operation = "verify_email"  # which crashes
    request_rejected(metrics, RejectedRequests(), "internal_error", 500)
    reported = read(board)
    assert reported("mailprobe_requests_total") == 2
    assert reported("mailprobe_requests_total", operation="none", status="400") == 1
    assert reported("mailprobe_requests_total", operation="verify_email", status="gone") == 1
    assert reported("mailprobe_refusals_total", operation="none", code="invalid_request") == 1
    assert (
        reported("mailprobe_refusals_total", operation="verify_email", code="internal_error") == 1
    )


# -- the engine and the store -----------------------------------------------------------------


async def test_verdicts_are_counted_with_the_rule_that_decided(
    autojump_clock: object, board: SharedCounters
) -> None:
    async with counted(board) as counting:
        counting.shop.world.zone.mode("broken.test", ZoneMode.SERVFAIL)
        await counting.shop.batch(
            "known@friendly.test", "nobody@friendly.test", "nobody@friendly.test", "no address",
            "ann@nowhere.test", "ann@broken.test", "known@catchall.test", "ann@mailinator.com",
        )  # fmt: skip
        reported = counting.read()
    verdicts = {
        (each["status"], each["failed_check"], each["rule"]): reported(
            "mailprobe_verdicts_total", **each
        )
        for each in reported.shown("mailprobe_verdicts_total")
    }
    assert verdicts == {
        ("deliverable", "none", "accepted"): 1,
        ("undeliverable", "smtp", "no-mailbox.unknown"): 2,
        ("invalid", "syntax", "syntax"): 1,
        ("invalid", "no_mx", "no_mx"): 1,
        ("invalid", "disposable", "disposable"): 1,
        ("unknown", "none", "resolver"): 1,
        ("catch_all", "none", "catch-all.random-accepted"): 1,
    }
    assert reported("mailprobe_layer_seconds_count", layer="text") == 8
    assert reported("mailprobe_layer_seconds_count", layer="mx") == 5
    assert reported("mailprobe_layer_seconds_count", layer="smtp") == 3
    assert reported("mailprobe_dns_lookups_total", outcome="failed") == 1
    assert reported("mailprobe_dns_lookup_seconds_count") == reported("mailprobe_dns_lookups_total")
    assert reported("mailprobe_smtp_connections_total", outcome="greeted") == 2
    assert reported("mailprobe_smtp_hosts") == 2


async def test_evidence_changes_no_count(autojump_clock: object, board: SharedCounters) -> None:
    async with counted(board) as counting:
        await counting.shop.ask("POST", f"{VERIFY}?evidence=1", {"email": "x"})
        reported = counting.read()
    assert reported("mailprobe_verdicts_total", rule="syntax") == 1


async def test_each_transaction_is_timed(autojump_clock: object, board: SharedCounters) -> None:
    async with counted(board) as counting:
        await counting.shop.verify("known@friendly.test")
        await counting.shop.verify("x")
        reported = counting.read()
    counts = {
        each["method"]: reported("mailprobe_store_seconds_count", **each)
        for each in reported.shown("mailprobe_store_seconds_count")
    }
    assert counts == {"caller": 2, "reserve": 1, "settle": 1, "spend": 1}


class Shelf:
    """A store of a kind that the metrics know nothing of."""

    name = "shelf"

    async def caller(self, sha256: str) -> str:
        await trio.sleep(0.3)
        return sha256[::-1]

    async def reserve(self, *_: Any, **__: Any) -> None:
        raise StoreUnavailable("away")

    async def settle(self, *_: Any, **__: Any) -> None:
        raise KeyError("nobody")

    async def never_received_of(self) -> int:
        return 1

    def open(self) -> str:
        return "open"


async def test_a_timed_store_does_what_the_store_does(
    autojump_clock: object, board: SharedCounters
) -> None:
    store: Any = Metrics(board.attach()).timed(Shelf())  # type: ignore[arg-type]
    assert await store.caller("abc") == "cba"
    assert (store.name, store.open()) == ("shelf", "open")
    assert await store.never_received_of() == 1
    with pytest.raises(StoreUnavailable):
        await store.reserve(1, lease_s=1)
    with pytest.raises(KeyError):
        await store.settle(1, [])
    with trio.move_on_after(0.1):
        await store.caller("abc")
    with pytest.raises(AttributeError):
        _ = store.nothing
    reported = read(board)
    assert reported("mailprobe_store_seconds_count", method="caller") == 2
    assert reported("mailprobe_store_seconds_sum", method="caller") == pytest.approx(0.4)
    assert reported("mailprobe_store_seconds_count", method=OTHER) == 1
    assert reported("mailprobe_store_unavailable_total") == 1


async def test_writes_that_are_pending_are_told(
    autojump_clock: object, board: SharedCounters
) -> None:
    async with counted(board) as counting:
        counting.shop.store.away = {"settle"}
        async with trio.open_nursery() as nursery:
            nursery.start_soon(counting.shop.stream, "known@friendly.test")
            await trio.sleep(0.3)
            assert counting.read()("mailprobe_recorder_pending") == 1
            counting.shop.store.away = False
        assert counting.read()("mailprobe_recorder_pending") == 0


async def test_states_are_looked_at_again_and_again_and_end_with_the_worker(
    autojump_clock: object, board: SharedCounters
) -> None:
    async with counted(board) as counting, trio.open_nursery() as nursery:
        nursery.start_soon(counting.metrics.watch, counting.shop.service)
        await trio.testing.wait_all_tasks_blocked()
        assert read(board)("mailprobe_workers") == 1
        assert read(board)("mailprobe_addresses_under_way_max") == 2000
        nursery.start_soon(counting.shop.verify, "known@slow.test")
        await trio.sleep(POLL_EVERY_S + 0.1)
        assert read(board)("mailprobe_smtp_hosts") == 1
        nursery.cancel_scope.cancel()
    assert read(board)("mailprobe_workers") == 0
    assert read(board)("mailprobe_addresses_under_way_max") == 0
    assert read(board)("mailprobe_workers_started_total") == 1


def test_a_worker_that_is_silent_is_not_alive(
    board: SharedCounters, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = board.attach()
    row.numbers("mailprobe_probes").put(3)
    assert (board.workers_alive, board.workers_so_far) == (0, 1)  # has not said so yet
    row.heartbeat()
    assert (board.workers_alive, read(board)("mailprobe_probes")) == (1, 3)
    later = time.monotonic() + SILENT_S
    monkeypatch.setattr("mailprobe.api.observability.shared_counters.time.monotonic", lambda: later)
    assert (board.workers_alive, read(board)("mailprobe_probes")) == (0, 0)


# -- what is never told -----------------------------------------------------------------------


async def test_a_page_names_nobody(autojump_clock: object, board: SharedCounters) -> None:
    async with counted(board) as counting:
        shop = counting.shop
        await shop.batch("known@friendly.test", "sécret@slow.test", "sk_live_x@catchall.test", "@")
        await shop.ask("GET", f"/{shop.key}")
        await shop.ask("GET", "/health?email=ann@friendly.test", headers={"x-y": shop.account.id})
        await shop.ask("DELETE", f"/v1/management/keys/{shop.account.id}", key=shop.provisioning)
        text = counting.read().text
    for named in ("friendly", "catchall", "slow.test", "known", "cret", "sk_", "@", "mx."):
        assert named not in re.sub(r'rule="[a-z0-9._-]+"', "", text), named
    assert shop.account.id not in text


# -- where it is read -------------------------------------------------------------------------


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

        async def ask(method: str, path: str, status: int, body: bytes | None) -> None:
            async with connected(port) as raw:
                await raw.say(request(method, path))
                answer = await raw.answer(head_only=method == "HEAD")
            assert answer.status == status, (method, path)
            assert answer.headers["content-type"] == MEDIA_TYPE
            assert body is None or answer.body == body

        nursery.start_soon(ask, "GET", "/metrics", 200, b"page\n")
        nursery.start_soon(ask, "GET", "/metrics?x=1", 200, b"page\n")
        nursery.start_soon(ask, "HEAD", "/metrics", 200, b"")
        nursery.start_soon(ask, "POST", "/metrics", 405, None)
        nursery.start_soon(ask, "DELETE", "/metrics", 405, None)
        for path in ("/", "/metrics/", "/metricsx", "/health", "//metrics", "/v1/email/verify"):
            nursery.start_soon(ask, "GET", path, 404, None)
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

            async def ask() -> None:
                async with connected(port) as raw:
                    assert (await raw.ask(request("GET", "/metrics"))).status == 200

            nursery.start_soon(ask)
    assert len(made) == 5


async def test_a_page_that_fails_is_500_and_the_next_one_is_there(
    caplog: pytest.LogCaptureFixture,
) -> None:
    pages = iter([ZeroDivisionError(), b"page\n"])

    def make() -> bytes:
        found = next(pages)
        if isinstance(found, Exception):
            raise found
        return found

    async with paged(make) as (port, _):
        for status in (500, 200):
            async with connected(port) as raw:
                assert (await raw.ask(request("GET", "/metrics"))).status == status
    assert "ZeroDivisionError" in caplog.text


async def test_it_ends_when_it_is_told() -> None:
    async with paged(lambda: b"") as (port, drain), connected(port) as idle:
        drain.set()
        await idle.assert_closed()
    with pytest.raises(ConnectionRefusedError):
        await connected(port).__aenter__()


def test_numbers_are_a_few_octets_each(board: SharedCounters) -> None:
    """A row for each of the most workers that there can be is some megabytes."""
    cells = sum(family.cells * (len(family.series) + 1) for family in board.families)
    assert cells * 8 * 256 < 8 << 20
