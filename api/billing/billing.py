"""Opens the billing provider: Stripe if a key is set, else local accounting only."""

import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import datetime

from mailprobe.storage.store import Store

from ..service import Payments


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
) -> AsyncIterator[Payments | None]:
    """Open Stripe, whose SDK is loaded only then; None without a key: no invoices are made.

    Meter messages are sent for the duration of the block.
    """
    if key is None:
        yield None
        return
    from .client import Stripe
    from .provider import open_stripe_payments

    stripe = Stripe(key, api_base)
    opened = open_stripe_payments(
        store, stripe, webhook_secret=webhook_secret, dashboard_url=dashboard_url, now=now, rng=rng
    )
    del key, webhook_secret  # a traceback may show what its frames hold
    async with opened as payments:
        yield payments
