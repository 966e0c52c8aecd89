"""The outbox worker: each billable verification is counted once at Stripe."""

import logging
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest
import trio
from msgspec import structs

from mailprobe.api.billing.client import Stripe, StripeFailed
from mailprobe.api.billing.provider import (
    StripeCustomers,
    open_stripe_payments,
)
from mailprobe.api.billing.rules import (
    METER_EVENT,
)
from mailprobe.storage.sqlite.memory import MemoryStore
from tests.api import service_fixture
from tests.api.billing.billing_fixture import (
    DASHBOARD,
    LOST,
    QUICK,
    REFUSED,
    SLOT,
    BillingSetup,
    deliver_batch,
    meter_sender,
    open_billing,
    throw,
)
from tests.api.billing.fake_stripe import (
    KEY,
    MODES,
)
from tests.api.service_fixture import Unsteady
from tests.storage.fixed_clock import make_caller

# httpx does not close the body's generator when a request is cancelled
pytestmark = pytest.mark.filterwarnings("ignore:Async generator 'httpx:ResourceWarning")


async def test_the_billable_count_of_ten_seconds_is_one_event(billing: BillingSetup):
    await billing.use(3)
    billing.clock.advance(9)
    await billing.use(4)
    billing.clock.advance(1)
    await billing.use(5)
    await billing.deliver()
    account_id = billing.caller.account.id
    assert [(event["value"], event["timestamp"]) for event in billing.fake.events] == [
        (7, SLOT), (5, SLOT + 10),
    ]  # fmt: skip
    asked = [asked for asked in billing.fake.asked if asked.path == "/v1/billing/meter_events"]
    assert asked[0].form == {
        "event_name": METER_EVENT,
        "identifier": f"{account_id}-{SLOT}",
        "payload[stripe_customer_id]": "cus_1",
        "payload[value]": "7",
        "timestamp": str(SLOT),
    }
    assert all(message.sent_at and message.due_at is None for message in await billing.messages())
    await billing.deliver(3)
    assert billing.fake.counted == 12


async def test_the_free_tier_is_never_metered():
    async with open_billing("free") as billing:
        await billing.use(3)
        await billing.deliver()
        assert billing.fake.asked == []
        assert await billing.messages() == []


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("times", [1, 3])
async def test_each_verification_is_counted_once_in_any_mode(billing: BillingSetup, mode, times):
    billing.fake.next("meter_events", *[mode] * times)
    await billing.use(3)
    await billing.deliver(times + 2)
    assert billing.fake.counted == 3
    message = await billing.message()
    assert message.sent_at
    assert message.error is None


async def test_an_event_taken_and_not_answered_is_sent_again_under_its_name(billing: BillingSetup):
    billing.fake.next("meter_events", "hangs after", "drops after", "fails after")
    await billing.use(3)
    await billing.deliver(4)
    identifiers = [
        asked.form["identifier"] for asked in billing.fake.asked if "identifier" in asked.form
    ]
    assert identifiers == [f"{billing.caller.account.id}-{SLOT}"] * 4
    keys = [asked.headers["idempotency-key"] for asked in billing.fake.asked]
    assert len(set(keys)) == len(keys), "a fixed one has Stripe repeat its 500"
    assert billing.fake.counted == 3


