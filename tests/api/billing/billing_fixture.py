"""Shared set-up of the billing tests: a store, a fake Stripe, and the billing modules."""

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from mailprobe.api.billing.client import Stripe, StripePace
from mailprobe.api.billing.provider import (
    MeterSender,
    StripeCustomers,
    StripePayments,
    open_stripe_payments,
)
from mailprobe.api.billing.rules import (
    OUTAGE_PAUSE_MAX_S,
    Failure,
)
from mailprobe.api.outbox.worker import Batch, Worker
from mailprobe.api.quota.plans import is_reported
from mailprobe.storage.records import Caller, OutboxMessage, Reservation
from mailprobe.storage.sqlite.memory import MemoryStore
from tests.api.billing.fake_stripe import (
    KEY,
    SECRET,
    FakeStripe,
    open_fake_stripe,
    signed,
)
from tests.api.service_fixture import LazyApp, Unsteady, open_shop
from tests.storage.fixed_clock import NOON, Clock, granted, make_caller, row

ROOT = Path(__file__).parents[3]
DASHBOARD = "https://dash.test"
SLOT = int(NOON.timestamp())
QUICK = StripePace(
    timeout_s=0.3, answer_s=2, repeats_s=(0.01, 0.02), poll_s=0.01, backoff_max_s=0.02
)

LOST = Failure("lost", certain=False)
REFUSED = Failure("refused", certain=True)


@dataclass
class BillingSetup:
    """A store, a fake Stripe and the billing modules; the clock moves only when a test sets it."""

    store: Any
    fake: FakeStripe
    clock: Clock
    stripe: Stripe
    sender: MeterSender
    payments: StripePayments
    caller: Caller

    @property
    def outbox_worker(self) -> Worker[OutboxMessage]:
        """A worker that rests for nothing yet, as in a process that has just begun."""
        return self.sender.worker()

    async def use(self, count: int, caller: Caller | None = None) -> None:
        """Settle this many billable verifications, and one that is not billable."""
        caller = caller or self.caller
        reservation = await self.store.reserve(caller, count + 1, granted, lease_s=60)
        assert isinstance(reservation, Reservation)
        rows = [row(self.clock())] * count + [row(self.clock(), billable=False)]
        emit = is_reported(caller.account.tier)
        await self.store.settle(reservation, rows, emit_meter_event=emit)

    async def deliver(self, rounds: int = 1) -> None:
        """Rounds so far apart that whatever is to be sent is due."""
        for _ in range(rounds):
            self.clock.advance(12 + 2 * OUTAGE_PAUSE_MAX_S)
            await deliver_batch(self.outbox_worker)

    async def messages(self) -> list[OutboxMessage]:
        messages: list[OutboxMessage] = await self.store.messages("meter", limit=1000)
        return messages

    async def message(self) -> OutboxMessage:
        (message,) = await self.messages()
        return message


async def deliver_batch(worker: Worker[OutboxMessage]) -> Batch[OutboxMessage]:
    """Claim and deliver one batch."""
    batch = await worker.claim()
    await worker.work_off(batch)
    return batch


def meter_sender(
    store: Any, stripe: Stripe, customers: StripeCustomers, clock: Clock
) -> MeterSender:
    return MeterSender(store, stripe, customers, now=clock, rng=random.Random(0), pace=QUICK)


@asynccontextmanager
async def open_billing(tier: str = "builder") -> AsyncIterator[BillingSetup]:
    clock = Clock()
    store: Any = Unsteady(MemoryStore(clock))
    caller = await make_caller(store, tier)
    async with open_fake_stripe(now=clock) as fake:
        stripe = Stripe(KEY, fake.url, QUICK)
        customers = StripeCustomers(store, stripe)
        yield BillingSetup(
            store,
            fake,
            clock,
            stripe,
            meter_sender(store, stripe, customers, clock),
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


async def send_event(
    billing: BillingSetup, kind: str = "customer.subscription.updated", **about: Any
) -> Any:
    """Send a webhook event from Stripe; return the account after it."""
    about = {"object": "subscription", "customer": "cus_1"} | about
    octets, header = signed(kind, about, billing.clock())
    await billing.payments.receive_event(octets, header)
    return await billing.store.account(billing.caller.account.id)


async def become(billing: BillingSetup, customer_id: str = "cus_1") -> None:
    await billing.store.change_account(billing.caller.account.id, customer_id=customer_id)


@asynccontextmanager
async def open_billed(tier: Any = "free", secret: str | None = SECRET) -> AsyncIterator[Any]:
    """Open a service that bills through the fake, with its outbox worker running."""
    async with (
        open_shop(tier, reports_usage=True) as shop,
        open_fake_stripe(now=shop.clock) as fake,
    ):
        stripe = Stripe(KEY, fake.url, QUICK)
        async with open_stripe_payments(
            shop.store, stripe, webhook_secret=secret, dashboard_url=DASHBOARD, now=shop.clock,
            rng=random.Random(0), pace=QUICK,
        ) as payments:  # fmt: skip
            shop.app = LazyApp(replace(shop.service, payments=payments))
            yield shop, fake


async def throw(*arguments: Any) -> Any:
    raise ZeroDivisionError
