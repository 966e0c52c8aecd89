"""What is traced, and what spans never hold."""

import re

import pytest
import trio
from opentelemetry.sdk.trace import ReadableSpan, sampling
from opentelemetry.trace import SpanKind, StatusCode

from mailprobe.api.jobs.delivery import Delivered
from mailprobe.api.observability.request_context import present
from mailprobe.api.observability.spans import NO_SPAN, start_span
from tests.api.jobs.test_worker import HOOK, Receiver, promise, working
from tests.api.lists.test_lists import ended, many, send, working_lists
from tests.api.live.live_client import LIVE, open_live
from tests.api.mcp.tool_server import listener_of
from tests.api.observability.traced import (
    PARENT,
    SPAN,
    TRACE,
    attributes,
    parent_id,
    span_id,
    trace_id,
    traced,
)
from tests.api.service_fixture import VERIFY, open_shop
from tests.architecture_map import ROOT, product_modules

OPEN_TELEMETRY = "api/observability/open_telemetry.py"


def test_without_traces_opentelemetry_is_not_imported():
    """One module imports it, and that one is imported in a function."""
    at_the_top = re.compile(r"^(?:from|import) .*open_?telemetry", re.MULTILINE)
    found = [path for path in product_modules() if at_the_top.search((ROOT / path).read_text())]
    assert [str(path) for path in found] == [OPEN_TELEMETRY]


async def test_without_traces_every_span_is_the_same_object():
    assert (
        start_span("a", "server", "") is start_span("b", "client", f"{TRACE}-{SPAN}-01") is NO_SPAN
    )


@pytest.mark.parametrize(
    ("method", "path", "name", "noted", "status"),
    [
        ("GET", "/health", "GET /health", {"http.route": "/health", "mailprobe.operation": "health"}, 200),
        ("GET", "/v1/jobs/ann@example.org?q=ann@example.org", "GET /v1/jobs/{id}",
         {"http.route": "/v1/jobs/{id}", "mailprobe.error": "job_not_found"}, 404),
        ("GET", "/ann@example.org", "GET", {"mailprobe.operation": "none"}, 404),
        ("ANN@EXAMPLE", "/health", "HTTP", {"http.request.method": "_OTHER"}, 405),
        ("POST", "/health", "POST", {"http.request.method": "POST"}, 405),
        ("GET", "/docs", "GET /docs", {"http.route": "/docs"}, 200),
    ],
)  # fmt: skip
async def test_a_request_is_a_span_named_by_its_route(
    autojump_clock, method, path, name, noted, status
):
    with traced() as spans:
        async with open_shop() as shop:
            got = await shop.request(method, path)
    [span] = spans.all()
    assert (got.status, span.name, span.kind) == (status, name, SpanKind.SERVER)
    assert noted.items() <= attributes(span).items()
    assert attributes(span)["http.response.status_code"] == status
    assert attributes(span)["url.scheme"] == "https"
    assert got.headers.get("x-request-id", "") in attributes(span)["mailprobe.request.id"]
    assert ("http.route" in attributes(span)) == ("/" in name)
    assert span.status.status_code is StatusCode.UNSET


@pytest.mark.parametrize(
    ("headers", "follows", "state"),
    [
        ({"traceparent": PARENT, "tracestate": "a=1,b@c=2"}, True, {"a": "1", "b@c": "2"}),
        ({"traceparent": PARENT, "tracestate": "a=1,b=ann@example.org"}, True, {"a": "1"}),
        ({"traceparent": PARENT, "tracestate": f"a={'1' * 511}"}, True, {}),
        ({"traceparent": PARENT, "tracestate": "=,"}, True, {}),
        ({"traceparent": PARENT.upper(), "tracestate": "a=1"}, False, {}),
        ({"tracestate": "a=1"}, False, {}),
        ({}, False, {}),
    ],
)
async def test_it_follows_a_valid_traceparent(autojump_clock, headers, follows, state):
    with traced() as spans:
        async with open_shop() as shop:
            await shop.request("GET", "/health", headers=headers)
    span = spans.last()
    assert (trace_id(span) == TRACE) is follows
    assert parent_id(span) == (SPAN if follows else None)
    assert span.context is not None
    assert dict(span.context.trace_state) == state


async def test_a_clients_decision_is_kept_by_the_standard_sampler(autojump_clock):
    with traced() as spans:
        async with open_shop() as shop:
            await shop.verify("x", headers={"traceparent": f"{PARENT[:-2]}00"})
            assert spans.all() == ()
    with traced(sampling.ALWAYS_OFF) as spans:
        async with open_shop() as shop:
            await shop.verify("x", headers={"traceparent": PARENT})
    assert spans.all() == ()


async def test_failures_of_ours_and_departures_are_marked(autojump_clock):
    with traced() as spans:
        async with open_shop() as shop:
            await shop.verify("known@slow.test", hang_up_at=0.1)
            gone = spans.last()
            shop.store.away = True
            await shop.verify("x")
    assert attributes(gone)["mailprobe.cut"] is True
    assert gone.name == f"POST {VERIFY}"
    assert "http.response.status_code" not in attributes(gone)
    failed = spans.last()
    assert failed.status.status_code is StatusCode.ERROR
    assert attributes(failed)["error.type"] == "503"


