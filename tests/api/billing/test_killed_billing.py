"""kill -9 before any write of jobs made by tool, of the billing portal and of Stripe's events.

As in test_killed_between_writes.py, the service runs in its own process and dies before
its first write, then before its second, and so on until it survives. Stripe is a fake
in the test's process and is never killed.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any

import h11
import pytest
import trio

from mailprobe.storage.contract import is_postgres
from tests.api.billing.fake_stripe import (
    KEY,
    SECRET,
    FakeStripe,
    open_fake_stripe,
    signed,
    subscription,
)
from tests.api.jobs.test_killed import make_accounts
from tests.api.quota.test_killed_between_writes import (
    PATIENCE_S,
    Case,
    Done,
    KillableService,
    added,
    answer_to,
    job_of,
    open_killable,
    tool,
)
from tests.api.stores import asked
from tests.storage.fixed_clock import SECRET as SECRET_KEY
from tests.warm_lab import start_lab

ACCOUNTS = 50  # more than the writes of the requests: each account gets one first customer
JOB = Case("/mcp", tool("verify_email", email="{}", webhook="[]"), 200, Done(1, 1, 1), 6)
PORTAL = Case("/v1/management/billing/portal", {}, 200, Done(), 6)
PORTAL_BY_TOOL = Case("/mcp", tool("create_billing_portal"), 200, Done(), 6)
EVENTS = {  # the account after each event: tier, subscription, earlier customers
    "customer.subscription.created": ("builder", "active", 0),
    "customer.deleted": ("free", None, 1),
}


@dataclass
class Billed:
    """The service with a fake Stripe, and accounts without a customer."""

    service: KillableService
    stripe: FakeStripe
    accounts: list[dict[str, str]]

    def next_account(self, case: Case) -> str:
        """Switch to an unused account, with the key that this case needs; return its id."""
        account = self.accounts.pop()
        if case.path != "/mcp":
            account["key"] = account["provisioning_key"]
        self.service.account = account
        return account["account_id"]

    def is_now(self, account_id: str) -> tuple[Any, ...]:
        """Return tier, subscription status, customer id and the number of earlier customers."""
        [[row]] = asked(
            self.service.database,
            "SELECT tier, subscription_status, customer_id, customer_generation FROM accounts"
            " WHERE id = ?",
            values=(account_id,),
        )
        return tuple(row)

    def metered(self, account_id: str) -> int:
        """Return the verifications in the outbox for Stripe, sent or not."""
        [[(count,)]] = asked(
            self.service.database,
            "SELECT coalesce(sum(count), 0) FROM outbox JOIN accounts"
            " ON accounts.number = outbox.account WHERE kind = 'meter' AND accounts.id = ?",
            values=(account_id,),
        )
        return int(count)

    def customers_of(self, account_id: str) -> list[str]:
        everybody = self.stripe.customers.items()
        return [name for name, one in everybody if one["metadata"]["account_id"] == account_id]


@asynccontextmanager
async def open_billed(tmp_path: Path) -> AsyncIterator[Billed]:
    async with open_fake_stripe() as stripe:
        with start_lab() as lab, pytest.MonkeyPatch.context() as patched:
            patched.setenv("MAILPROBE_STRIPE_KEY", KEY)
            patched.setenv("MAILPROBE_STRIPE_WEBHOOK_SECRET", SECRET)
            patched.setenv("MAILPROBE_STRIPE_API_BASE", stripe.url)
            async with open_killable(tmp_path, lab) as service:
                secret_key = SECRET_KEY if is_postgres(service.database) else None
                accounts = await make_accounts(service.database, secret_key, ACCOUNTS)
                yield Billed(service, stripe, accounts)


async def test_portals_events_and_jobs_are_done_once_whatever_is_killed(tmp_path: Path) -> None:
    """One service for all cases: setting one up takes longer than killing it."""
    async with open_billed(tmp_path) as billed:
        await kill_portal(billed, PORTAL, 2)
        await kill_portal(billed, PORTAL_BY_TOOL, 4)
        for step, (kind, becomes) in zip((2, 4), EVENTS.items(), strict=True):
            await kill_event(billed, kind, becomes, step)
        await kill_job(billed)


async def kill_portal(billed: Billed, case: Case, step: int) -> None:
    """The portal creates one customer at Stripe, and a repeat gets the same answer."""
    service = billed.service
    for write in count(step=step):
        account_id = billed.next_account(case)
        first = await service.send(case, write, doom=True)
        if first is None:
            await service.until_killed()
        survived = not service.countdown.stop()
        if not survived:
            await service.start()
        answer = await service.repeat(case, write)
        assert answer.status_code == 200, answer.text
        assert b"https://billing.stripe.test/" in answer.content
        assert first is None or first.content == answer.content
        last = await service.repeat(case, write)
        assert (last.content, last.headers["idempotency-replayed"]) == (answer.content, "true")
        [customer] = billed.customers_of(account_id)
        assert billed.is_now(account_id) == ("scale", None, customer, 0), (case, write)
        if survived:
            break
    assert write >= case.writes_min


async def kill_job(billed: Billed) -> None:
    """Kill before each write up to the answer; after it, a job is the same by tool or by API."""
    service = billed.service
    account_id = billed.next_account(JOB)
    before = service.done()
    for write in count():
        first = await service.send(JOB, write, doom=True)
        if first is None:
            await service.until_killed()
        if service.countdown.stop():
            await service.start()
        answer = await service.repeat(JOB, write)
        assert answer.status_code == 200, answer.text
        assert first is None or answer.content == first.content
        assert await service.until_jobs_are_done()
        after = service.done()
        assert after == added(before, JOB.idempotency), write
        assert billed.metered(account_id) == after.billable
        last = await service.repeat(JOB, write)
        assert (last.content, last.headers["idempotency-replayed"]) == (answer.content, "true")
        assert service.done() == after
        before = after
        job_id = job_of(answer)
        assert job_id
        assert len(service.receiver.bodies[job_id]) == 1
        if first is not None:
            break
    assert write >= JOB.writes_min
    assert len(service.receiver.calls) == after.jobs


async def report(
    service: KillableService, octets: bytes, signature: str, *, doom: int | None = None
) -> int:
    """Post an event as Stripe does; return the status, or 0 if the service died before it."""
    http = h11.Connection(h11.CLIENT)
    headers = {
        "Host": "a.test",
        "Content-Type": "application/json",
        "Content-Length": f"{len(octets)}",
        "Stripe-Signature": signature,
    }
    with trio.fail_after(PATIENCE_S):
        async with await trio.open_tcp_stream("127.0.0.1", service.ports[0]) as stream:
            about = h11.Request(method="GET", target="/openapi.json", headers=[("Host", "a.test")])
            assert await answer_to(http, stream, about)
            http.start_next_cycle()
            if doom is not None:
                service.countdown.left = doom
            event = h11.Request(
                method="POST", target="/v1/billing/stripe", headers=[*headers.items()]
            )
            answer = await answer_to(http, stream, event, octets)
    return 0 if answer is None else answer.status_code


async def kill_event(billed: Billed, kind: str, becomes: tuple[Any, ...], step: int) -> None:
    """Stripe repeats an event until it gets 2xx, and may send it once more."""
    service = billed.service
    for write in count(step=step):
        account_id = billed.next_account(PORTAL)
        assert (await service.repeat(PORTAL, write)).status_code == 200
        [customer] = billed.customers_of(account_id)
        about = subscription(customer, "builder", id=f"sub_{account_id}")
        billed.stripe.put(about)
        if kind == "customer.deleted":
            about = billed.stripe.customers.pop(customer)
            billed.stripe.customers[f"{customer} was deleted"] = about | {
                "metadata": {"account_id": ""}
            }
        event = signed(kind, about, datetime.now(UTC))
        status = await report(service, *event, doom=write)
        if status == 0:
            await service.until_killed()
        survived = not service.countdown.stop()
        if not survived:
            await service.start()
        for _ in range(2):
            assert await report(service, *event) == 204
            *is_now, kept, generation = billed.is_now(account_id)
            assert (*is_now, generation) == becomes, (kind, write)
            assert kept == (None if generation else customer)
        if survived:
            assert status == 204
            break
    assert write >= 3
