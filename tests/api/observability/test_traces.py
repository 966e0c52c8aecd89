"""Traces leave by OTLP, and what becomes of their collector costs the service nothing else."""

import logging
import time

import httpx
import pytest
import trio

from mailprobe.api.observability import traces
from mailprobe.api.observability.spans import NO_SPAN, start_span
from mailprobe.api.observability.traces import (
    FLUSH_S,
    LOGGED_EVERY_S,
    ExportTrouble,
    open_traces,
    traces_missing,
)
from mailprobe.api.settings import TRACES_PROTOCOL
from mailprobe.bench.lab import start_lab
from mailprobe.release import version
from tests.api.observability.collector import attributes_of, open_collector
from tests.api.observability.traced import PARENT, SPAN, TRACE
from tests.api.service_fixture import VERIFY
from tests.api.service_process import PATIENCE_S, free_bind, make_place, running

ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
DEAD = "dead"
FAST_MS = {"OTEL_BSP_SCHEDULE_DELAY": "50"}  # else spans wait for 5 s


def test_a_service_exports_its_traces_and_ends_in_time_beside_a_collector_that_hangs(tmp_path):
    """Its end code is 0 only within the 9 s of the watchdog."""
    with start_lab() as lab, open_collector() as collector:
        [address, *_] = lab.addresses["deliverable"]
        variables = {ENDPOINT: collector.endpoint, "OTEL_EXPORTER_OTLP_HEADERS": "x-tenant=7"}
        place = make_place(tmp_path, lab, "", log="info")
        place.env.update(variables | FAST_MS)
        who = place.make_account("scale")
        with (
            running(place, workers=2) as service,  # the supervisor forks: it must have no thread
            httpx.Client(
                base_url=service.url,
                headers={"Authorization": f"Bearer {who.key}", "traceparent": PARENT},
                timeout=PATIENCE_S,
                trust_env=False,
            ) as client,
        ):
            assert client.post(VERIFY, json={"email": address}).status_code == 200
            client.get(f"/{who.key}/{address}?q={address}")
            spans = collector.wait_for_spans(2)
            collector.manner = "hangs"
            before = len(collector.octets)
            for _ in range(20):
                assert client.post(VERIFY, json={"email": address}).status_code == 200
            collector.wait_for(before + 1)
            service.stop()
        log = place.log.read_text()
    assert collector.resources()[0].items() >= {
        "service.name": "mailprobe", "service.version": version(),
    }.items()  # fmt: skip
    assert collector.headers[0]["x-tenant"] == "7"
    verified = spans[f"POST {VERIFY}"]
    assert (verified.trace_id.hex(), verified.parent_span_id.hex()) == (TRACE, SPAN)
    assert attributes_of(verified)["http.route"] == VERIFY
    for octets in collector.octets:
        assert address.encode() not in octets
        assert who.key.encode() not in octets
    assert "traces cut off" in log
    assert '"logger":"opentelemetry' not in log
    assert f'"trace":"{TRACE}"' in log


@pytest.mark.parametrize("manner", ["takes", "fails", "hangs", DEAD])
async def test_an_end_waits_for_a_collector_that_takes_and_not_long_for_others(
    monkeypatch, caplog, manner
):
    with open_collector("takes" if manner == DEAD else manner) as collector:
        endpoint = f"http://{free_bind()}" if manner == DEAD else collector.endpoint
        monkeypatch.setenv(ENDPOINT, endpoint)
        flush_s = PATIENCE_S if manner == "takes" else FLUSH_S
        async with open_traces(TRACES_PROTOCOL, flush_s=flush_s):
            for number in range(3000):  # the queue has 2048 places, and no span waits for one
                start_span(f"span {number}", "server", "").end()
            began = time.monotonic()
        assert time.monotonic() - began < 15 or manner == "takes"  # the library waits for 30 s
        assert start_span("after", "server", "") is NO_SPAN
        if manner == "takes":
            assert f"span {2999}" in collector.wait_for_spans(1)
    reported = [each.getMessage() for each in caplog.records if each.name == "mailprobe.traces"]
    assert len([each for each in reported if each.startswith("traces not exported: ")]) <= 1
    if manner in ("hangs", DEAD):
        assert f"traces cut off: flush_s={FLUSH_S:g}" in reported


def test_trouble_is_one_line_a_minute_that_counts(caplog):
    now = [0.0]
    handler = ExportTrouble(clock=lambda: now[0])
    name, args = "opentelemetry.sdk.trace", ("/v1?key=secret (xxx" * 50,)
    record = logging.makeLogRecord({"name": name, "msg": "no route to %s", "args": args})
    sent = {"name": "opentelemetry.trace.span", "msg": "sent by a client"}
    handler.handle(logging.makeLogRecord(sent))
    for _ in range(100):
        handler.handle(record)
    now[0] = LOGGED_EVERY_S
    handler.handle(record)
    first, second = [each for each in caplog.records if each.name == "mailprobe.traces"]
    assert first.getMessage().startswith("traces not exported: error=no route to /v1?… (xxx")
    assert "secret" not in first.getMessage()
    assert len(first.getMessage()) < 350
    assert [getattr(each, "times", 1) for each in (first, second)] == [1, 100]


async def test_traces_that_cannot_be_are_one_line_at_the_start(monkeypatch, caplog):
    assert traces_missing(None) is None
    assert traces_missing(TRACES_PROTOCOL) is None
    assert "'grpc'; mailprobe sends http/protobuf" in str(traces_missing("grpc"))
    monkeypatch.setenv(ENDPOINT, "http://127.0.0.1:9")
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "0")
    async with open_traces(TRACES_PROTOCOL):
        assert start_span("a", "server", "") is NO_SPAN
    [line] = [each.getMessage() for each in caplog.records if each.name == "mailprobe.traces"]
    assert line.startswith("traces are off: error=max_queue_size must be")
    monkeypatch.setattr(traces, "NEEDED", "opentelemetry_not_installed.exporter")
    assert "pip install '.[otel]'" in str(traces_missing(TRACES_PROTOCOL))
    async with open_traces(TRACES_PROTOCOL):
        assert start_span("a", "server", "") is NO_SPAN


@pytest.mark.parametrize("name", ["OTEL_SERVICE_NAME", None])
async def test_the_operator_may_name_the_service(monkeypatch, name):
    if name:
        monkeypatch.setenv(name, "probes")
    with open_collector() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", f"{collector.endpoint}/v1/traces")
        async with open_traces(TRACES_PROTOCOL, flush_s=PATIENCE_S):
            start_span("a", "server", "").end()
        await trio.to_thread.run_sync(collector.wait_for_spans, 1)
    assert collector.resources()[0]["service.name"] == ("probes" if name else "mailprobe")
