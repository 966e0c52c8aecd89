"""Alerts: detects reached thresholds, keeps messages in the outbox, sends them to a mail relay.

The quota service reports accounts whose usage has changed. A task checks them and
enqueues one message per reached threshold. A message's name is unique in the store,
so several processes and restarts make only one. Another task sends due messages. A
message is marked as sent after the relay has accepted it, so it is never lost; it is
repeated, with the same Message-ID, only if a process or connection fails between the
relay's 250 and the mark.

Failures of the store or the relay are retried and never raised.
"""

import logging
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from email.errors import MessageError
from email.headerregistry import Address
from math import inf
from typing import TypeVar

import trio

from mailprobe.api.alerts.smtp_relay import (
    Mailer,
    Relay,
    RelayMailer,
    SendResult,
    read_relay,
    shortened,
)
from mailprobe.api.alerts.thresholds import (
    Unwritable,
    compose,
    crossed,
    from_body,
    message_name,
    to_body,
)
from mailprobe.api.quota.plans import Plans
from mailprobe.api.rest.errors import Links
from mailprobe.api.setting_values import host_name
from mailprobe.api.settings import WrongSetting
from mailprobe.engine.background import contained, supervised
from mailprobe.storage.contract import Store, StoreUnavailable
from mailprobe.storage.records import Account, Caller, Key, OutboxMessage, Tier

log = logging.getLogger("mailprobe.alerts")

POLL_EVERY_S = 1.0  # at most one check of an account in this time
SWEEP_PAUSE_S = 0.01  # between two accounts at the start: at most 100 a second
POSTED_KEPT_MAX = 100_000  # names known to be in the outbox: 20 MiB; others are enqueued again, which does nothing
POLL_S = 20.0  # between polls for other processes' messages and for retries
STORE_PAUSE_S = 2.0  # while the store is unavailable

LEASE_S = 180.0  # longer than one SMTP delivery, so no two processes send the same message
CLOSING_S = 1.0  # a stop waits for the current message; it has 10 s in all

RETRY_S = 60.0  # after the first failure; twice as long after each further one
RETRY_S_MAX = 6 * 3600.0
JITTER = 0.25  # of a pause, on top of it
TRIED_FOR = timedelta(days=3)
STALE_AFTER = timedelta(days=3)  # after a period its thresholds no longer matter

T = TypeVar("T")


async def _until_answered(ask: Callable[[], Awaitable[T]], what: str) -> T:
    while True:
        try:
            return await ask()
        except StoreUnavailable as error:
            log.warning("%s must wait: %s", what, error)
            await trio.sleep(STORE_PAUSE_S)


# -- noticing ----------------------------------------------------------------------------------


