"""Billing through Stripe: customers, portal, webhook events, and the meter events of the outbox.

Meter events are written to the outbox in one transaction with the usage they count.
An event only triggers a fetch of the customer's subscriptions, so events may arrive
twice, late and in any order.

No log line or exception from here contains a key, a secret or a portal address.
"""

import logging
import math
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from functools import partial
from typing import Any, TypeVar

import trio
from msgspec.structs import replace

from mailprobe.storage.records import BILLING, Account, OutboxMessage
from mailprobe.storage.store import Store

from ..outbox.worker import AttemptResult, Batch, Pace, Worker, WorkQueue, open_workers
from ..quota.plans import is_reported
from ..refusals import NoSuchRoute, ProviderUnavailable
from .client import PACE, CustomerMissing, Stripe, StripeFailed, StripePace
from .rules import (
    AFTER_OUTAGE,
    AFTER_REFUSAL,
    NO_SUBSCRIPTION,
    BillingEvent,
    Failure,
    Subscription,
    account_fields,
    held_for,
    identifier_of,
    meter_backoff,
    meter_event,
    read_event,
    reported,
    slot_of,
)

log = logging.getLogger("mailprobe.billing")

T = TypeVar("T")

PORTALS_AT_ONCE = 4  # per account: each is a request in flight while it waits for Stripe
FOLLOWS_MAX = 5  # another process following the same event makes two


class AccountLocks:
    """A lock per name, removed when no task holds it or waits for it."""

    def __init__(self) -> None:
        self.by_name: dict[str, trio.Lock] = {}

    @asynccontextmanager
    async def of(self, name: str) -> AsyncIterator[None]:
        lock = self.by_name.setdefault(name, trio.Lock())
        try:
            async with lock:
                yield
        finally:
            if not lock.locked():
                self.by_name.pop(name, None)


class StripeCustomers:
    """Maps accounts to Stripe customers."""

    def __init__(self, store: Store, stripe: Stripe) -> None:
        self._store = store
        self._stripe = stripe
        self.locks = AccountLocks()  # by account, held while its customer or tier is written

    async def of(self, account: Account) -> str:
        """The account's customer id; created if missing. Raises StripeFailed, StoreUnavailable.

        After a crash the idempotency key returns the same customer.
        """
        if account.customer_id:
            return account.customer_id
        async with self.locks.of(account.id):
            account = await self._store.account(account.id) or account
            if account.customer_id:
                return account.customer_id
            customer_id = await self._stripe.make_customer(account)
            await self._store.change_account(account.id, customer_id=customer_id)
        log.info("customer created: account=%s customer=%s", account.id, customer_id)
        return customer_id

    async def forget(self, account_id: str, customer_id: str, **more: Any) -> None:
        """Unlink a deleted customer; a new one is created when the account needs it."""
        async with self.locks.of(account_id):
            account = await self._store.account(account_id)
            if account is None or account.customer_id != customer_id:
                return
            generation = account.customer_generation + 1
            await self._store.change_account(
                account_id, customer_id=None, customer_generation=generation, **more
            )
        log.warning("customer deleted at Stripe: account=%s customer=%s", account_id, customer_id)


