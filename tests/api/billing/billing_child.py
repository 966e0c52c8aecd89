"""A child process that verifies and bills until it is killed.

    python -m tests.api.billing.billing_child PATH URL BEGAN SEED

It settles the usage of three accounts, with the key hashes `ann`, `bob` and `cid`, and
sends the counts to the Stripe at URL. It prints a line for each settlement. Its clock
runs a hundred times too fast, so that a slot of the meter is a tenth of a second.
"""

import os
import random
import sys
import time
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from pathlib import Path

import trio

from mailprobe.api.billing.client import Stripe, StripePace
from mailprobe.api.billing.provider import open_stripe_payments
from mailprobe.api.quota.plans import is_reported
from mailprobe.storage import open_store
from mailprobe.storage.contract import StoreUnavailable
from mailprobe.storage.records import Reservation
from mailprobe.storage.store import Store
from tests.api.billing.fake_stripe import KEY
from tests.storage.fixed_clock import NOON, SECRET, granted, row

NAMES = ("ann", "bob", "cid")
SPEED = 100
PACE = StripePace(timeout_s=0.15, poll_s=0.01, backoff_max_s=0.02)


def fast_clock(began: float) -> Callable[[], datetime]:
    """Noon when it began."""
    return lambda: NOON + timedelta(seconds=SPEED * (time.time() - began))


async def use(store: Store, name: str, now: Callable[[], datetime], rng: random.Random) -> None:
    """Reserve and settle forever, whole or in two parts, billable and not."""
    caller = await store.caller(name)
    assert caller
    emit = is_reported(caller.account.tier)
    while True:
        try:
            reservation = await store.reserve(caller, 5, granted, lease_s=600)
            assert isinstance(reservation, Reservation)
            rows = [row(now(), billable=rng.random() < 0.8) for _ in range(rng.randint(0, 5))]
            half = rng.randint(0, len(rows))
            await store.settle(reservation, rows[:half], ends=False, emit_meter_event=emit)
            await store.settle(reservation, rows[half:], part=1, emit_meter_event=emit)
        except StoreUnavailable:
            continue
        os.write(1, b".\n")


async def live(path: str, url: str, began: str, seed: str) -> None:
    now, rng = fast_clock(float(began)), random.Random(int(seed))
    async with (
        open_store(Path(path), secret_key=SECRET, now=now) as store,
        open_stripe_payments(
            store, Stripe(KEY, url, PACE), webhook_secret=None, dashboard_url="https://dash.test",
            now=now, rng=rng, pace=PACE,
        ),
        trio.open_nursery() as nursery,
    ):  # fmt: skip
        for name in NAMES * 2:
            nursery.start_soon(use, store, name, now, random.Random(rng.random()))


def main(words: Sequence[str]) -> None:
    path, url, began, seed = words
    trio.run(live, path, url, began, seed)


if __name__ == "__main__":
    main(sys.argv[1:])