class Alerts:
    """Checks accounts whose usage changed and enqueues alerts; made by `open_alerts()`."""

    def __init__(
        self,
        store: Store,
        plans: Plans,
        *,
        now: Callable[[], datetime],
        notify_sender: Callable[[], None] | None,
    ) -> None:
        self._store = store
        self._plans = plans
        self._now = now
        self._notify_sender = notify_sender
        self._changed: dict[str, Key] = {}  # by account; each at most once
        self._refused: dict[
            str, tuple[Tier, int | None]
        ] = {}  # tier and hard cap at the refusal, by account
        self._changed_event = trio.Event()
        self._posted: set[tuple[str, str]] = set()  # by account and name

    def watch(self, caller: Caller, capped: bool) -> None:
        """The quota service's Watch: the caller's usage changed, or the hard cap refused it."""
        account = caller.account
        self._changed[account.id] = caller.key
        if capped:
            self._refused[account.id] = account.tier, account.hard_cap_micros
        self._changed_event.set()

    async def check_changed(self) -> None:
        """Check changed accounts, in runs at least POLL_EVERY_S apart."""
        while True:
            await self._changed_event.wait()
            self._changed_event = trio.Event()
            changed, self._changed = self._changed, {}
            for account_id, key in changed.items():
                await contained(self._poll, account_id, key)
            await trio.sleep(POLL_EVERY_S)

    async def sweep(self) -> None:
        """Check every account once, in case an earlier process was killed before its check."""
        for account in await _until_answered(self._store.accounts, "the alerts' first look"):
            if account.alerts:
                await contained(self._poll_without_key, account.id)
            await trio.sleep(SWEEP_PAUSE_S)

    async def _poll_without_key(self, account_id: str) -> None:
        """Check by any key of the account; without a key there is no usage."""
        keys = await _until_answered(lambda: self._store.keys(account_id), "an account's alerts")
        if keys:
            await self._poll(account_id, keys[0])

    async def _poll(self, account_id: str, key: Key) -> None:
        refused = self._refused.pop(account_id, None)
        await _until_answered(
            lambda: self._post_reached(account_id, key, refused), "an account's alerts"
        )

    async def _post_reached(
        self, account_id: str, key: Key, refused: tuple[Tier, int | None] | None
    ) -> None:
        """Use the current account: its caps, plan and alert setting may have changed."""
        account = await self._store.account(account_id)
        if account is None or not account.alerts:
            return
        ledger = await self._store.ledger(Caller(account, key))
        capped = refused == (account.tier, account.hard_cap_micros)
        for alert in crossed(self._plans[account.tier], ledger, account, capped=capped):
            name = message_name(alert)
            if (account_id, name) not in self._posted:
                await self._post(account_id, name, to_body(alert))

    async def _post(self, account_id: str, name: str, body: bytes) -> None:
        is_new = await self._store.enqueue_message(
            "alert", account_id, name, body, due_at=self._now()
        )
        if len(self._posted) >= POSTED_KEPT_MAX:
            self._posted.clear()
        self._posted.add((account_id, name))
        if not is_new:
            return
        if self._notify_sender is not None:
            self._notify_sender()
            return
        log.warning(
            "alert %s of account %s stays in the outbox: MAILPROBE_ALERT_SMTP_URL is not set",
            name, account_id,
        )  # fmt: skip


# -- sending -----------------------------------------------------------------------------------


def pause_s(tries: int, jitter: float) -> float:
    """Seconds until the next attempt after `tries` earlier failures; `jitter` is 0 to 1."""
    pause = min(RETRY_S * 2.0 ** min(tries, 20), RETRY_S_MAX)
    return pause * (1 + JITTER * jitter)


class AlertSender:
    """Sends alert messages to the relay, one at a time."""

    def __init__(
        self,
        store: Store,
        mailer: Mailer,
        *,
        now: Callable[[], datetime],
        rng: random.Random,
        dashboard_url: str,
        sender: str,
    ) -> None:
        self._store = store
        self._mailer = mailer
        self._now = now
        self._rng = rng
        self._dashboard_url = dashboard_url
        self._sender = sender
        self._wake_event = trio.Event()
        self._closes_at = inf
        self._in_flight: trio.CancelScope | None = None

    def wake(self) -> None:
        """A message was enqueued."""
        self._wake_event.set()
        self._wake_event = trio.Event()

    def close(self) -> None:
        """Limit the current message to CLOSING_S; the caller then cancels the task."""
        self._closes_at = trio.current_time() + CLOSING_S
        if self._in_flight is not None:
            self._in_flight.deadline = self._closes_at

    async def send_due(self) -> None:
        while True:
            wake_event = self._wake_event
            messages = await _until_answered(self._claim, "letters")
            for message in messages:
                await contained(self._send, message)
            if not messages:
                with trio.move_on_after(POLL_S):
                    await wake_event.wait()

    async def _claim(self) -> list[OutboxMessage]:
        # one: a second lease could expire while the relay is slow with the first
        return await self._store.claim_messages("alert", limit=1, lease_s=LEASE_S)

    async def _send(self, message: OutboxMessage) -> None:
        """Send and mark, shielded from a stop: an unmarked message would be sent again."""
        with trio.CancelScope(shield=True, deadline=self._closes_at) as self._in_flight:
            try:
                account = await self._store.account(message.account_id)
            except StoreUnavailable as error:
                # no retry here: the lease must not expire during a delivery
                log.warning("alert %s must wait: %s", message.name, error)
                return
            send_result = await self._try(message, account)
            await self._mark(message, account, send_result)

    async def _try(self, outbox_message: OutboxMessage, account: Account | None) -> SendResult:
        if account is None or not account.alerts:
            return SendResult("the account wants none", final=True)
        try:
            alert = from_body(outbox_message.body)
            if self._now() > alert.figures.period_end + STALE_AFTER:
                return SendResult("its period is long over", final=True)
            message = compose(
                alert, account, dashboard_url=self._dashboard_url, sender=self._sender
            )
        except Unwritable as error:
            return SendResult(str(error), final=True)
        return await self._mailer.send(message)

    async def _mark(
        self, message: OutboxMessage, account: Account | None, send_result: SendResult
    ) -> None:
        due_at = self._next_try(message) if send_result.why and not send_result.final else None
        _log_send_result(message, account, send_result, due_at)
        await _until_answered(
            lambda: self._store.message_attempted(
                message, sent=send_result.why is None, due_at=due_at, error=send_result.why
            ),
            "what came of an alert",
        )

    def _next_try(self, message: OutboxMessage) -> datetime | None:
        """When to retry; None after TRIED_FOR."""
        now = self._now()
        due_at = now + timedelta(seconds=pause_s(message.tries, self._rng.random()))
        return due_at if due_at <= (message.first_tried_at or now) + TRIED_FOR else None