class StripePayments:
    """The `Payments` protocol, implemented with Stripe."""

    def __init__(
        self,
        store: Store,
        stripe: Stripe,
        customers: StripeCustomers,
        *,
        webhook_secret: str | None,
        dashboard_url: str,
        now: Callable[[], datetime],
        pace: StripePace = PACE,
    ) -> None:
        self._store = store
        self._stripe = stripe
        self._customers = customers
        self._secret = webhook_secret
        self._dashboard_url = dashboard_url
        self._now = now
        self._pace = pace
        self._locks = AccountLocks()
        self._portals: Counter[str] = Counter()  # being opened, by account

    async def portal_url(self, account: Account, return_url: str | None) -> str | None:
        if not is_reported(account.tier) and not account.customer_id:
            return None
        if self._portals[account.id] >= PORTALS_AT_ONCE:
            raise ProviderUnavailable
        self._portals[account.id] += 1
        try:
            return await self._open_portal(account, return_url)
        finally:
            self._portals -= Counter([account.id])  # this also removes zero counts

    async def _open_portal(self, account: Account, return_url: str | None) -> str:
        async def request() -> str:
            customer_id = await self._customers.of(account)
            try:
                return await self._stripe.portal(customer_id, return_url or self._dashboard_url)
            except CustomerMissing:
                await self._customers.forget(account.id, customer_id)
            another = replace(account, customer_id=None)
            customer_id = await self._customers.of(another)
            return await self._stripe.portal(customer_id, return_url or self._dashboard_url)

        try:
            return await self._with_retries(
                request, f"the portal of account {account.id} was not opened"
            )
        except CustomerMissing:  # the new one too
            raise ProviderUnavailable from None

    @property
    def receives_events(self) -> bool:
        return self._secret is not None

    async def receive_event(self, octets: bytes, signature: str) -> None:
        if self._secret is None:
            raise NoSuchRoute
        event = read_event(octets, signature, self._secret, self._now())
        if event.is_of_subscriptions and event.customer_id:
            async with self._locks.of(event.customer_id):
                if event.is_customer_deleted:
                    await self._forget(event.customer_id)
                    return
                try:
                    await self._follow(event, event.customer_id)
                except CustomerMissing:  # deleted in the meantime
                    await self._forget(event.customer_id)

    async def _forget(self, customer_id: str) -> None:
        """Set the account to the free tier and unlink its customer."""
        account = await self._store.account_of_customer(customer_id)
        if account:
            fields = _following(account, NO_SUBSCRIPTION)
            await self._customers.forget(account.id, customer_id, **fields)

    async def _follow(self, event: BillingEvent, customer_id: str) -> None:
        """Update the account from its current subscriptions.

        Fetches again after every change, because of two processes that handle two
        events the later writer may have the older state. A pass without a change
        proves that store and Stripe agree.
        """
        why = f"subscription not updated: event={event.type} customer={customer_id}"
        for _ in range(FOLLOWS_MAX):
            reported = await self._reported(customer_id, why)
            account = await self._account_of(event, customer_id, reported)
            if account is None:
                return
            fields = account_fields(reported)
            if fields is None:
                log.error(
                    "subscription has no tier: customer=%s set lookup_key (builder or scale) "
                    "or the metadata tier on its price",
                    customer_id,
                )
                return
            if not await self._change(account.id, {**fields, "customer_id": customer_id}):
                return
        log.error("%s error=it keeps changing", why)
        raise ProviderUnavailable

    async def _change(self, account_id: str, fields: dict[str, object]) -> bool:
        """Write the fields; return False if nothing changed."""
        async with self._customers.locks.of(account_id):
            account = await self._store.account(account_id)
            if account is not None:
                fields = _following(account, fields)
            if all(getattr(account, name) == value for name, value in fields.items()):
                return False
            await self._store.change_account(account_id, by=BILLING, **fields)
        log.info(
            "subscription changed: account=%s tier=%s status=%s",
            account_id, fields.get("tier", "own"), fields["subscription_status"],
        )  # fmt: skip
        return True

    async def _account_of(
        self, event: BillingEvent, customer_id: str, reported: Sequence[Subscription]
    ) -> Account | None:
        """The account with this customer, else the one named by the event or a subscription."""
        account = await self._store.account_of_customer(customer_id)
        if account:
            return account
        named = event.account_id or next(
            (one.account_id for one in reported if one.account_id), None
        )
        account = await self._store.account(named) if named else None
        if account is None:
            log.warning("customer has no account: event=%s customer=%s", event.type, customer_id)
            return None
        if account.customer_id and not await self._may_move(account, account.customer_id, reported):
            log.error(
                "two customers of one account: account=%s customer=%s other=%s "
                "end one of the subscriptions",
                account.id, account.customer_id, customer_id,
            )  # fmt: skip
            return None
        return account

    async def _may_move(
        self, account: Account, customer_id: str, reported: Sequence[Subscription]
    ) -> bool:
        """Only to a customer with a live subscription, from one without."""
        why = f"subscriptions not read: account={account.id}"
        try:
            theirs = await self._reported(customer_id, why)
        except CustomerMissing:
            theirs = []
        return any(one.is_live for one in reported) and not any(one.is_live for one in theirs)

    async def _reported(self, customer_id: str, why: str) -> list[Subscription]:
        return await self._with_retries(lambda: self._stripe.subscriptions(customer_id), why)

    async def _with_retries(self, request: Callable[[], Awaitable[T]], why: str) -> T:
        """Retry an idempotent request within `answer_s`. Raises ProviderUnavailable."""
        failure = Failure("Stripe did not answer in time", certain=False)
        with trio.move_on_after(self._pace.answer_s):
            for rest_s in (*self._pace.repeats_s, math.inf):
                try:
                    return await request()
                except CustomerMissing:
                    raise
                except StripeFailed as failed:
                    failure = failed.failure
                rest_s = max(rest_s, failure.retry_after_s)
                if not failure.general or rest_s > self._pace.answer_s:
                    break
                await trio.sleep(rest_s)
        log.warning("%s error=%s", why, failure.why)
        raise ProviderUnavailable


# -- the outbox ---------------------------------------------------------------------------------


