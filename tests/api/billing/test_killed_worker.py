"""Killed at any moment, the service counts each verification once at the meter."""

import os
import random
import signal
import subprocess
import time
from collections import Counter
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import trio

from mailprobe.api.billing.client import Stripe
from mailprobe.api.billing.provider import (
    MeterSender,
    StripeCustomers,
)
from mailprobe.storage import open_store
from tests.api.billing.billing_child import NAMES, fast_clock
from tests.api.billing.billing_fixture import deliver_batch
from tests.api.billing.fake_stripe import (
    KEY,
    FakeStripe,
    open_fake_stripe,
)
from tests.seeds import seeds
from tests.storage.fixed_clock import SECRET as STORE_SECRET
from tests.storage.fixed_clock import make_caller
from tests.warm_process import WarmProcess

# httpx does not close the body's generator when a request is cancelled
pytestmark = pytest.mark.filterwarnings("ignore:Async generator 'httpx:ResourceWarning")

KILLS, KILLS_MAX = seeds(20), 20  # more, until one has made it send something twice
TIERS = ("builder", "scale", "free")  # of the child's three accounts


async def test_killed_at_any_moment_the_meter_counts_each_verification_once(tmp_path: Path):
    """The sum at Stripe equals the sum in the database, whatever each kill interrupted."""
    rng = random.Random(11)
    path, began = tmp_path / "mailprobe.db", time.time()
    now = fast_clock(began)
    async with open_store(path, secret_key=STORE_SECRET, now=now) as store:
        callers = [
            await make_caller(store, tier, name) for tier, name in zip(TIERS, NAMES, strict=True)
        ]
    async with open_fake_stripe(now=now, trouble=0.3, rng=rng) as fake:
        for kill in range(KILLS_MAX):
            if kill >= KILLS and max(sent_by(fake).values(), default=0) > 1:
                break
            command = [
                "tests.api.billing.billing_child",
                str(path),
                fake.url,
                str(began),
                str(kill),
            ]
            await live_and_die(command, fake, rng)
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
    assert max(sent_by(fake).values()) > 1, "nothing was ever sent twice: this proved nothing"


def sent_by(fake: FakeStripe) -> Counter[str]:
    """How often each event was sent."""
    return Counter(asked.form["identifier"] for asked in fake.asked if "identifier" in asked.form)


async def live_and_die(command: list[str], fake: FakeStripe, rng: random.Random) -> None:
    """Run the child; kill it after some settlements, or while it waits for Stripe's answer."""
    settlements, events = rng.randint(1, 150), rng.randint(1, 6)
    process = WarmProcess(command, stdout=subprocess.PIPE)

    def observe(asked: Any) -> None:
        nonlocal events
        events -= asked.path.endswith("meter_events")
        if not events:
            process.kill()

    fake.on_done = observe
    assert process.stdout
    with process:
        try:
            async with trio.lowlevel.FdStream(os.dup(process.stdout.fileno())) as output:
                async for octets in output:
                    settlements -= octets.count(b"\n")
                    if settlements <= 0:
                        process.kill()
        except BaseException:
            process.kill()
            raise
    assert process.returncode == -signal.SIGKILL
    fake.on_done = lambda asked: None


class Later:
    """A clock ahead of real time, which can be moved further ahead."""

    def __init__(self, now: Any) -> None:
        self._now = now
        self.ahead = timedelta(hours=2)

    def __call__(self) -> datetime:
        later: datetime = self._now() + self.ahead
        return later


async def deliver_all(store: Any, fake: FakeStripe, clock: Later) -> None:
    """Deliver until all is sent; what the busy fake refuses is due again after the clock moves."""
    stripe = Stripe(KEY, fake.url)
    meter = MeterSender(
        store, stripe, StripeCustomers(store, stripe), now=clock, rng=random.Random(0)
    )
    for _ in range(20):
        while (await deliver_batch(meter.worker())).claims:
            pass
        if all(message.sent_at for message in await store.messages("meter", limit=1000)):
            break
        clock.ahead += timedelta(minutes=30)
    await stripe.close()
