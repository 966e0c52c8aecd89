"""Opens the billing provider: Stripe if a key is set, else local accounting only."""

import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import datetime

from mailprobe.api.refusals import NoSuchRoute
from mailprobe.api.service import Payments
from mailprobe.storage.records import Account
from mailprobe.storage.store import Store


@asynccontextmanager
async def open_payments(
    store: Store,
    *,
    key: str | None,
    webhook_secret: str | None,
    api_base: str | None,
    dashboard_url: str,
    now: Callable[[], datetime],
    rng: random.Random,
) -> AsyncIterator[Payments]:
    """Open the billing provider; with a key Stripe, whose SDK is loaded only then.

    Meter messages are sent for the duration of the block.
    """
    if key is None:
        yield Local()
        return
    from mailprobe.api.billing.client import Stripe
    from mailprobe.api.billing.provider import open_stripe_payments

    stripe = Stripe(key, api_base)
    opened = open_stripe_payments(
        store, stripe, webhook_secret=webhook_secret, dashboard_url=dashboard_url, now=now, rng=rng
    )
    del key, webhook_secret  # a traceback may show what its frames hold
    async with opened as payments:
        yield payments


class Local:
    """No provider: quotas, included volume and caps apply, but no invoices are made."""

    receives_events = False

    async def portal_url(self, account: Account, return_url: str | None) -> str | None:
        return None

    async def receive_event(self, octets: bytes, signature: str) -> None:
        raise NoSuchRoute
