"""One account's portal requests delay no other account, however slow Stripe is."""

import trio

from mailprobe.api.billing.provider import PORTALS_AT_ONCE
from mailprobe.api.refusals import ProviderUnavailable
from tests.api.billing.billing_fixture import QUICK, open_billing
from tests.api.billing.fake_stripe import PORTAL

TRIES = len(QUICK.repeats_s) + 1
ASKED = 300  # each would occupy a request slot while Stripe is silent


async def test_of_one_account_few_portals_are_being_opened_at_a_time() -> None:
    async with open_billing() as billing:
        refused, have_been_refused = 0, trio.Event()

        async def open_portal() -> None:
            nonlocal refused
            try:
                await billing.payments.portal_url(billing.caller.account, None)
            except ProviderUnavailable:
                refused += 1
            if refused == ASKED - PORTALS_AT_ONCE:
                have_been_refused.set()

        billing.fake.next("sessions", *["hangs"] * PORTALS_AT_ONCE)
        with trio.fail_after(10):
            async with trio.open_nursery() as nursery:
                for _ in range(ASKED):
                    nursery.start_soon(open_portal)
                await have_been_refused.wait()
                neighbour = await billing.store.create_account("bob@shop.test", "scale")
                while billing.fake.times_asked("sessions") < PORTALS_AT_ONCE:  # noqa: ASYNC110 - of others
                    await trio.sleep(0.001)
                assert await billing.payments.portal_url(neighbour, None) == PORTAL
            assert billing.fake.times_asked("sessions") <= PORTALS_AT_ONCE * TRIES + 1
            assert await billing.payments.portal_url(billing.caller.account, None) == PORTAL
