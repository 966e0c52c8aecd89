"""Billing: what leaves for the meter is counted once, what Stripe says is what an account is."""

import logging
import random
import re
import signal
import subprocess
import sys
import time
import traceback
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest
import stripe as sdk
import trio

from mailprobe.api.billing.billing import open_payments
from mailprobe.api.billing.client import Stripe, StripeFailed, StripePace, StripeTransport
from mailprobe.api.billing.provider import (
    AccountLocks,
    OutboxWorker,
    StripeCustomers,
    StripePayments,
    open_stripe_payments,
)
from mailprobe.api.billing.rules import (
    FOLLOWED,
    KEEPS_TIER,
    METER_EVENT,
    OUTAGE_PAUSE_MAX_S,
    RETRY_AFTER_MAX_S,
    UNCERTAIN_MAX,
    Failure,
    account_fields,
    held_for,
    identifier_of,
    pause_s,
    read_event,
    read_retry_after,
    read_subscription,
    reported,
    uncertain_since,
)
from mailprobe.api.rest.app import create_app
from mailprobe.api.rest.refusals import InvalidRequest, NoSuchRoute, ProviderUnavailable
from mailprobe.storage import open_store
from mailprobe.storage.memory.store import MemoryStore
from mailprobe.storage.records import Caller, OutboxMessage, Reservation
from tests.api import service_fixture
from tests.api.billing.billing_child import NAMES, fast_clock
from tests.api.billing.fake_stripe import (
    KEY,
    MOODS,
    PORTAL,
    SECRET,
    FakeStripe,
    open_fake_stripe,
    signature,
    signed,
    subscription,
)
from tests.api.service_fixture import Shop, Unsteady, open_shop
from tests.storage.fixed_clock import NOON, Clock, granted, make_caller, row
from tests.storage.fixed_clock import SECRET as STORE_SECRET

# httpx leaves the body's generator behind where a request is cancelled
pytestmark = pytest.mark.filterwarnings("ignore:Async generator 'httpx:ResourceWarning")

ROOT = Path(__file__).parents[3]
KILLS = 20
TIERS = ("builder", "scale", "free")  # of the child's three accounts
DASHBOARD = "https://dash.test"
SLOT = int(NOON.timestamp())
QUICK = StripePace(
    timeout_s=0.3, answer_s=2, repeats_s=(0.01, 0.02), poll_s=0.01, backoff_max_s=0.02
)


# -- what Stripe tells of subscriptions ---------------------------------------------------------


def fields_by(*reported: dict[str, Any]) -> dict[str, Any]:
    fields = account_fields([read_subscription(one) for one in reported])
    assert fields is not None
    return fields


@pytest.mark.parametrize(
    ("status", "tier"),
    [
        ("active", "builder"), ("trialing", "builder"), ("past_due", "builder"),
        ("unpaid", "free"), ("incomplete", "free"), ("incomplete_expired", "free"),
        ("paused", "free"), ("canceled", "free"), ("invented_later", "free"),
    ],
)  # fmt: skip
def test_some_statuses_keep_the_tier_and_the_others_end_it(status, tier):
    fields = fields_by(subscription("cus_1", status=status))
    assert (fields["tier"], fields["subscription_status"]) == (tier, status)
    assert (fields["current_period_end"] is not None) == (tier != "free")
    assert KEEPS_TIER.get(status, False) == (tier != "free")


def test_every_status_that_the_sdk_knows_is_in_the_table():
    known = str(sdk.Subscription.__annotations__["status"])
    assert all(repr(status).replace("'", '"') in known.replace("'", '"') for status in KEEPS_TIER)
    assert known.replace("'", '"').count('"') == 2 * len(KEEPS_TIER)


def test_all_that_is_told_of_a_subscription_becomes_the_accounts():
    at = [SLOT + n for n in range(7)]
    fields = fields_by(
        subscription(
            "cus_1", "scale", start=at[0], end=at[1], cancel_at_period_end=True, canceled_at=at[2],
            cancel_at=at[3], trial_start=at[4], trial_end=at[5], billing_cycle_anchor=at[6],
        )
    )  # fmt: skip
    assert fields == {
        "tier": "scale",
        "subscription_status": "active",
        "current_period_start": NOON,
        "current_period_end": NOON + timedelta(seconds=1),
        "cancel_at_period_end": True,
        "canceled_at": NOON + timedelta(seconds=2),
        "cancel_at": NOON + timedelta(seconds=3),
        "trial_start": NOON + timedelta(seconds=4),
        "trial_end": NOON + timedelta(seconds=5),
        "billing_cycle_anchor": NOON + timedelta(seconds=6),
    }


def test_the_period_is_the_subscriptions_own_in_old_api_versions():
    reported = subscription("cus_1", current_period_start=SLOT, current_period_end=SLOT + 1)
    for item in reported["items"]["data"]:
        del item["current_period_start"], item["current_period_end"]
    assert fields_by(reported)["current_period_start"] == NOON


def test_the_period_is_that_of_the_item_which_makes_the_tier():
    reported = subscription("cus_1", "scale", start=SLOT, end=SLOT + 1)
    other = subscription("cus_1", None)["items"]["data"]
    reported["items"]["data"] = other + reported["items"]["data"]
    fields = fields_by(reported)
    assert (fields["tier"], fields["current_period_start"]) == ("scale", NOON)


def test_the_tier_is_named_by_the_price_or_by_its_product():
    reported = subscription("cus_1", None)
    price = reported["items"]["data"][0]["price"]
    assert read_subscription(reported).tier is None
    price["product"] = {"id": "prod_1", "metadata": {"tier": "builder"}}
    assert read_subscription(reported).tier == "builder"
    price["product"] = "prod_1"
    price["metadata"] = {"tier": "scale"}
    assert read_subscription(reported).tier == "scale"
    price |= {"metadata": {}, "lookup_key": "scale_overage"}
    assert read_subscription(reported).tier is None


def test_of_several_the_best_that_lives_counts_else_the_newest_that_ended():
    builder = subscription("cus_1", "builder", id="sub_1", created=3)
    scale = subscription("cus_1", "scale", id="sub_2", created=1)
    gone = subscription("cus_1", "scale", id="sub_3", created=9, status="canceled")
    unpaid = subscription("cus_1", "scale", id="sub_4", created=8, status="unpaid")
    assert fields_by(builder, scale, gone)["tier"] == "scale"
    assert fields_by(builder, gone)["tier"] == "builder"
    assert fields_by(unpaid, gone)["subscription_status"] == "canceled"
    assert fields_by()["tier"] == "free"
    assert fields_by()["subscription_status"] is None


