"""Stripe's webhook events: an account takes the state that Stripe reports now."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import trio

from mailprobe.api.billing.client import Stripe
from mailprobe.api.billing.provider import (
    AccountLocks,
    StripeCustomers,
    StripePayments,
)
from mailprobe.api.refusals import ProviderUnavailable
from tests.api.billing.billing_fixture import (
    DASHBOARD,
    SLOT,
    BillingSetup,
    become,
    open_billed,
    open_billing,
    send_event,
)
from tests.api.billing.fake_stripe import (
    KEY,
    MODES,
    PORTAL,
    SECRET,
    signed,
    subscription,
)
from tests.api.service_fixture import RunningService
from tests.storage.fixed_clock import NOON

# httpx does not close the body's generator when a request is cancelled
pytestmark = pytest.mark.filterwarnings("ignore:Async generator 'httpx:ResourceWarning")


OCTETS, HEADER = signed("customer.subscription.updated", {"customer": "cus_1"}, NOON)


async def test_an_event_is_a_hint_and_what_is_fetched_is_true():
    async with open_billing("free") as billing:
        await become(billing)
        billing.fake.put(subscription("cus_1", "scale"))
        account = await send_event(billing, status="canceled", items="lies")
        assert (account.tier, account.subscription_status) == ("scale", "active")
        billing.fake.put(subscription("cus_1", "scale", status="past_due"))
        account = await send_event(billing, "invoice.payment_failed", object="invoice")
        assert (account.tier, account.subscription_status) == ("scale", "past_due")
        billing.fake.put(subscription("cus_1", "scale", status="canceled", canceled_at=SLOT))
        account = await send_event(billing, "customer.subscription.deleted")
        assert (account.tier, account.subscription_status) == ("free", "canceled")
        assert account.canceled_at == NOON
        assert account.current_period_end is None
        asked = billing.fake.times_asked("subscriptions")
        # Late and twice.
        same = await send_event(billing, "customer.subscription.created", status="active")
        assert same == account
        assert billing.fake.times_asked("subscriptions") == asked + 1


@pytest.mark.parametrize(
    "kind", ["customer.created", "charge.succeeded", "payment_intent.created", "product.updated"]
)
async def test_other_events_are_taken_and_change_nothing(billing: BillingSetup, kind):
    account = await send_event(billing, kind)
    assert account == billing.caller.account
    assert billing.fake.asked == []


async def test_an_account_forgets_a_customer_that_was_deleted(billing: BillingSetup):
    """Stripe may no longer report what a deleted customer bought."""
    await become(billing)
    billing.fake.put(subscription("cus_1", "scale"))
    assert (await send_event(billing)).tier == "scale"
    asked = len(billing.fake.asked)
    for _ in range(2):
        account = await send_event(billing, "customer.deleted", object="customer", id="cus_1")
        assert (account.tier, account.subscription_status, account.customer_id) == (
            "free", None, None,
        )  # fmt: skip
    assert len(billing.fake.asked) == asked


async def test_an_own_account_stays_one_whatever_its_customer_does():
    async with open_billing("own") as billing:
        await become(billing)
        billing.fake.put(subscription("cus_1", "builder"))
        account = await send_event(billing)
        assert (account.tier, account.subscription_status) == ("own", "active")
        account = await send_event(billing, "customer.deleted", object="customer", id="cus_1")
        assert (account.tier, account.customer_id) == ("own", None)


async def test_a_checkout_makes_the_customer_the_accounts():
    async with open_billing("free") as billing:
        billing.fake.put(subscription("cus_7"))
        account_id = billing.caller.account.id
        kind = "checkout.session.completed"
        account = await send_event(
            billing,
            kind,
            object="checkout.session",
            customer="cus_7",
            client_reference_id=account_id,
        )
        assert (account.tier, account.customer_id) == ("builder", "cus_7")


async def test_a_subscription_may_name_the_account():
    async with open_billing("free") as billing:
        metadata = {"account_id": billing.caller.account.id}
        billing.fake.put(subscription("cus_7", metadata=metadata))
        account = await send_event(billing, "invoice.paid", object="invoice", customer="cus_7")
        assert (account.tier, account.customer_id) == ("builder", "cus_7")


async def test_an_unknown_customer_is_logged_and_ignored(billing: BillingSetup, caplog):
    billing.fake.put(subscription("cus_9", "scale"))
    assert await send_event(billing, customer="cus_9") == billing.caller.account
    assert (
        await send_event(billing, customer="cus_9", metadata={"account_id": "x"})
        == billing.caller.account
    )
    assert "customer has no account: event=" in caplog.text


async def test_an_account_moves_to_a_customer_that_pays_from_one_that_does_not(
    billing: BillingSetup, caplog
):
    await become(billing, "cus_1")
    named: dict[str, Any] = {
        "customer": "cus_2",
        "metadata": {"account_id": billing.caller.account.id},
    }
    billing.fake.put(subscription("cus_2", "scale", id="sub_2", status="canceled"))
    assert (await send_event(billing, **named)).customer_id == "cus_1"
    billing.fake.put(subscription("cus_1", "builder"), subscription("cus_2", "scale", id="sub_2"))
    assert (await send_event(billing, **named)).customer_id == "cus_1"
    assert "end one of the subscriptions" in caplog.text
    billing.fake.put(subscription("cus_1", "builder", status="canceled"))
    account = await send_event(billing, **named)
    assert (account.customer_id, account.tier) == ("cus_2", "scale")


async def test_a_tier_may_stand_on_the_product():
    async with open_billing("free") as billing:
        await become(billing)
        billing.fake.put(subscription("cus_1", None))
        billing.fake.products["prod_1"] = {"id": "prod_1", "metadata": {"tier": "scale"}}
        assert (await send_event(billing)).tier == "scale"


async def test_a_price_that_names_no_tier_takes_none_away(billing: BillingSetup, caplog):
    await become(billing)
    billing.fake.put(subscription("cus_1", "hosting"))
    assert (await send_event(billing)).tier == "builder"
    assert "subscription has no tier: customer=cus_1" in caplog.text


@pytest.mark.parametrize(
    "mode", sorted(MODES.keys() - {"fine", "late", "is busy"} - {"fails after"})
)
async def test_an_event_whose_state_cannot_be_fetched_is_requested_again(
    billing: BillingSetup, mode
):
    await become(billing)
    billing.fake.next("subscriptions", *[mode] * 3)
    with pytest.raises(ProviderUnavailable):
        await send_event(billing)
    billing.fake.modes.clear()
    billing.fake.put(subscription("cus_1", "scale"))
    assert (await send_event(billing)).tier == "scale"


async def test_events_of_one_customer_are_followed_one_after_the_other(billing: BillingSetup):
    await become(billing)
    billing.fake.put(subscription("cus_1", "scale"))
    fetch, under_way, most = billing.stripe.subscriptions, 0, 0

    async def fetch_and_count(customer_id: str) -> Any:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        reported = await fetch(customer_id)
        under_way -= 1
        return reported

    billing.stripe.subscriptions = fetch_and_count  # type: ignore[method-assign]
    async with trio.open_nursery() as nursery:
        for _ in range(4):
            nursery.start_soon(send_event, billing)
    assert most == 1
    assert billing.fake.times_asked("subscriptions") == 5, (
        "who wrote looks again, who did not has done"
    )


async def test_of_two_processes_the_one_with_older_news_does_not_win(billing: BillingSetup):
    """The slow process read "active"; the subscription has ended since, as the other one reads."""
    await become(billing)
    other = Stripe(KEY, billing.fake.url)
    slow = StripePayments(
        billing.store, other, StripeCustomers(billing.store, other),
        webhook_secret=SECRET, dashboard_url=DASHBOARD, now=billing.clock,
    )  # fmt: skip
    fetch, fetched, go_on = other.subscriptions, trio.Event(), trio.Event()

    async def fetch_slowly(customer_id: str) -> Any:
        reported = await fetch(customer_id)
        fetched.set()
        await go_on.wait()
        return reported

    other.subscriptions = fetch_slowly  # type: ignore[method-assign]
    billing.fake.put(subscription("cus_1", "scale"))
    octets, header = signed("customer.subscription.updated", {"customer": "cus_1"}, NOON)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(slow.receive_event, octets, header)
        await fetched.wait()
        billing.fake.put(subscription("cus_1", "scale", status="canceled"))
        assert (await send_event(billing)).tier == "free"
        go_on.set()
    assert (await billing.store.account(billing.caller.account.id)).tier == "free"
    await other.close()


async def test_turns_are_kept_by_name_and_forgotten():
    turns, order = AccountLocks(), []

    async def receive(name: str) -> None:
        async with turns.of(name):
            order.append(f"{name}+")
            await trio.testing.wait_all_tasks_blocked()
            order.append(f"{name}-")

    async with trio.open_nursery() as nursery:
        for name in "aab":
            nursery.start_soon(receive, name)
    assert order.index("b-") > order.index("b+")
    assert "".join(word for word in order if word[0] == "a") == "a+a-a+a-"
    assert turns.by_name == {}


# -- the service --------------------------------------------------------------------------------


async def send_shop_event(shop: RunningService, kind: str, about: dict[str, Any]) -> Any:
    octets, header = signed(kind, about, shop.clock())
    headers = {"stripe-signature": header}
    return await shop.request(
        "POST", "/v1/billing/stripe", octets=octets, key=None, headers=headers
    )


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
        reported = await send_shop_event(
            shop, "customer.subscription.updated", {"customer": "cus_1"}
        )
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
        await send_shop_event(shop, "customer.subscription.deleted", {"customer": "cus_1"})
        assert (await shop.verify()).headers["ratelimit-policy"].startswith('"minute";q=10;')
        summary = (await shop.manage("GET", "/usage/summary")).body
        assert (summary["tier"], summary["estimated_cost_eur"]) == ("free", 0.0)


async def test_an_event_that_is_not_signed_is_a_bad_request():
    async with open_billed() as (shop, fake):
        for header in (None, "t=1,v1=0", HEADER):
            got = await shop.request(
                "POST", "/v1/billing/stripe", octets=OCTETS, key=None,
                headers={"stripe-signature": header},
            )  # fmt: skip
            assert (got.status, got.error) == (400, "invalid_request")
        assert fake.asked == []


async def test_without_a_signing_secret_no_event_is_expected():
    async with open_billed(secret=None) as (shop, _):
        got = await send_shop_event(shop, "customer.subscription.updated", {"customer": "cus_1"})
        assert (got.status, got.error) == (404, "not_found")


async def test_an_event_that_could_not_be_applied_gets_503_until_it_can():
    async with open_billed() as (shop, fake):
        await shop.change(customer_id="cus_1")
        fake.next("subscriptions", "fails", "fails", "fails")
        got = await send_shop_event(shop, "customer.subscription.updated", {"customer": "cus_1"})
        assert (got.status, got.error) == (503, "billing_unavailable")
        shop.store.away = {"change_account"}
        fake.put(subscription("cus_1"))
        got = await send_shop_event(shop, "customer.subscription.updated", {"customer": "cus_1"})
        assert got.status == 503
        shop.store.away = False
        got = await send_shop_event(shop, "customer.subscription.updated", {"customer": "cus_1"})
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


async def test_the_count_of_a_request_reaches_the_meter():
    async with open_billed("builder") as (shop, fake):
        counted = trio.Event()
        fake.on_done = lambda asked: counted.set() if fake.events else None
        await shop.batch("ann@friendly.test", "bob@friendly.test", "bad")
        shop.clock.set(shop.clock() + timedelta(seconds=12))
        with trio.fail_after(5):
            await counted.wait()
        assert fake.counted == 2
