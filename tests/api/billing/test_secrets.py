"""No key, secret or portal address appears in logs or tracebacks; the fake runs as a program."""

import logging
import random
import subprocess
import sys
import traceback
from typing import Any

import httpx
import pytest
import trio

from mailprobe.api.billing.billing import open_payments
from mailprobe.api.billing.client import Stripe, StripeFailed, StripeTransport
from mailprobe.api.refusals import ProviderUnavailable
from mailprobe.storage.sqlite.memory import MemoryStore
from tests.api.billing.billing_fixture import (
    DASHBOARD,
    ROOT,
    open_billing,
)
from tests.api.billing.fake_stripe import (
    KEY,
    MODES,
    PORTAL,
    SECRET,
    subscription,
)
from tests.storage.fixed_clock import Clock, make_caller

# httpx does not close the body's generator when a request is cancelled
pytestmark = pytest.mark.filterwarnings("ignore:Async generator 'httpx:ResourceWarning")

# -- secrets ------------------------------------------------------------------------------------


async def test_no_key_no_secret_and_no_portal_is_in_logs_and_tracebacks(caplog):
    caplog.set_level(logging.DEBUG)
    for name in ("httpx", "httpcore"):  # as serve has it
        logging.getLogger(name).setLevel(logging.WARNING)
    shown: list[str] = []
    async with open_billing() as billing:
        for mode in MODES:
            billing.fake.next("customers", *[mode] * 3)
            billing.fake.next("sessions", *[mode] * 3)
            try:
                await billing.payments.portal_url(billing.caller.account, None)
            except ProviderUnavailable as error:
                shown += traceback.format_exception(error)
            await billing.store.change_account(billing.caller.account.id, customer_id=None)
            billing.fake.modes.clear()
        billing.fake.key = "sk_test_another"
        await billing.use(1)
        await billing.deliver()
        shown += [repr(one) for one in (billing.payments, billing.stripe, billing.outbox_worker)]
        shown += [(await billing.message()).error or ""]
    text = caplog.text + "".join(shown)
    assert "not opened" in text
    for secret in (KEY, SECRET, PORTAL, "NeverShow", KEY[-4:]):
        assert secret not in text


async def test_a_traceback_shows_no_key_even_with_all_that_its_frames_hold(monkeypatch):
    """The log on a terminal shows the variables of every frame."""

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
            assert payments is not None
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
        "modes": {"sessions": ["fails"]},
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