def test_what_sells_no_tier_of_ours_is_passed_over_unless_it_is_all_there_is():
    strange = read_subscription(subscription("cus_1", "hosting"))
    ended = read_subscription(subscription("cus_1", "builder", status="canceled"))
    assert account_fields([strange]) is None
    fields = account_fields([strange, ended])
    assert fields
    assert fields["tier"] == "free"
    strange_ended = read_subscription(subscription("cus_1", "hosting", status="canceled"))
    assert account_fields([strange_ended]) is not None


# -- signatures ---------------------------------------------------------------------------------

OCTETS, HEADER = signed("customer.subscription.updated", {"customer": "cus_1"}, NOON)
STAMP, _, MAC = HEADER.partition(",v1=")


def test_an_event_is_known_by_its_signature():
    hint = read_event(OCTETS, HEADER, SECRET, NOON)
    assert (hint.type, hint.customer_id) == ("customer.subscription.updated", "cus_1")


def test_we_sign_as_the_sdk_does():
    sign = sdk.WebhookSignature.generate_signature_header
    assert sign(OCTETS.decode(), SECRET, SLOT) == HEADER  # type: ignore[no-untyped-call]


@pytest.mark.parametrize(
    ("octets", "header", "late_s"),
    [
        (OCTETS, HEADER, 300),
        (OCTETS, HEADER, -300),
        (OCTETS, f"{STAMP},v1={'0' * 64},v1={MAC}", 0),  # a secret is being replaced
        (OCTETS, f"{STAMP},v0=abc,v1={MAC}", 0),
        (OCTETS, f"{STAMP}, v1={MAC}", 0),
    ],
)
def test_a_right_signature_passes(octets, header, late_s):
    assert read_event(octets, header, SECRET, NOON + timedelta(seconds=late_s))


@pytest.mark.parametrize(
    ("octets", "header", "late_s"),
    [
        (OCTETS, HEADER, 301),
        (OCTETS, HEADER, -301),
        (OCTETS + b" ", HEADER, 0),
        (OCTETS, signature(OCTETS, NOON, "whsec_another"), 0),
        (OCTETS, "", 0),
        (OCTETS, f"v1={MAC}", 0),
        (OCTETS, STAMP, 0),
        (OCTETS, f"{STAMP},v0={MAC}", 0),
        (OCTETS, f"{STAMP},{STAMP},v1={MAC}", 0),
        (OCTETS, f"t=,v1={MAC}", 0),
        (OCTETS, f"t=-{SLOT},v1={MAC}", 0),
        (OCTETS, f"t={'9' * 40},v1={MAC}", 0),
        (OCTETS, f"{STAMP},v1=é", 0),
        (OCTETS, f"{STAMP},v1=\udcff", 0),
        (OCTETS, "=,=,=", 0),
    ],
)
def test_a_wrong_signature_does_not(octets, header, late_s):
    with pytest.raises(InvalidRequest) as refused:
        read_event(octets, header, SECRET, NOON + timedelta(seconds=late_s))
    assert MAC not in str(vars(refused.value))


@pytest.mark.parametrize("octets", [b"", b"[]", b"{", b"\xff", b'{"type":5}', b"[" * 100_000])
def test_what_is_signed_and_no_event_is_refused(octets):
    with pytest.raises(InvalidRequest):
        read_event(octets, signature(octets, NOON), SECRET, NOON)


def test_an_event_is_about_a_customer_and_may_name_the_account():
    def about(**fields: Any) -> tuple[str | None, str | None]:
        hint = read_event(*signed("invoice.paid", fields, NOON), SECRET, NOON)
        return hint.customer_id, hint.account_id

    assert about(customer="cus_1") == ("cus_1", None)
    assert about(customer={"id": "cus_1"}, metadata={"account_id": "a"}) == ("cus_1", "a")
    assert about(object="customer", id="cus_1") == ("cus_1", None)
    assert about(customer="cus_1", client_reference_id="a") == ("cus_1", "a")
    assert about(customer=None) == (None, None)
    assert about(customer=5, metadata=7) == (None, None)


# -- what may be sent again ---------------------------------------------------------------------

MESSAGE = OutboxMessage("id", "meter", "0" * 36, str(SLOT), b"", 3, NOON, NOON, fence=1)
LOST = Failure("lost", certain=False)
REFUSED = Failure("refused", certain=True)


def tried(message: OutboxMessage, failure: Failure, at: datetime) -> OutboxMessage:
    """As the store has it after the try, claimed once more."""
    error = reported(message, failure, at)
    return replace(message, tries=message.tries + 1, fence=message.fence + 1, error=error)


def test_an_identifier_is_the_account_and_the_slot_and_short_enough():
    assert identifier_of(MESSAGE) == f"{'0' * 36}-{SLOT}"
    assert len(identifier_of(MESSAGE)) <= 100


def test_a_doubt_lasts_from_the_first_try_whose_end_is_not_known():
    refused = tried(MESSAGE, REFUSED, NOON)
    assert uncertain_since(refused) is None
    lost = tried(refused, LOST, NOON + timedelta(hours=1))
    assert uncertain_since(lost) == NOON + timedelta(hours=1)
    for failure in (REFUSED, LOST, REFUSED):
        lost = tried(lost, failure, NOON + timedelta(hours=2))
        assert uncertain_since(lost) == NOON + timedelta(hours=1)
    long = tried(MESSAGE, Failure("x" * 10_000, certain=False), NOON)
    assert uncertain_since(long) == NOON
    assert len(long.error or "") <= 300


def test_a_claim_whose_end_nobody_told_is_a_doubt_since_it_was_due():
    refused = replace(tried(MESSAGE, REFUSED, NOON), due_at=NOON + timedelta(hours=5))
    killed = replace(refused, fence=refused.fence + 1)
    assert uncertain_since(killed) == NOON + timedelta(hours=5)
    after = tried(killed, REFUSED, NOON + timedelta(hours=6))
    assert uncertain_since(after) == NOON + timedelta(hours=5)


def test_what_is_in_doubt_is_held_after_23_hours_and_what_was_refused_after_34_days():
    lost, refused = tried(MESSAGE, LOST, NOON), tried(MESSAGE, REFUSED, NOON)
    assert held_for(lost, NOON + UNCERTAIN_MAX) is None
    assert held_for(lost, NOON + UNCERTAIN_MAX + timedelta(seconds=1))
    assert held_for(refused, NOON + timedelta(days=34)) is None
    assert held_for(refused, NOON + timedelta(days=34, seconds=1))
    assert timedelta(hours=23) == UNCERTAIN_MAX


def test_pauses_grow_have_a_bound_and_a_chance_and_are_never_shorter_than_asked():
    rng = random.Random(1)

    def pauses(tries: int, asked_s: float = 0.0) -> list[float]:
        most_s = OUTAGE_PAUSE_MAX_S
        return [pause_s(tries, rng, retry_after_s=asked_s, most_s=most_s) for _ in range(50)]

    assert 1 <= min(pauses(0)) < max(pauses(0)) <= 2
    assert max(pauses(1)) > 2
    assert max(pauses(10**9)) <= OUTAGE_PAUSE_MAX_S
    assert min(pauses(0, 60)) == 60
    assert max(pauses(0, 10**9)) == RETRY_AFTER_MAX_S


