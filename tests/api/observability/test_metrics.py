"""Each event is counted once and added up over workers."""

from functools import partial
from typing import Any

import pytest
import trio
import trio.testing

from mailprobe.api.observability.catalogue import families
from mailprobe.api.observability.metrics import POLL_EVERY_S, Metrics
from mailprobe.api.observability.request_context import (
    request_rejected,
    request_scope,
)
from mailprobe.api.observability.shared_counters import (
    OTHER,
    SharedCounters,
)
from mailprobe.api.operations.table import OPERATIONS
from mailprobe.api.quota.plans import PLANS
from mailprobe.bench.world.zone import ZoneMode
from mailprobe.storage.contract import StoreUnavailable
from tests.api.observability.counting import Read, counted, read
from tests.api.service_fixture import BATCH, STREAM, VERIFY

# -- requests ---------------------------------------------------------------------------------


async def test_requests_are_counted_by_operation_and_status(
    autojump_clock: object, board: SharedCounters
) -> None:
    async with counted(board) as counting:
        shop = counting.shop
        await shop.verify("known@friendly.test")
        await shop.verify("known@slow.test")
        await shop.batch("a", "b", "c")
        await shop.stream("a", "b")
        await shop.request("GET", "/health")
        await shop.request("GET", "/nope")
        await shop.request("PUT", "/health")
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
        await shop.request("POST", VERIFY, headers={"content-length": "9999999"})
        await shop.manage("GET", "/account", key=shop.key)
        await shop.request("DELETE", "/v1/management/keys/x", key=shop.provisioning)
        await shop.manage("POST", "/billing/portal")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(shop.verify, "known@slow.test"))
            await trio.sleep(0.1)
            await shop.request("POST", VERIFY, good)
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
    by_name = {family.name: family for family in families(OPERATIONS)}
    shown = set(by_name["mailprobe_requests"].series)
    for operation in OPERATIONS:
        assert {(operation.name, str(operation.status)), (operation.name, "gone")} <= shown
    assert by_name["mailprobe_refusals"].other not in by_name["mailprobe_refusals"].series


async def test_requests_of_test_keys_raise_no_alarm(
    autojump_clock: object, board: SharedCounters
) -> None:
    """Its addresses ask for errors and delays: they are no errors and no delays of the service."""
    async with counted(board) as service:
        key = await service.shop.new_key("sk_test_")
        for name in ("overloaded", "unavailable", "slow-3000", "full"):
            await service.shop.verify(f"{name}@sandbox.test", key=key)
        page = service.read()
    assert page("mailprobe_requests_total", operation="test", status="503") == 2
    assert page("mailprobe_requests_total", operation="test", status="200") == 2
    assert page("mailprobe_requests_total") == 4
    assert page.shown("mailprobe_refusals_total") == []
    assert page("mailprobe_request_seconds_count") == 0
    assert page("mailprobe_verdicts_total") == 0


async def test_work_in_progress_is_counted_until_it_ends(
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


async def test_a_client_that_leaves_is_counted_as_gone_and_leaves_nothing_behind(
    autojump_clock: object, board: SharedCounters
) -> None:
    async with counted(board) as counting:
        shop = counting.shop
        await shop.verify("known@slow.test", hang_up_at=0.1)
        body = {"emails": ["x", "known@slow.test"]}
        await shop.request("POST", STREAM, body, hang_up_after=lambda chunks: True)
        for steps in range(40):
            await shop.request("POST", BATCH, body, hang_up_steps=steps)
        await trio.sleep(30)
        reported = counting.read()
    assert reported("mailprobe_requests_total", operation="verify_email", status="gone") == 1
    assert reported("mailprobe_requests_total", operation="verify_stream", status="200") == 1
    assert reported("mailprobe_requests_in_flight") == reported("mailprobe_streams_in_flight") == 0
    assert reported("mailprobe_addresses_under_way") == 0


async def test_a_refusal_of_the_server_itself_is_counted_once(
    autojump_clock: object, board: SharedCounters
) -> None:
    metrics = Metrics(board.attach())
    request_rejected(metrics, "invalid_request", 400)
    with request_scope(metrics, "id", lingers=True) as request_context:
        request_context.operation = "verify_email"  # which crashes
    request_rejected(metrics, "internal_error", 500)
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
        await counting.shop.request("POST", f"{VERIFY}?evidence=1", {"email": "x"})
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
    assert counts == {"caller": 2, "has_bounces": 1, "reserve": 1, "settle": 1, "spend": 1}


class Shelf:
    """A store of a kind that is unknown to the metrics."""

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


async def test_pending_background_writes_are_counted(
    autojump_clock: object, board: SharedCounters
) -> None:
    async with counted(board) as counting:
        counting.shop.store.away = {"settle"}
        async with trio.open_nursery() as nursery:
            nursery.start_soon(counting.shop.stream, "known@friendly.test")
            await trio.sleep(0.3)
            assert counting.read()("mailprobe_background_writes") == 1
            counting.shop.store.away = False
        assert counting.read()("mailprobe_background_writes") == 0


async def test_states_are_looked_at_again_and_again_and_end_with_the_worker(
    autojump_clock: object, board: SharedCounters
) -> None:
    async with counted(board) as counting, trio.open_nursery() as nursery:
        nursery.start_soon(counting.metrics.watch, counting.shop.service.load)
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