async def test_a_message_in_doubt_for_a_day_is_held_for_an_operator(billing: BillingSetup, caplog):
    billing.fake.next("meter_events", "hangs after")
    await billing.use(3)
    await billing.deliver()
    billing.clock.advance(days=1)
    await billing.deliver(3)
    assert billing.fake.times_asked("meter_events") == 1
    message = await billing.message()
    assert message.due_at is message.sent_at is None
    assert message.error
    assert message.error.startswith("held, in doubt since 2025-03-14T12:30:12+00:00")
    (line,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    for said in (f"{message.account_id}-{SLOT}", "verifications=3", "2025-03-14T12:00:00+00:00"):
        assert said in line.getMessage()


async def test_a_rejected_message_is_sent_again_for_weeks(billing: BillingSetup):
    await billing.use(3)
    for mode in ("knows no key", "is busy", "refuses", "forbids"):
        billing.fake.next("meter_events", mode)
        await billing.deliver()
        billing.clock.advance(days=8)
    away = Stripe(KEY, "http://127.0.0.1:9", QUICK)
    customers = StripeCustomers(billing.store, away)
    sender = meter_sender(billing.store, away, customers, billing.clock)
    await replace(billing, sender=sender).deliver()
    await away.close()
    await billing.deliver()
    assert billing.fake.counted == 3


async def test_a_message_too_old_for_stripe_is_held(billing: BillingSetup, caplog):
    await billing.use(3)
    billing.clock.advance(days=34)
    await billing.deliver()
    assert billing.fake.asked == []
    assert "too old" in ((await billing.message()).error or "")
    assert "too old" in caplog.text


@pytest.mark.parametrize("hook", ["on_ask", "on_done"])
async def test_a_process_that_dies_in_the_middle_has_sent_it_or_not(billing: BillingSetup, hook):
    """Its claim ends with the lease; the next process sends it with the same identifier."""
    await billing.use(3)
    billing.fake.next("meter_events", "hangs" if hook == "on_ask" else "hangs after")
    billing.clock.advance(12)
    with trio.CancelScope() as life:

        def die(asked: Any) -> None:
            if asked.path.endswith("meter_events"):
                life.cancel()

        setattr(billing.fake, hook, die)
        await deliver_batch(billing.outbox_worker)
    assert life.cancelled_caught
    assert (await billing.message()).sent_at is None
    assert billing.fake.counted == (3 if hook == "on_done" else 0)
    await deliver_batch(billing.outbox_worker)
    assert billing.fake.times_asked("meter_events") == 1, "its claim is still in force"
    await billing.deliver()
    assert billing.fake.counted == 3
    assert (await billing.message()).sent_at


async def test_a_claim_without_an_end_a_day_ago_is_held(billing: BillingSetup):
    await billing.use(3)
    billing.clock.advance(12)
    await billing.store.claim_messages("meter", limit=10, lease_s=60)
    billing.clock.advance(days=1)
    await billing.deliver()
    assert billing.fake.times_asked("meter_events") == 0
    assert "in doubt" in ((await billing.message()).error or "")


async def test_retry_after_is_obeyed(billing: BillingSetup):
    billing.fake.next("meter_events", "is busy")
    await billing.use(3)
    billing.clock.advance(12)
    done = await deliver_batch(billing.outbox_worker)
    assert done.general_failure
    assert done.general_failure.retry_after_s == 7
    due_at = (await billing.message()).due_at
    assert due_at
    assert due_at >= billing.clock() + timedelta(seconds=7)
    billing.clock.advance(6.9)
    await deliver_batch(billing.outbox_worker)
    assert billing.fake.times_asked("meter_events") == 1
    billing.clock.advance(0.2)
    await deliver_batch(billing.outbox_worker)
    assert billing.fake.counted == 3


async def test_meter_events_are_sequential_for_a_customer_and_concurrent_between_customers(
    billing: BillingSetup,
):
    other = await make_caller(billing.store, "scale", "other")
    callers = (billing.caller, other)
    for caller in callers:
        for _ in range(5):
            await billing.use(1, caller)
            billing.clock.advance(10)
    billing.fake.next("meter_events", *["late"] * 10)
    at_idempotency = 0

    def observe(asked: Any) -> None:
        nonlocal at_idempotency
        at_idempotency = max(at_idempotency, sum(billing.fake.busy.values()) + 1)

    billing.fake.on_ask = observe
    await billing.deliver()
    assert billing.fake.counted == billing.fake.times_asked("meter_events") == 10
    assert at_idempotency == 2


async def test_a_round_ends_where_stripe_refuses_everything(billing: BillingSetup):
    for _ in range(20):
        await billing.use(1)
        billing.clock.advance(10)
    billing.fake.next("meter_events", "knows no key")
    await billing.deliver()
    assert billing.fake.times_asked("meter_events") == 1
    await billing.deliver()
    assert billing.fake.counted == 20


async def test_one_message_that_is_refused_keeps_no_other_waiting(billing: BillingSetup, caplog):
    for _ in range(3):
        await billing.use(1)
        billing.clock.advance(10)
    billing.fake.next("meter_events", "refuses")
    await billing.deliver()
    assert billing.fake.counted == 2
    assert "failed=1 of=3 error=Stripe answered 400: not in the mode" in caplog.text


async def test_a_store_that_is_away_after_the_sending_counts_nothing_twice(
    billing: BillingSetup, caplog
):
    await billing.use(3)
    billing.store.away = {"message_attempted"}
    async with trio.open_nursery() as nursery:
        nursery.start_soon(billing.deliver)
        with trio.fail_after(5):
            while "message_attempted" not in billing.store.calls:  # noqa: ASYNC110 - a fake fills it
                await trio.sleep(0.01)
        assert billing.fake.counted == 3
        billing.store.away = False
    await billing.deliver()
    assert billing.fake.counted == 3
    assert billing.fake.times_asked("meter_events") == 1
    assert (await billing.message()).sent_at
    assert "result not recorded: queue=meter events" in caplog.text


# -- the runs, in virtual time ------------------------------------------------------------------


class ScriptedStripe:
    """Stripe without sockets: does what the test scripts."""

    def __init__(self) -> None:
        self.failures: list[StripeFailed | Exception] = []
        self.counted: list[tuple[float, int]] = []
        self.tries: list[float] = []

    async def make_customer(self, account: Any) -> str:
        return "cus_1"

    async def count(self, event: Any) -> None:
        await trio.lowlevel.checkpoint()
        self.tries.append(trio.current_time())
        if self.failures:
            raise self.failures.pop(0)
        self.counted.append((trio.current_time(), event.value))

    async def close(self) -> None:
        pass


@asynccontextmanager
async def open_worker() -> AsyncIterator[tuple[Any, ScriptedStripe, BillingSetup]]:
    clock: Any = service_fixture.Clock()
    store: Any = Unsteady(MemoryStore(clock))
    scripted: Any = ScriptedStripe()
    caller = await make_caller(store)
    async with open_stripe_payments(
        store, scripted, webhook_secret=None, dashboard_url=DASHBOARD, now=clock,
        rng=random.Random(0),
    ) as payments:  # fmt: skip
        nobody: Any = None
        yield (
            store,
            scripted,
            BillingSetup(store, nobody, clock, scripted, nobody, payments, caller),
        )


async def test_a_count_leaves_within_thirty_seconds(autojump_clock):
    async with open_worker() as (_, scripted, billing):
        for _ in range(40):
            before = sum(count for _, count in scripted.counted)
            began = trio.current_time()
            await billing.use(3)
            await trio.sleep(29)
            assert sum(count for _, count in scripted.counted) == before + 3
            assert scripted.counted[-1][0] <= began + 29


async def test_where_stripe_is_away_it_rests_longer_and_longer_up_to_a_minute(autojump_clock):
    async with open_worker() as (_, scripted, billing):
        scripted.failures = [StripeFailed(LOST) for _ in range(20)]
        for _ in range(200):
            await billing.use(1)
            await trio.sleep(10)
        tries = scripted.tries[:21]
        waits = [after - before for before, after in pairwise(tries)]
        assert sum(waits[:3]) < 30
        assert 30 < max(waits) <= 60 + 2
        await trio.sleep(30)
        assert len(scripted.counted) == 200
        assert len(scripted.tries) == 220


async def test_a_retry_after_of_an_hour_is_obeyed(autojump_clock):
    async with open_worker() as (_, scripted, billing):
        scripted.failures = [StripeFailed(structs.replace(REFUSED, retry_after_s=3600))]
        await billing.use(1)
        await trio.sleep(3600)
        assert scripted.counted == []
        await trio.sleep(60)
        assert len(scripted.counted) == 1


async def test_the_worker_continues_after_the_store_was_unavailable(autojump_clock, caplog):
    async with open_worker() as (store, scripted, billing):
        await billing.use(1)
        store.away = True
        await trio.sleep(60)
        assert "store unavailable: queue=meter events" in caplog.text
        store.away = False
        await trio.sleep(5)
        assert len(scripted.counted) == 1


async def test_a_bug_in_the_sending_is_logged_and_the_message_is_sent_again(autojump_clock, faults):
    async with open_worker() as (_, scripted, billing):
        scripted.failures = [ZeroDivisionError()]
        await billing.use(1)
        await trio.sleep(600)
        assert len(scripted.counted) == 1
    assert ["ZeroDivisionError" in each for each in faults] == [True]


async def test_a_bug_in_the_looking_is_logged_and_messages_are_looked_for_again(
    autojump_clock, faults, monkeypatch
):
    async with open_worker() as (_, scripted, billing):
        with monkeypatch.context() as patched:
            patched.setattr(billing.store.store, "claim_messages", throw)
            await billing.use(1)
            await trio.sleep(60)
        assert faults
        await trio.sleep(600)
        assert len(scripted.counted) == 1
