"""Whoever bills: Stripe where its key is known, else nobody but us."""

import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import datetime

from mailprobe.api.rest.refusals import NoSuchRoute
from mailprobe.api.service import Payments
from mailprobe.storage.contract import Store
from mailprobe.storage.records import Account


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
    """The port to whoever bills; with a key Stripe, whose SDK is loaded only then.

    Letters to the meter leave as long as this is open. What is a bug in their
    sending is raised here.
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
    """Nobody else bills: quotas, included volume and caps hold, and no invoice is written."""

    receives_events = False

    async def portal_url(self, account: Account, return_url: str | None) -> str | None:
        return None

    async def receive_event(self, octets: bytes, signature: str) -> None:
        raise NoSuchRoute
