"""An account's customer at Stripe, its billing portal, and billing without Stripe."""

import random
from typing import Any

import pytest
import trio

from mailprobe.api.billing.billing import open_payments
from mailprobe.api.billing.rules import (
    uncertain_since,
)
from mailprobe.api.refusals import ProviderUnavailable
from mailprobe.storage.sqlite.memory import MemoryStore
from tests.api.billing.billing_fixture import (
    DASHBOARD,
    BillingSetup,
    deliver_batch,
    open_billing,
    send_event,
)
from tests.api.billing.fake_stripe import (
    MODES,
    PORTAL,
    signed,
)
from tests.api.service_fixture import RunningService
from tests.storage.fixed_clock import NOON, Clock

# httpx does not close the body's generator when a request is cancelled
pytestmark = pytest.mark.filterwarnings("ignore:Async generator 'httpx:ResourceWarning")


OCTETS, HEADER = signed("customer.subscription.updated", {"customer": "cus_1"}, NOON)

# -- customers ----------------------------------------------------------------------------------


async def test_an_account_gets_one_customer_whoever_needs_it_first(billing: BillingSetup):
    await billing.use(3)
    billing.clock.advance(12)
    billing.fake.next("customers", "late")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(deliver_batch, billing.outbox_worker)
        for _ in range(3):
            nursery.start_soon(billing.payments.portal_url, billing.caller.account, None)
    (customer,) = billing.fake.customers.values()
    assert customer["email"] == "ann@shop.test"
    assert customer["metadata"] == {"account_id": billing.caller.account.id}
    account = await billing.store.account(billing.caller.account.id)
    assert account.customer_id == customer["id"]
    assert billing.fake.times_asked("customers") == 1


async def test_a_customer_made_and_forgotten_is_found_again(billing: BillingSetup):
    """The process died between Stripe's answer and the store."""
    billing.store.away = {"change_account"}
    await billing.use(3)
    await billing.deliver()
    assert len(billing.fake.customers) == 1
    billing.store.away = False
    await billing.deliver(2)
    assert len(billing.fake.customers) == 1
    assert billing.fake.events[0]["customer"] == "cus_1"
    keys = {a.headers["idempotency-key"] for a in billing.fake.asked if a.path == "/v1/customers"}
    assert keys == {f"customer-{billing.caller.account.id}"}


async def test_after_a_deleted_customer_comes_another(billing: BillingSetup):
    """The second creation once reused the idempotency key, and Stripe returned the deleted one."""
    account = billing.caller.account
    for generation in range(3):
        account = await billing.store.change_account(account.id, tier="builder")
        await billing.payments.portal_url(account, None)
        account = await billing.store.account(account.id)
        assert account.customer_id == f"cus_{generation + 1}"
        await send_event(billing, "customer.deleted", object="customer", id=account.customer_id)
        del billing.fake.customers[account.customer_id]
        billing.fake.customers |= {f"gone {generation}": {}}  # its names are numbered
        account = await billing.store.account(account.id)
        assert (account.customer_id, account.customer_generation) == (None, generation + 1)
    keys = [a.headers["idempotency-key"] for a in billing.fake.asked if a.path == "/v1/customers"]
    assert keys == [f"customer-{account.id}{ending}" for ending in ("", "-1", "-2")]


async def test_a_customer_that_stripe_does_not_have_was_deleted(billing: BillingSetup):
    """The event of the deletion never came, or has not come yet."""
    account = billing.caller.account
    await billing.payments.portal_url(account, None)
    billing.fake.customers = {"gone": {}}
    account = await billing.store.account(account.id)
    assert await billing.payments.portal_url(account, None) == PORTAL
    account = await billing.store.account(account.id)
    assert (account.customer_id, account.customer_generation) == ("cus_2", 1)
    billing.fake.customers = {"gone": {}, "gone too": {}}
    await billing.use(3)
    await billing.deliver(3)
    assert billing.fake.counted == 3
    assert billing.fake.events[-1]["customer"] == "cus_3"
    assert (await billing.store.account(account.id)).tier == account.tier


@pytest.mark.parametrize("mode", sorted(MODES.keys() - {"fails after"}))
async def test_no_customer_no_event_and_no_doubt(billing: BillingSetup, mode):
    billing.fake.next("customers", mode)
    await billing.use(3)
    billing.clock.advance(12)
    await deliver_batch(billing.outbox_worker)
    message = await billing.message()
    assert message.sent_at or uncertain_since(message) is None
    await billing.deliver(2)
    assert billing.fake.counted == 3
    assert len(billing.fake.customers) == 1


# -- the portal ---------------------------------------------------------------------------------


async def test_the_portal_leads_back_to_where_the_caller_says_or_to_the_dashboard(
    billing: BillingSetup,
):
    account = billing.caller.account
    assert await billing.payments.portal_url(account, "https://shop.test/x") == PORTAL
    account = await billing.store.account(account.id)
    assert await billing.payments.portal_url(account, None) == PORTAL
    forms = [asked.form for asked in billing.fake.asked if asked.path.endswith("sessions")]
    assert forms == [
        {"customer": "cus_1", "return_url": "https://shop.test/x"},
        {"customer": "cus_1", "return_url": DASHBOARD},
    ]


async def test_a_free_account_has_no_portal_unless_it_once_paid():
    async with open_billing("free") as billing:
        account = billing.caller.account
        assert await billing.payments.portal_url(account, None) is None
        assert billing.fake.asked == []
        customer_id = await billing.stripe.make_customer(account)
        await billing.store.change_account(account.id, customer_id=customer_id)
        account = await billing.store.account(account.id)
        assert await billing.payments.portal_url(account, None) == PORTAL


@pytest.mark.parametrize("word", ["customers", "sessions"])
@pytest.mark.parametrize("mode", sorted(MODES.keys() - {"fine", "late", "is busy"}))
async def test_a_portal_that_stripe_does_not_open_is_unavailable(billing: BillingSetup, word, mode):
    billing.fake.next(word, *[mode] * 3)
    with pytest.raises(ProviderUnavailable):
        await billing.payments.portal_url(billing.caller.account, None)


async def test_a_portal_session_is_requested_again_after_a_lost_connection(billing: BillingSetup):
    billing.fake.next("sessions", "drops")
    assert await billing.payments.portal_url(billing.caller.account, None) == PORTAL


# -- without Stripe -----------------------------------------------------------------------------


async def test_without_a_key_there_is_no_billing_provider():
    """The dashboard offers an own account then."""
    clock = Clock()
    store: Any = MemoryStore(clock)
    async with open_payments(
        store, key=None, webhook_secret=None, api_base=None, dashboard_url=DASHBOARD, now=clock,
        rng=random.Random(0),
    ) as payments:  # fmt: skip
        assert payments is None


async def test_a_verification_that_is_not_metered_posts_nothing(
    autojump_clock, shop: RunningService
):
    await shop.verify()
    assert (await shop.rows())[0].billable
    assert await shop.store.messages("meter", limit=10) == []
    got = await shop.request("POST", "/v1/billing/stripe", octets=OCTETS, key=None)
    assert got.status == 404
    assert (await shop.manage("POST", "/billing/portal")).status == 402