class MeterSender:
    """Sends the meter messages of the outbox to Stripe."""

    def __init__(
        self,
        store: Store,
        stripe: Stripe,
        customers: StripeCustomers,
        *,
        now: Callable[[], datetime],
        rng: random.Random,
        pace: StripePace = PACE,
    ) -> None:
        self._store = store
        self._stripe = stripe
        self._customers = customers
        self._now = now
        self._rng = rng
        self._pace = pace

    def worker(self) -> Worker[OutboxMessage]:
        """Return the outbox worker of the meter. Stripe accepts one event per customer at a time."""
        pace = self._pace
        queue = WorkQueue(
            "meter events",
            Pace(
                pace.at_once,
                lease_s=pace.lease_s,
                extend_every_s=pace.lease_s / 4,
                poll_s=pace.poll_s,
                store_pause_s=pace.poll_s,
                drain_s=0.0,  # Stripe drops repeated identifiers
                batch_s=pace.run_s,
            ),
            claim=lambda most: self._store.claim_messages(
                "meter", limit=most, lease_s=pace.lease_s
            ),
            extend=partial(self._store.extend_message, lease_s=pace.lease_s),
            attempt=self._deliver,
            name_of=identifier_of,
            ordered_by=lambda message: message.account_id,
            backoff=meter_backoff(pace.backoff_max_s),
        )
        return Worker(queue, chance=self._rng.random)

    async def _deliver(self, message: OutboxMessage, batch: Batch[OutboxMessage]) -> AttemptResult:
        tried_at = self._now()
        held = held_for(message, tried_at)
        if held is not None:
            return self._hold(message, held)
        if batch.is_over:
            return self._requeue(
                message, Failure("it had to wait for others", certain=True), tried_at
            )
        customer_id = ""
        try:
            customer_id = await self._customer_of(message)
            await self._stripe.count(meter_event(message, customer_id))
        except StripeFailed as failed:
            if isinstance(failed, CustomerMissing):
                await self._customers.forget(message.account_id, customer_id)
            result = self._requeue(message, failed.failure, tried_at)
            return replace(result, failure=failed.failure)
        return AttemptResult(
            partial(self._store.message_attempted, message, sent=True, due_at=None)
        )

    async def _customer_of(self, message: OutboxMessage) -> str:
        """The customer to count for. Raises StripeFailed, which is certain: nothing was sent."""
        account = await self._store.account(message.account_id)
        if account is None:
            raise StripeFailed(Failure("its account is gone", certain=True, general=False))
        try:
            return await self._customers.of(account)
        except StripeFailed as failed:
            why = f"no customer was made: {failed.failure.why}"
            general, wait_s = failed.failure.general, failed.failure.retry_after_s
            raise StripeFailed(Failure(why, True, general, wait_s)) from None

    def _requeue(
        self, message: OutboxMessage, failure: Failure, tried_at: datetime
    ) -> AttemptResult:
        """Make the message due again, with growing back-off."""
        backoff = AFTER_OUTAGE if failure.general else AFTER_REFUSAL
        rest_s = backoff.pause_s(
            message.tries + 1, chance=self._rng.random(), retry_after_s=failure.retry_after_s
        )
        assert rest_s is not None  # its last pause repeats
        due_at = self._now() + timedelta(seconds=rest_s)
        error = reported(message, failure, tried_at)
        record = partial(
            self._store.message_attempted, message, sent=False, due_at=due_at, error=error
        )
        return AttemptResult(record, retry_in_s=rest_s)

    def _hold(self, message: OutboxMessage, why: str) -> AttemptResult:
        """Hold the message for an operator, who checks Stripe's meter by hand."""
        log.error(
            "meter event held: identifier=%s account=%s verifications=%d at=%s why=%s",
            identifier_of(message), message.account_id, message.count, slot_of(message).isoformat(), why,
        )  # fmt: skip
        attempted = self._store.message_attempted
        return AttemptResult(
            partial(attempted, message, sent=False, due_at=None, error=f"held, {why}")
        )


@asynccontextmanager
async def open_stripe_payments(
    store: Store,
    stripe: Stripe,
    *,
    webhook_secret: str | None,
    dashboard_url: str,
    now: Callable[[], datetime],
    rng: random.Random,
    pace: StripePace = PACE,
) -> AsyncIterator[StripePayments]:
    """Open payments and run the outbox worker for the duration of the block. Closes `stripe`."""
    customers = StripeCustomers(store, stripe)
    meter = MeterSender(store, stripe, customers, now=now, rng=rng, pace=pace)
    payments = StripePayments(
        store,
        stripe,
        customers,
        webhook_secret=webhook_secret,
        dashboard_url=dashboard_url,
        now=now,
        pace=pace,
    )
    del webhook_secret  # a traceback may show what its frames hold
    try:
        async with open_workers(meter.worker()):
            yield payments
    finally:
        await stripe.close()


def _following(account: Account, fields: Mapping[str, object]) -> dict[str, object]:
    """The fields that an account takes from Stripe. An own account keeps its tier: it is not sold."""
    return {k: v for k, v in fields.items() if k != "tier" or account.tier != "own"}