def _log_send_result(
    message: OutboxMessage,
    account: Account | None,
    send_result: SendResult,
    due_at: datetime | None,
) -> None:
    whose = f"alert {message.name} of account {message.account_id}"
    to = shortened(account.email) if account else "nobody"
    if send_result.why is None:
        log.info("%s was sent to %s", whose, to)
    elif due_at is not None:
        log.warning("%s was not sent to %s, next try %s: %s", whose, to, due_at, send_result.why)
    else:
        log.warning("%s is given up, not sent to %s: %s", whose, to, send_result.why)


# -- opening -----------------------------------------------------------------------------------


@asynccontextmanager
async def open_alerts(
    store: Store,
    plans: Plans,
    places: Links,
    *,
    now: Callable[[], datetime],
    url: str | None,
    sender: str | None,
    rng: random.Random,
    mailer: Mailer | None = None,
) -> AsyncIterator[Alerts]:
    """Detect and send alerts for the duration of the block; the quota service calls `watch`.

    Without a relay's URL (or a mailer) messages stay due in the outbox. Leaving the
    block waits up to CLOSING_S for the current message. Raises WrongSetting.
    """
    if mailer is None and url is not None:
        mailer = RelayMailer(_relay(url))
    outbox_worker: AlertSender | None = None
    if mailer is not None:
        sender = _checked(sender or f"mailprobe@{host_name()}")
        outbox_worker = AlertSender(
            store, mailer, now=now, rng=rng, dashboard_url=places.dashboard_url, sender=sender
        )
    alerts = Alerts(
        store, plans, now=now, notify_sender=outbox_worker.wake if outbox_worker else None
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(supervised, alerts.check_changed)
        nursery.start_soon(supervised, alerts.sweep)
        if outbox_worker:
            nursery.start_soon(supervised, outbox_worker.send_due)
        try:
            yield alerts
        finally:
            if outbox_worker:
                outbox_worker.close()
            nursery.cancel_scope.cancel()


def _relay(url: str) -> Relay:
    try:
        return read_relay(url, host_name())
    except ValueError:  # its message might contain the password
        raise WrongSetting("MAILPROBE_ALERT_SMTP_URL cannot be read") from None


def _checked(sender: str) -> str:
    """The sender, if it is a valid header address; else raises WrongSetting."""
    try:
        address = Address(addr_spec=sender)
        if address.domain:
            return address.addr_spec
    except (ValueError, MessageError, IndexError):
        pass
    raise WrongSetting(f"MAILPROBE_ALERT_FROM is {sender!r}: it takes an e-mail address")