async def test_tasks_of_a_request_know_its_trace_and_no_other(autojump_clock):
    """trio copies the context variables into each task; spans of OpenTelemetry's are not among them."""
    seen = []

    async def note() -> None:
        await trio.sleep(0.1)
        request_context = present()
        seen.append(request_context.trace if request_context else "")

    with traced() as spans:
        async with open_shop() as shop:
            original = shop.store.store.caller

            async def caller(*given):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(note)
                return await original(*given)

            shop.store.store.caller = caller
            async with trio.open_nursery() as nursery:
                for number in range(5):
                    nursery.start_soon(shop.verify, f"known{number}@friendly.test")
    expected = sorted(f"{trace_id(each)}-{span_id(each)}" for each in spans.all())
    assert sorted(each[:-3] for each in seen) == expected
    assert len({trace_id(each) for each in spans.all()}) == 5


async def test_a_tool_call_and_a_live_socket_are_spans_of_their_clients_traces(autojump_clock):
    with traced() as spans:
        async with open_shop() as shop:
            tool = {"email": "known@friendly.test"}
            await listener_of(shop).call("verify_email", tool, headers={"traceparent": PARENT})
            headers = {"traceparent": PARENT, "authorization": f"Bearer {shop.key}"}
            async with open_live(shop, headers=headers):
                pass
    assert [each.name for each in spans.all()] == ["verify_email", f"GET {LIVE}"]
    assert [parent_id(each) for each in spans.all()] == [SPAN, SPAN]


async def test_a_job_and_its_callbacks_are_children_of_their_request(autojump_clock):
    receiver = Receiver()
    answers = [
        Delivered(None, "the look-up failed: ann@example.org", None, 5),
        Delivered(500, None, None, 5),
    ]
    receiver.answer = lambda host: answers.pop(0) if answers else Delivered(200, None, None, 5)
    with traced() as spans:
        async with open_shop() as shop, working(shop, receiver):
            assert (await promise(shop, headers={"traceparent": PARENT})).status == 202
            request = spans.last()
            with trio.fail_after(3600):
                while len(spans.named("POST")) < 3:  # noqa: ASYNC110  # of virtual time
                    await trio.sleep(1)
    [verified], attempts = spans.named("verify job"), spans.named("POST")
    assert verified.kind is SpanKind.CONSUMER
    assert {trace_id(each) for each in spans.all()} == {TRACE}
    assert {parent_id(each) for each in [verified, *attempts]} == {span_id(request)}
    sent = [headers["traceparent"] for _, _, headers, _ in receiver.calls]
    assert sent == [f"00-{TRACE}-{span_id(each)}-01" for each in attempts]
    noted = [attributes(each) for each in attempts]
    assert [each.get("error.type") for each in noted] == ["no_answer", "500", None]
    assert [each.get("http.response.status_code") for each in noted] == [None, 500, 200]
    assert [each.get("http.request.resend_count") for each in noted] == [None, 1, 2]
    assert attempts[0].status.description == "the look-up failed: a…@example.org"


async def test_chunks_of_a_list_are_traces_that_link_to_its_request(autojump_clock):
    receiver = Receiver()
    with traced() as spans:
        async with open_shop("scale") as shop, working(shop, receiver), working_lists(shop):
            got = await send(shop, many(150), f"?webhook={HOOK}")
            request = spans.last()
            await ended(shop, got.body["list_id"])
            with trio.fail_after(60):
                while not receiver.calls:  # noqa: ASYNC110  # of virtual time
                    await trio.sleep(1)
                await trio.sleep(1)
    chunks = spans.named("verify chunk")
    assert sorted(
        (attributes(each)["mailprobe.chunk"], attributes(each)["mailprobe.addresses"])
        for each in chunks
    ) == [(0, 100), (1, 50)]
    for each in chunks:
        assert attributes(each)["mailprobe.list.id"] == got.body["list_id"]
        assert parent_id(each) is None
        assert [link.context.span_id for link in each.links] == [request.context.span_id]
    assert len({trace_id(each) for each in [request, *chunks]}) == 3
    assert trace_id(spans.named("POST")[0]) == trace_id(request)


def texts(span: ReadableSpan) -> str:
    return str(span.to_json())


async def test_no_span_holds_an_address_a_key_or_a_query(autojump_clock):
    secrets = ["ann", "sk_live_", "whsec", "SECRET", "token=", "hidden"]
    receiver = Receiver()
    with traced() as spans:
        async with open_shop("scale") as shop, working(shop, receiver), working_lists(shop):
            await shop.verify(
                "ann@friendly.test", headers={"user-agent": "ann", "tracestate": "a=1"}
            )
            await shop.batch("ann@friendly.test", "ann")
            await shop.stream("ann@friendly.test")
            await shop.request("GET", f"/ann@friendly.test/{shop.key}?token=SECRET")
            await shop.request("GET", f"/v1/jobs/{shop.key}?token=SECRET")
            await shop.request("GET", f"/dashboard/lists/{shop.key}?token=SECRET")
            await shop.verify("ann@friendly.test", key="sk_live_annSECRET")
            hook = "https://hooks.example/hidden?token=SECRET"
            body = {"webhook_secret": "whsec_U0VDUkVUU0VDUkVU"}
            assert (await promise(shop, "ann@friendly.test", hook, body=body)).status == 202
            got = await send(shop, "email\nann@friendly.test\n", "?name=ann")
            await ended(shop, got.body["list_id"])
            with trio.fail_after(60):
                while not receiver.calls:  # noqa: ASYNC110  # of virtual time
                    await trio.sleep(1)
                await trio.sleep(1)
    names = {span.name for span in spans.all()}
    assert {"POST", "verify chunk", "verify job", f"POST {VERIFY}", "GET"} <= names
    for span in spans.all():
        assert not [each for each in secrets if each in texts(span)], texts(span)