@pytest.mark.parametrize(
    ("header", "seconds"), [("7", 7), (None, 0), ("soon", 0), ("-7", 0), ("9" * 30, 0), ("٧", 0)]
)
def test_a_retry_after_is_whole_seconds(header, seconds):
    assert read_retry_after(header) == seconds


# -- the outbox, to a fake on loopback ----------------------------------------------------------


@dataclass
class Office:
    """A store, a fake Stripe, and what stands between them; the clock stands still until told."""

    store: Any
    fake: FakeStripe
    clock: Clock
    stripe: Stripe
    outbox_worker: OutboxWorker
    payments: StripePayments
    caller: Caller

    async def use(self, count: int, caller: Caller | None = None) -> None:
        """Settle so many billable verifications, and one that is not."""
        caller = caller or self.caller
        reservation = await self.store.reserve(caller, count + 1, granted, lease_s=60)
        assert isinstance(reservation, Reservation)
        rows = [row(self.clock())] * count + [row(self.clock(), billable=False)]
        await self.store.settle(reservation, rows, metered=True)

    async def deliver(self, rounds: int = 1) -> None:
        """Rounds so far apart that whatever is to be sent is due."""
        for _ in range(rounds):
            self.clock.pass_(12 + 2 * OUTAGE_PAUSE_MAX_S)
            await self.outbox_worker.deliver()

    async def messages(self) -> list[OutboxMessage]:
        messages: list[OutboxMessage] = await self.store.messages("meter", limit=1000)
        return messages

    async def message(self) -> OutboxMessage:
        (message,) = await self.messages()
        return message


@asynccontextmanager
async def open_office(tier: str = "builder") -> AsyncIterator[Office]:
    clock = Clock()
    store: Any = Unsteady(MemoryStore(clock))
    caller = await make_caller(store, tier)
    async with open_fake_stripe(now=clock) as fake:
        stripe = Stripe(KEY, fake.url, QUICK)
        customers = StripeCustomers(store, stripe)
        rng = random.Random(0)
        yield Office(
            store,
            fake,
            clock,
            stripe,
            OutboxWorker(store, stripe, customers, now=clock, rng=rng, pace=QUICK),
            StripePayments(
                store,
                stripe,
                customers,
                webhook_secret=SECRET,
                dashboard_url=DASHBOARD,
                now=clock,
                pace=QUICK,
            ),
            caller,
        )
        await stripe.close()


@pytest.fixture
async def office() -> AsyncIterator[Office]:
    async with open_office() as office:
        yield office


async def test_what_is_billable_of_ten_seconds_leaves_as_one_event(office: Office):
    await office.use(3)
    office.clock.pass_(9)
    await office.use(4)
    office.clock.pass_(1)
    await office.use(5)
    await office.deliver()
    account_id = office.caller.account.id
    assert [(event["value"], event["timestamp"]) for event in office.fake.events] == [
        (7, SLOT), (5, SLOT + 10),
    ]  # fmt: skip
    asked = [asked for asked in office.fake.asked if asked.path == "/v1/billing/meter_events"]
    assert asked[0].form == {
        "event_name": METER_EVENT,
        "identifier": f"{account_id}-{SLOT}",
        "payload[stripe_customer_id]": "cus_1",
        "payload[value]": "7",
        "timestamp": str(SLOT),
    }
    assert all(message.sent_at and message.due_at is None for message in await office.messages())
    await office.deliver(3)
    assert office.fake.counted == 12


async def test_the_free_tier_is_never_metered():
    async with open_office("free") as office:
        await office.use(3)
        await office.deliver()
        assert office.fake.asked == []
        assert await office.messages() == []


@pytest.mark.parametrize("mood", MOODS)
@pytest.mark.parametrize("times", [1, 3])
async def test_whatever_the_mood_each_verification_is_counted_once(office: Office, mood, times):
    office.fake.next("meter_events", *[mood] * times)
    await office.use(3)
    await office.deliver(times + 2)
    assert office.fake.counted == 3
    message = await office.message()
    assert message.sent_at
    assert message.error is None


async def test_an_event_taken_and_not_answered_is_sent_again_under_its_name(office: Office):
    office.fake.next("meter_events", "hangs after", "drops after", "fails after")
    await office.use(3)
    await office.deliver(4)
    identifiers = [
        asked.form["identifier"] for asked in office.fake.asked if "identifier" in asked.form
    ]
    assert identifiers == [f"{office.caller.account.id}-{SLOT}"] * 4
    keys = [asked.headers["idempotency-key"] for asked in office.fake.asked]
    assert len(set(keys)) == len(keys), "a fixed one has Stripe repeat its 500"
    assert office.fake.counted == 3


async def test_what_is_in_doubt_for_a_day_is_held_for_a_person(office: Office, caplog):
    office.fake.next("meter_events", "hangs after")
    await office.use(3)
    await office.deliver()
    office.clock.pass_(days=1)
    await office.deliver(3)
    assert office.fake.times_asked("meter_events") == 1
    message = await office.message()
    assert message.due_at is message.sent_at is None
    assert message.error
    assert message.error.startswith("held, in doubt since 2025-03-14T12:30:12+00:00")
    (line,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    for said in (f"{message.account_id}-{SLOT}", "3 verifications", "2025-03-14T12:00:00+00:00"):
        assert said in line.getMessage()


async def test_what_was_surely_not_taken_is_sent_for_weeks(office: Office):
    await office.use(3)
    for mood in ("knows no key", "is busy", "refuses", "forbids"):
        office.fake.next("meter_events", mood)
        await office.deliver()
        office.clock.pass_(days=8)
    url, office.stripe._client._requestor._options.base_addresses["api"] = (
        office.fake.url, "http://127.0.0.1:9",
    )  # fmt: skip
    await office.deliver()
    office.stripe._client._requestor._options.base_addresses["api"] = url
    await office.deliver()
    assert office.fake.counted == 3


async def test_what_stripe_would_not_take_any_more_is_held(office: Office, caplog):
    await office.use(3)
    office.clock.pass_(days=34)
    await office.deliver()
    assert office.fake.asked == []
    assert "too old" in ((await office.message()).error or "")
    assert "too old" in caplog.text


@pytest.mark.parametrize("hook", ["on_ask", "on_done"])
async def test_a_process_that_dies_in_the_middle_has_sent_it_or_not(office: Office, hook):
    """Its claim ends with the lease; the next one sends it under the same name."""
    await office.use(3)
    office.fake.next("meter_events", "hangs" if hook == "on_ask" else "hangs after")
    office.clock.pass_(12)
    with trio.CancelScope() as life:

        def die(asked: Any) -> None:
            if asked.path.endswith("meter_events"):
                life.cancel()

        setattr(office.fake, hook, die)
        await office.outbox_worker.deliver()
    assert life.cancelled_caught
    assert (await office.message()).sent_at is None
    assert office.fake.counted == (3 if hook == "on_done" else 0)
    await office.outbox_worker.deliver()
    assert office.fake.times_asked("meter_events") == 1, "its claim is still in force"
    await office.deliver()
    assert office.fake.counted == 3
    assert (await office.message()).sent_at


async def test_a_claim_without_an_end_a_day_ago_is_held(office: Office):
    await office.use(3)
    office.clock.pass_(12)
    await office.store.claim_messages("meter", limit=10, lease_s=60)
    office.clock.pass_(days=1)
    await office.deliver()
    assert office.fake.times_asked("meter_events") == 0
    assert "in doubt" in ((await office.message()).error or "")


async def test_who_asks_for_patience_gets_it(office: Office):
    office.fake.next("meter_events", "is busy")
    await office.use(3)
    office.clock.pass_(12)
    done = await office.outbox_worker.deliver()
    assert done.in_the_way
    assert done.in_the_way.retry_after_s == 7
    due_at = (await office.message()).due_at
    assert due_at
    assert due_at >= office.clock() + timedelta(seconds=7)
    office.clock.pass_(6.9)
    await office.outbox_worker.deliver()
    assert office.fake.times_asked("meter_events") == 1
    office.clock.pass_(0.2)
    await office.outbox_worker.deliver()
    assert office.fake.counted == 3


async def test_one_customer_is_told_of_once_at_a_time_and_several_at_once(office: Office):
    other = await make_caller(office.store, "scale", "other")
    callers = (office.caller, other)
    for caller in callers:
        for _ in range(5):
            await office.use(1, caller)
            office.clock.pass_(10)
    office.fake.next("meter_events", *["late"] * 10)
    at_idempotency = 0

    def look(asked: Any) -> None:
        nonlocal at_idempotency
        at_idempotency = max(at_idempotency, sum(office.fake.busy.values()) + 1)

    office.fake.on_ask = look
    await office.deliver()
    assert office.fake.counted == office.fake.times_asked("meter_events") == 10
    assert at_idempotency == 2


async def test_a_round_ends_where_stripe_refuses_everything(office: Office):
    for _ in range(20):
        await office.use(1)
        office.clock.pass_(10)
    office.fake.next("meter_events", "knows no key")
    await office.deliver()
    assert office.fake.times_asked("meter_events") == 1
    await office.deliver()
    assert office.fake.counted == 20


async def test_one_message_that_is_refused_keeps_no_other_waiting(office: Office, caplog):
    for _ in range(3):
        await office.use(1)
        office.clock.pass_(10)
    office.fake.next("meter_events", "refuses")
    await office.deliver()
    assert office.fake.counted == 2
    assert "1 of 3 meter events were not taken: Stripe answered 400: not in the mood" in caplog.text


async def test_a_store_that_is_away_after_the_sending_counts_nothing_twice(office: Office, caplog):
    await office.use(3)
    office.store.away = {"message_attempted"}
    await office.deliver()
    assert office.fake.counted == 3
    office.store.away = False
    await office.deliver()
    assert office.fake.counted == 3
    assert (await office.message()).sent_at
    assert "the store cannot be asked" in caplog.text


# -- customers ----------------------------------------------------------------------------------


async def test_an_account_gets_one_customer_whoever_needs_it_first(office: Office):
    await office.use(3)
    office.clock.pass_(12)
    office.fake.next("customers", "late")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(office.outbox_worker.deliver)
        for _ in range(3):
            nursery.start_soon(office.payments.portal_url, office.caller.account, None)
    (customer,) = office.fake.customers.values()
    assert customer["email"] == "ann@shop.test"
    assert customer["metadata"] == {"account_id": office.caller.account.id}
    account = await office.store.account(office.caller.account.id)
    assert account.customer_id == customer["id"]
    assert office.fake.times_asked("customers") == 1


async def test_a_customer_made_and_forgotten_is_found_again(office: Office):
    """The process died between Stripe's answer and the store."""
    office.store.away = {"change_account"}
    await office.use(3)
    await office.deliver()
    assert len(office.fake.customers) == 1
    office.store.away = False
    await office.deliver(2)
    assert len(office.fake.customers) == 1
    assert office.fake.events[0]["customer"] == "cus_1"
    keys = {a.headers["idempotency-key"] for a in office.fake.asked if a.path == "/v1/customers"}
    assert keys == {f"customer-{office.caller.account.id}"}


async def test_after_a_deleted_customer_comes_another(office: Office):
    """The second creation had the first one's idempotency key: Stripe gave the deleted one again."""
    account = office.caller.account
    for generation in range(3):
        account = await office.store.change_account(account.id, tier="builder")
        await office.payments.portal_url(account, None)
        account = await office.store.account(account.id)
        assert account.customer_id == f"cus_{generation + 1}"
        await tell(office, "customer.deleted", object="customer", id=account.customer_id)
        del office.fake.customers[account.customer_id]
        office.fake.customers |= {f"gone {generation}": {}}  # its names are numbered
        account = await office.store.account(account.id)
        assert (account.customer_id, account.customer_generation) == (None, generation + 1)
    keys = [a.headers["idempotency-key"] for a in office.fake.asked if a.path == "/v1/customers"]
    assert keys == [f"customer-{account.id}{ending}" for ending in ("", "-1", "-2")]


async def test_a_customer_that_stripe_does_not_have_was_deleted(office: Office):
    """Its event never came, or not yet."""
    account = office.caller.account
    await office.payments.portal_url(account, None)
    office.fake.customers = {"gone": {}}
    account = await office.store.account(account.id)
    assert await office.payments.portal_url(account, None) == PORTAL
    account = await office.store.account(account.id)
    assert (account.customer_id, account.customer_generation) == ("cus_2", 1)
    office.fake.customers = {"gone": {}, "gone too": {}}
    await office.use(3)
    await office.deliver(3)
    assert office.fake.counted == 3
    assert office.fake.events[-1]["customer"] == "cus_3"
    assert (await office.store.account(account.id)).tier == account.tier


@pytest.mark.parametrize("mood", sorted(MOODS.keys() - {"fails after"}))
async def test_no_customer_no_event_and_no_doubt(office: Office, mood):
    office.fake.next("customers", mood)
    await office.use(3)
    office.clock.pass_(12)
    await office.outbox_worker.deliver()
    message = await office.message()
    assert message.sent_at or uncertain_since(message) is None
    await office.deliver(2)
    assert office.fake.counted == 3
    assert len(office.fake.customers) == 1


# -- the portal ---------------------------------------------------------------------------------


async def test_the_portal_leads_back_to_where_the_caller_says_or_to_the_dashboard(office: Office):
    account = office.caller.account
    assert await office.payments.portal_url(account, "https://shop.test/x") == PORTAL
    account = await office.store.account(account.id)
    assert await office.payments.portal_url(account, None) == PORTAL
    forms = [asked.form for asked in office.fake.asked if asked.path.endswith("sessions")]
    assert forms == [
        {"customer": "cus_1", "return_url": "https://shop.test/x"},
        {"customer": "cus_1", "return_url": DASHBOARD},
    ]


async def test_a_free_account_has_no_portal_unless_it_once_paid():
    async with open_office("free") as office:
        account = office.caller.account
        assert await office.payments.portal_url(account, None) is None
        assert office.fake.asked == []
        customer_id = await office.stripe.make_customer(account)
        await office.store.change_account(account.id, customer_id=customer_id)
        account = await office.store.account(account.id)
        assert await office.payments.portal_url(account, None) == PORTAL


@pytest.mark.parametrize("word", ["customers", "sessions"])
@pytest.mark.parametrize("mood", sorted(MOODS.keys() - {"fine", "late", "is busy"}))
async def test_a_portal_that_stripe_does_not_open_is_unavailable(office: Office, word, mood):
    office.fake.next(word, *[mood] * 3)
    with pytest.raises(ProviderUnavailable):
        await office.payments.portal_url(office.caller.account, None)


async def test_a_portal_is_asked_for_again_before_it_is_given_up(office: Office):
    office.fake.next("sessions", "drops")
    assert await office.payments.portal_url(office.caller.account, None) == PORTAL


# -- events -------------------------------------------------------------------------------------


async def tell(office: Office, kind: str = "customer.subscription.updated", **about: Any) -> Any:
    """Have Stripe tell of it; the account as it is then."""
    about = {"object": "subscription", "customer": "cus_1"} | about
    octets, header = signed(kind, about, office.clock())
    await office.payments.receive_event(octets, header)
    return await office.store.account(office.caller.account.id)


async def become(office: Office, customer_id: str = "cus_1") -> None:
    await office.store.change_account(office.caller.account.id, customer_id=customer_id)


async def test_an_event_is_a_hint_and_what_is_fetched_is_true():
    async with open_office("free") as office:
        await become(office)
        office.fake.put(subscription("cus_1", "scale"))
        account = await tell(office, status="canceled", items="lies")
        assert (account.tier, account.subscription_status) == ("scale", "active")
        office.fake.put(subscription("cus_1", "scale", status="past_due"))
        account = await tell(office, "invoice.payment_failed", object="invoice")
        assert (account.tier, account.subscription_status) == ("scale", "past_due")
        office.fake.put(subscription("cus_1", "scale", status="canceled", canceled_at=SLOT))
        account = await tell(office, "customer.subscription.deleted")
        assert (account.tier, account.subscription_status) == ("free", "canceled")
        assert account.canceled_at == NOON
        assert account.current_period_end is None
        asked = office.fake.times_asked("subscriptions")
        same = await tell(
            office, "customer.subscription.created", status="active"
        )  # late and twice
        assert same == account
        assert office.fake.times_asked("subscriptions") == asked + 1


@pytest.mark.parametrize(
    "kind", ["customer.created", "charge.succeeded", "payment_intent.created", "product.updated"]
)
async def test_other_events_are_taken_and_change_nothing(office: Office, kind):
    account = await tell(office, kind)
    assert account == office.caller.account
    assert office.fake.asked == []


async def test_an_account_forgets_a_customer_that_was_deleted(office: Office):
    """Stripe may not tell any more what it had bought."""
    await become(office)
    office.fake.put(subscription("cus_1", "scale"))
    assert (await tell(office)).tier == "scale"
    asked = len(office.fake.asked)
    for _ in range(2):
        account = await tell(office, "customer.deleted", object="customer", id="cus_1")
        assert (account.tier, account.subscription_status, account.customer_id) == (
            "free", None, None,
        )  # fmt: skip
    assert len(office.fake.asked) == asked


async def test_a_checkout_makes_the_customer_the_accounts():
    async with open_office("free") as office:
        office.fake.put(subscription("cus_7"))
        account_id = office.caller.account.id
        kind = "checkout.session.completed"
        account = await tell(
            office,
            kind,
            object="checkout.session",
            customer="cus_7",
            client_reference_id=account_id,
        )
        assert (account.tier, account.customer_id) == ("builder", "cus_7")


async def test_a_subscription_may_name_the_account():
    async with open_office("free") as office:
        metadata = {"account_id": office.caller.account.id}
        office.fake.put(subscription("cus_7", metadata=metadata))
        account = await tell(office, "invoice.paid", object="invoice", customer="cus_7")
        assert (account.tier, account.customer_id) == ("builder", "cus_7")


async def test_a_customer_nobody_knows_is_told_of_and_let_be(office: Office, caplog):
    office.fake.put(subscription("cus_9", "scale"))
    assert await tell(office, customer="cus_9") == office.caller.account
    assert (
        await tell(office, customer="cus_9", metadata={"account_id": "x"}) == office.caller.account
    )
    assert "customer cus_9 is no account of ours" in caplog.text


async def test_an_account_moves_to_a_customer_that_pays_from_one_that_does_not(
    office: Office, caplog
):
    await become(office, "cus_1")
    named = {"customer": "cus_2", "metadata": {"account_id": office.caller.account.id}}
    office.fake.put(subscription("cus_2", "scale", id="sub_2", status="canceled"))
    assert (await tell(office, **named)).customer_id == "cus_1"
    office.fake.put(subscription("cus_1", "builder"), subscription("cus_2", "scale", id="sub_2"))
    assert (await tell(office, **named)).customer_id == "cus_1"
    assert "end one of the subscriptions" in caplog.text
    office.fake.put(subscription("cus_1", "builder", status="canceled"))
    account = await tell(office, **named)
    assert (account.customer_id, account.tier) == ("cus_2", "scale")


async def test_a_tier_may_stand_on_the_product():
    async with open_office("free") as office:
        await become(office)
        office.fake.put(subscription("cus_1", None))
        office.fake.products["prod_1"] = {"id": "prod_1", "metadata": {"tier": "scale"}}
        assert (await tell(office)).tier == "scale"


async def test_a_price_that_names_no_tier_takes_none_away(office: Office, caplog):
    await become(office)
    office.fake.put(subscription("cus_1", "hosting"))
    assert (await tell(office)).tier == "builder"
    assert "names no tier" in caplog.text


@pytest.mark.parametrize(
    "mood", sorted(MOODS.keys() - {"fine", "late", "is busy"} - {"fails after"})
)
async def test_what_cannot_be_fetched_is_to_be_told_again(office: Office, mood):
    await become(office)
    office.fake.next("subscriptions", *[mood] * 3)
    with pytest.raises(ProviderUnavailable):
        await tell(office)
    office.fake.moods.clear()
    office.fake.put(subscription("cus_1", "scale"))
    assert (await tell(office)).tier == "scale"


async def test_events_of_one_customer_are_followed_one_after_the_other(office: Office):
    await become(office)
    office.fake.put(subscription("cus_1", "scale"))
    fetch, under_way, most = office.stripe.subscriptions, 0, 0

    async def fetch_and_count(customer_id: str) -> Any:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        reported = await fetch(customer_id)
        under_way -= 1
        return reported

    office.stripe.subscriptions = fetch_and_count  # type: ignore[method-assign]
    async with trio.open_nursery() as nursery:
        for _ in range(4):
            nursery.start_soon(tell, office)
    assert most == 1
    assert office.fake.times_asked("subscriptions") == 5, (
        "who wrote looks again, who did not has done"
    )
    assert office.payments._locks._locks == {}


async def test_of_two_processes_the_one_with_older_news_does_not_win(office: Office):
    """The first is told that it is active, and is slow; meanwhile it ended, as the second learns."""
    await become(office)
    other = Stripe(KEY, office.fake.url)
    slow = StripePayments(
        office.store, other, StripeCustomers(office.store, other),
        webhook_secret=SECRET, dashboard_url=DASHBOARD, now=office.clock,
    )  # fmt: skip
    fetch, fetched, go_on = other.subscriptions, trio.Event(), trio.Event()

    async def fetch_slowly(customer_id: str) -> Any:
        reported = await fetch(customer_id)
        fetched.set()
        await go_on.wait()
        return reported

    other.subscriptions = fetch_slowly  # type: ignore[method-assign]
    office.fake.put(subscription("cus_1", "scale"))
    octets, header = signed("customer.subscription.updated", {"customer": "cus_1"}, NOON)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(slow.receive_event, octets, header)
        await fetched.wait()
        office.fake.put(subscription("cus_1", "scale", status="canceled"))
        assert (await tell(office)).tier == "free"
        go_on.set()
    assert (await office.store.account(office.caller.account.id)).tier == "free"
    await other.close()


async def test_turns_are_kept_by_name_and_forgotten():
    turns, order = AccountLocks(), []

    async def take(name: str) -> None:
        async with turns.of(name):
            order.append(f"{name}+")
            await trio.testing.wait_all_tasks_blocked()
            order.append(f"{name}-")

    async with trio.open_nursery() as nursery:
        for name in "aab":
            nursery.start_soon(take, name)
    assert order.index("b-") > order.index("b+")
    assert "".join(word for word in order if word[0] == "a") == "a+a-a+a-"
    assert turns._locks == {}


# -- without Stripe -----------------------------------------------------------------------------


async def test_without_a_key_nothing_is_loaded_and_nothing_is_billed():
    clock = Clock()
    store: Any = MemoryStore(clock)
    caller = await make_caller(store)
    async with open_payments(
        store, key=None, webhook_secret=None, api_base=None, dashboard_url=DASHBOARD, now=clock,
        rng=random.Random(0),
    ) as payments:  # fmt: skip
        assert await payments.portal_url(caller.account, None) is None
        with pytest.raises(NoSuchRoute):
            await payments.receive_event(OCTETS, HEADER)


async def test_a_verification_that_is_not_metered_posts_nothing(autojump_clock, shop: Shop):
    await shop.verify()
    assert (await shop.rows())[0].billable
    assert await shop.store.messages("meter", limit=10) == []
    got = await shop.ask("POST", "/v1/billing/stripe", octets=OCTETS, key=None)
    assert got.status == 404
    assert (await shop.manage("POST", "/billing/portal")).status == 402


# -- the service --------------------------------------------------------------------------------


@asynccontextmanager
async def open_billed(tier: Any = "free", secret: str | None = SECRET) -> AsyncIterator[Any]:
    """A service that bills through the fake; the sender is at work."""
    async with open_shop(tier, metered=True) as shop, open_fake_stripe(now=shop.clock) as fake:
        stripe = Stripe(KEY, fake.url, QUICK)
        async with open_stripe_payments(
            shop.store, stripe, webhook_secret=secret, dashboard_url=DASHBOARD, now=shop.clock,
            rng=random.Random(0), pace=QUICK,
        ) as payments:  # fmt: skip
            shop.app = create_app(replace(shop.service, payments=payments))
            yield shop, fake


async def tell_shop(shop: Shop, kind: str, about: dict[str, Any]) -> Any:
    octets, header = signed(kind, about, shop.clock())
    headers = {"stripe-signature": header}
    return await shop.ask("POST", "/v1/billing/stripe", octets=octets, key=None, headers=headers)


async def test_after_an_event_the_account_says_so_and_the_next_request_is_weighed_by_it():
    async with open_billed("free") as (shop, fake):
        assert (await shop.verify()).headers["ratelimit-policy"].startswith('"minute";q=10;')
        await shop.change(customer_id="cus_1")
        start, end = datetime(2026, 3, 1, tzinfo=UTC), datetime(2026, 4, 1, tzinfo=UTC)
        fake.put(
            subscription(
                "cus_1", "scale", status="trialing", start=int(start.timestamp()),
                end=int(end.timestamp()), trial_start=int(start.timestamp()),
                trial_end=int(end.timestamp()), cancel_at=int(end.timestamp()),
                canceled_at=int(start.timestamp()), cancel_at_period_end=True,
            )
        )  # fmt: skip
        reported = await tell_shop(shop, "customer.subscription.updated", {"customer": "cus_1"})
        assert (reported.status, reported.octets) == (204, b"")
        assert (await shop.verify()).headers["ratelimit-policy"].startswith('"minute";q=1000;')
        got = (await shop.manage("GET", "/account")).body
        assert got["tier"] == "scale"
        assert got["subscription_status"] == "trialing"
        assert got["cancel_at_period_end"] is True
        for name in ("current_period_end", "trial_end", "cancel_at"):
            assert got[name] == "2026-04-01T00:00:00Z"
        for name in ("canceled_at", "trial_start", "billing_cycle_anchor"):
            assert got[name] == "2026-03-01T00:00:00Z"
        assert got["limits"]["max_keys"] == 50
        summary = (await shop.manage("GET", "/usage/summary")).body
        assert (summary["tier"], summary["calls_included"]) == ("scale", 100_000)


async def test_a_subscription_that_ends_is_free_at_the_next_request():
    async with open_billed("scale") as (shop, fake):
        await shop.change(customer_id="cus_1")
        fake.put(subscription("cus_1", "scale", status="canceled"))
        await tell_shop(shop, "customer.subscription.deleted", {"customer": "cus_1"})
        assert (await shop.verify()).headers["ratelimit-policy"].startswith('"minute";q=10;')
        summary = (await shop.manage("GET", "/usage/summary")).body
        assert (summary["tier"], summary["estimated_cost_eur"]) == ("free", 0.0)


async def test_an_event_that_is_not_signed_is_a_bad_request():
    async with open_billed() as (shop, fake):
        for header in (None, "t=1,v1=0", HEADER):
            got = await shop.ask(
                "POST", "/v1/billing/stripe", octets=OCTETS, key=None,
                headers={"stripe-signature": header},
            )  # fmt: skip
            assert (got.status, got.error) == (400, "invalid_request")
        assert fake.asked == []


async def test_without_a_signing_secret_no_event_is_expected():
    async with open_billed(secret=None) as (shop, _):
        got = await tell_shop(shop, "customer.subscription.updated", {"customer": "cus_1"})
        assert (got.status, got.error) == (404, "not_found")


async def test_an_event_that_could_not_be_followed_is_told_again():
    async with open_billed() as (shop, fake):
        await shop.change(customer_id="cus_1")
        fake.next("subscriptions", "fails", "fails", "fails")
        got = await tell_shop(shop, "customer.subscription.updated", {"customer": "cus_1"})
        assert (got.status, got.error) == (503, "billing_unavailable")
        shop.store.away = {"change_account"}
        fake.put(subscription("cus_1"))
        got = await tell_shop(shop, "customer.subscription.updated", {"customer": "cus_1"})
        assert got.status == 503
        shop.store.away = False
        got = await tell_shop(shop, "customer.subscription.updated", {"customer": "cus_1"})
        assert got.status == 204


async def test_the_portal_is_opened_through_the_service():
    async with open_billed("builder") as (shop, fake):
        got = await shop.manage("POST", "/billing/portal", {"return_url": "https://shop.test/x"})
        assert (got.status, got.body) == (200, {"url": PORTAL})
        fake.next("sessions", "knows no key", "knows no key", "knows no key")
        got = await shop.manage("POST", "/billing/portal")
        assert (got.status, got.error) == (503, "billing_unavailable")
    async with open_billed("free") as (shop, _):
        got = await shop.manage("POST", "/billing/portal")
        assert (got.status, got.error) == (402, "no_billing_account")


async def test_what_a_request_verified_reaches_the_meter():
    async with open_billed("builder") as (shop, fake):
        counted = trio.Event()
        fake.on_done = lambda asked: counted.set() if fake.events else None
        await shop.batch("ann@friendly.test", "bob@friendly.test", "bad")
        shop.clock.set(shop.clock() + timedelta(seconds=12))
        with trio.fail_after(5):
            await counted.wait()
        assert fake.counted == 2


# -- the rounds, in virtual time ----------------------------------------------------------------


class Border:
    """Stripe without its sockets: does what it is told."""

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
async def open_rounds() -> AsyncIterator[tuple[Any, Border, Office]]:
    clock: Any = service_fixture.Clock()
    store: Any = Unsteady(MemoryStore(clock))
    border: Any = Border()
    caller = await make_caller(store)
    async with open_stripe_payments(
        store, border, webhook_secret=None, dashboard_url=DASHBOARD, now=clock,
        rng=random.Random(0),
    ) as payments:  # fmt: skip
        nobody: Any = None
        yield store, border, Office(store, nobody, clock, border, nobody, payments, caller)


async def test_a_count_leaves_within_thirty_seconds(autojump_clock):
    async with open_rounds() as (_, border, office):
        for _ in range(40):
            before = sum(count for _, count in border.counted)
            began = trio.current_time()
            await office.use(3)
            await trio.sleep(29)
            assert sum(count for _, count in border.counted) == before + 3
            assert border.counted[-1][0] <= began + 29


async def test_where_stripe_is_away_it_rests_longer_and_longer_up_to_a_minute(autojump_clock):
    async with open_rounds() as (_, border, office):
        border.failures = [StripeFailed(LOST) for _ in range(20)]
        for _ in range(200):
            await office.use(1)
            await trio.sleep(10)
        tries = border.tries[:21]
        waits = [after - before for before, after in pairwise(tries)]
        assert sum(waits[:3]) < 30
        assert 30 < max(waits) <= 60 + 2
        await trio.sleep(30)
        assert len(border.counted) == 200
        assert len(border.tries) == 220


async def test_what_asks_for_an_hour_gets_it(autojump_clock):
    async with open_rounds() as (_, border, office):
        border.failures = [StripeFailed(replace(REFUSED, retry_after_s=3600))]
        await office.use(1)
        await trio.sleep(3600)
        assert border.counted == []
        await trio.sleep(60)
        assert len(border.counted) == 1


async def test_a_store_that_is_away_is_asked_again(autojump_clock, caplog):
    async with open_rounds() as (store, border, office):
        await office.use(1)
        store.away = True
        await trio.sleep(60)
        assert "the store cannot be asked" in caplog.text
        store.away = False
        await trio.sleep(5)
        assert len(border.counted) == 1


async def test_a_bug_in_the_sending_is_logged_and_the_message_is_sent_again(autojump_clock, faults):
    async with open_rounds() as (_, border, office):
        border.failures = [ZeroDivisionError()]
        await office.use(1)
        await trio.sleep(600)
        assert len(border.counted) == 1
    assert ["ZeroDivisionError" in each for each in faults] == [True]


async def test_a_bug_in_the_looking_is_logged_and_messages_are_looked_for_again(
    autojump_clock, faults, monkeypatch
):
    async with open_rounds() as (_, border, office):
        with monkeypatch.context() as patched:
            patched.setattr("mailprobe.api.billing.provider.OutboxWorker.deliver", throw)
            await office.use(1)
            await trio.sleep(60)
        assert faults
        await trio.sleep(600)
        assert len(border.counted) == 1


async def throw(*arguments: Any) -> Any:
    raise ZeroDivisionError


# -- secrets ------------------------------------------------------------------------------------


async def test_no_key_no_secret_and_no_portal_is_in_logs_and_tracebacks(caplog):
    caplog.set_level(logging.DEBUG)
    for name in ("httpx", "httpcore"):  # as serve has it
        logging.getLogger(name).setLevel(logging.WARNING)
    shown: list[str] = []
    async with open_office() as office:
        for mood in MOODS:
            office.fake.next("customers", *[mood] * 3)
            office.fake.next("sessions", *[mood] * 3)
            try:
                await office.payments.portal_url(office.caller.account, None)
            except ProviderUnavailable as error:
                shown += traceback.format_exception(error)
            await office.store.change_account(office.caller.account.id, customer_id=None)
            office.fake.moods.clear()
        office.fake.key = "sk_test_another"
        await office.use(1)
        await office.deliver()
        shown += [repr(one) for one in (office.payments, office.stripe, office.outbox_worker)]
        shown += [(await office.message()).error or ""]
    text = caplog.text + "".join(shown)
    assert "not opened" in text
    for secret in (KEY, SECRET, PORTAL, "NeverShow", KEY[-4:]):
        assert secret not in text


async def test_a_traceback_shows_no_key_even_with_all_that_its_frames_hold(monkeypatch):
    """A terminal's log shows the variables of every frame."""

    async def break_down(self: Any, *arguments: Any) -> None:
        raise ZeroDivisionError("in the middle of the SDK")

    monkeypatch.setattr(StripeTransport, "request_async", break_down)
    clock = Clock()
    store: Any = MemoryStore(clock)
    caller = await make_caller(store)
    with pytest.RaisesGroup(ZeroDivisionError) as raised:
        async with open_payments(
            store, key=KEY, webhook_secret=SECRET, api_base="http://127.0.0.1:9",
            dashboard_url=DASHBOARD, now=clock, rng=random.Random(0),
        ) as payments:  # fmt: skip
            await payments.portal_url(caller.account, None)
    reported = traceback.TracebackException.from_exception(raised.value, capture_locals=True)
    text = "".join(reported.format())
    assert "in the middle of the SDK" in text
    assert "NeverShow" not in text


# -- the fake -----------------------------------------------------------------------------------


async def test_the_fake_runs_as_a_program_too():
    command = [sys.executable, "-m", "tests.api.billing.fake_stripe"]
    process = await trio.lowlevel.open_process(command, stdout=subprocess.PIPE, cwd=ROOT)
    assert process.stdout
    url = (await process.stdout.receive_some()).decode().strip()
    stripe = Stripe(KEY, url)
    customer_id = await stripe.make_customer((await make_caller(MemoryStore(Clock()))).account)
    reported = {
        "subscriptions": [subscription(customer_id, "scale")],
        "moods": {"sessions": ["fails"]},
    }
    async with httpx.AsyncClient() as http:
        state = (await http.post(f"{url}/fake", json=reported)).json()
    assert state["customers"].keys() == {customer_id}
    assert [one.tier for one in await stripe.subscriptions(customer_id)] == ["scale"]
    with pytest.raises(StripeFailed):
        await stripe.portal(customer_id, DASHBOARD)
    await stripe.close()
    process.kill()
    await process.wait()


# -- the operator's page ------------------------------------------------------------------------


def rows_of(header: str) -> list[tuple[str, str]]:
    """The first two cells of each row of the table that begins so."""
    _, _, table = (ROOT / "docs/billing.md").read_text("utf-8").partition(f"{header}\n")
    rows = [line.strip("|").split(" | ") for line in table.partition("\n\n")[0].splitlines()[1:]]
    return [(row[0].strip(" `"), row[1].strip(" `|")) for row in rows]


def test_the_page_has_the_codes_table_of_statuses():
    reported = {status: tier == "kept" for status, tier in rows_of("| status | tier |")}
    assert reported == KEEPS_TIER


def test_the_page_names_events_that_are_followed_and_the_meter():
    events = [event for event, _ in rows_of("| event | why |")]
    assert len(events) == 10
    for event in events:
        assert event.startswith(FOLLOWED), event
    assert set(dict(rows_of("| field | value |")).items()) >= {("Event name", METER_EVENT)}


@pytest.mark.parametrize("words", [words for words, _ in rows_of("| in the log | means |")])
def test_the_page_has_words_that_are_logged(words):
    code = "".join((ROOT / f"api/billing/{name}.py").read_text() for name in ("client", "provider"))
    for part in re.split("` … `|: ", words):
        assert re.sub(r" [0-9]+$", " ", part) in code or part == "No active meter found", part


# -- killed, again and again --------------------------------------------------------------------


async def test_killed_at_any_moment_the_meter_counts_each_verification_once(tmp_path: Path):
    """The sum at Stripe is the sum in the database, whatever was under way at each of the kills."""
    rng = random.Random(11)
    path, began = tmp_path / "mailprobe.db", time.time()
    now = fast_clock(began)
    async with open_store(path, secret_key=STORE_SECRET, now=now) as store:
        callers = [
            await make_caller(store, tier, name) for tier, name in zip(TIERS, NAMES, strict=True)
        ]
    async with open_fake_stripe(now=now, trouble=0.3, rng=rng) as fake:
        for kill in range(KILLS):
            command = [
                "tests.api.billing.billing_child",
                str(path),
                fake.url,
                str(began),
                str(kill),
            ]
            await live_and_die([sys.executable, "-m", *command], fake, rng)
        fake.trouble = 0.0
        clock = Later(now)  # all leases and pauses are over
        async with open_store(path, secret_key=STORE_SECRET, now=clock) as store:
            await deliver_all(store, fake, clock)
            used = [(await store.ledger(caller)).month_billable for caller in callers]
            messages = await store.messages("meter", limit=1000)
            customers = [await store.account(caller.account.id) for caller in callers]
    billed = Counter[str]()
    for event in fake.events:
        billed[event["customer"]] += event["value"]
    assert all(message.sent_at for message in messages)
    assert [account.customer_id is None for account in customers if account] == [False, False, True]
    assert [billed[account.customer_id or ""] for account in customers if account] == [*used[:2], 0]
    assert min(used) > 0
    identifiers = [event["identifier"] for event in fake.events]
    assert len(identifiers) == len(set(identifiers)) == len(messages)
    sent = Counter(asked.form["identifier"] for asked in fake.asked if "identifier" in asked.form)
    assert max(sent.values()) > 1, "nothing was ever sent twice: this proved nothing"


async def live_and_die(command: list[str], fake: FakeStripe, rng: random.Random) -> None:
    """Run it, and kill it after so many settlements, or while it waits for so manieth answer."""
    settlements, events = rng.randint(1, 150), rng.randint(1, 6)
    process = await trio.lowlevel.open_process(command, stdout=subprocess.PIPE, cwd=ROOT)

    def look(asked: Any) -> None:
        nonlocal events
        events -= asked.path.endswith("meter_events")
        if not events:
            process.kill()

    fake.on_done = look
    assert process.stdout
    async for octets in process.stdout:
        settlements -= octets.count(b"\n")
        if settlements <= 0:
            process.kill()
    assert await process.wait() == -signal.SIGKILL
    fake.on_done = lambda asked: None


class Later:
    """A clock that is ahead, and can be put further ahead."""

    def __init__(self, now: Any) -> None:
        self._now = now
        self.ahead = timedelta(hours=2)

    def __call__(self) -> datetime:
        later: datetime = self._now() + self.ahead
        return later


async def deliver_all(store: Any, fake: FakeStripe, clock: Later) -> None:
    """What the fake refuses while it still answers one who was killed is due again later."""
    stripe = Stripe(KEY, fake.url)
    outbox_worker = OutboxWorker(
        store, stripe, StripeCustomers(store, stripe), now=clock, rng=random.Random(0)
    )
    for _ in range(20):
        while (await outbox_worker.deliver()).claimed:
            pass
        if all(message.sent_at for message in await store.messages("meter", limit=1000)):
            break
        clock.ahead += timedelta(minutes=30)
    await stripe.close()
