"""Alerts: detects reached thresholds, keeps messages in the outbox, sends them to a mail relay.

The quota service reports accounts whose usage has changed. A task checks them and
enqueues one message per reached threshold. A message's name is unique in the store,
so several processes and restarts make only one. An outbox worker
(mailprobe.api.outbox.worker) sends due messages. A message is marked as sent after
the relay has accepted it, so it is never lost; it is repeated, with the same Message-ID,
only if a process or connection fails between the relay's 250 and the mark.

Failures of the store or the relay are retried and never raised.
"""

import logging
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from datetime import datetime, timedelta
from email.errors import MessageError
from email.headerregistry import Address
from email.message import EmailMessage
from functools import partial
from typing import TypeVar

import msgspec
import trio

from mailprobe.engine.background import contained, running_loops
from mailprobe.storage.contract import StoreUnavailable
from mailprobe.storage.records import Account, Caller, Key, OutboxMessage, Tier
from mailprobe.storage.store import Store

from ..error_table import Links
from ..observability.logs import shortened
from ..outbox.backoff import Backoff, growing
from ..outbox.worker import AttemptResult, Batch, Pace, Worker, WorkQueue, open_workers
from ..quota.plans import Plans
from ..setting_values import host_name
from ..settings import WrongSetting
from . import list_mail
from .mail import compose
from .smtp_relay import (
    Mailer,
    Relay,
    RelayMailer,
    SendResult,
    printable,
    read_relay,
)
from .thresholds import (
    Alert,
    Unwritable,
    crossed,
    message_name,
    read_body,
    trial,
)

log = logging.getLogger("mailprobe.alerts")

POLL_EVERY_S = 1.0  # at most one check of an account in this time
SWEEP_PAUSE_S = 0.01  # between two accounts at the start: at most 100 a second
POSTED_KEPT_MAX = 100_000  # names known to be in the outbox: 20 MiB; others are enqueued again, which does nothing
POLL_S = 20.0  # between polls for other processes' messages and for retries
STORE_PAUSE_S = 2.0  # while the store is unavailable

LEASE_S = 180.0  # longer than one SMTP delivery, so that one is finished while the store is away
PACE = Pace(
    at_once=1,  # a relay is asked for one mail at a time
    lease_s=LEASE_S,
    extend_every_s=60.0,
    poll_s=POLL_S,
    store_pause_s=STORE_PAUSE_S,
    drain_s=1.0,  # a stop has 10 s in all
    shielded=True,  # a mail that the relay has taken must be recorded, or it is sent again
)
RETRY = Backoff(
    growing(60.0, 6 * 3600.0),  # after the first failure a minute, at last six hours
    spread=(1.0, 1.25),
    tried_for_s=timedelta(days=3).total_seconds(),
)
STALE_AFTER = timedelta(days=3)  # after a period its thresholds no longer matter

T = TypeVar("T")


async def _until_answered(ask: Callable[[], Awaitable[T]]) -> T:
    while True:
        try:
            return await ask()
        except StoreUnavailable as error:
            log.warning(
                "store unavailable: queue=alerts retry_in_s=%g error=%s", STORE_PAUSE_S, error
            )
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
        # Tier and hard cap at the refusal, by account.
        self._refused: dict[str, tuple[Tier, int | None]] = {}
        self._changed_event = trio.Event()
        self._posted: set[tuple[str, str]] = set()  # by account and name

    def watch(self, caller: Caller, capped: bool) -> None:
        """The quota service's Watch: the caller's usage changed, or the hard cap refused it."""
        account = caller.account
        self._changed[account.id] = caller.key
        if capped:
            self._refused[account.id] = account.tier, account.hard_cap_micros
        self._changed_event.set()

    @property
    def has_relay(self) -> bool:
        """Are mails sent? Else they stay in the outbox."""
        return self._notify_sender is not None

    async def send_test(self, caller: Caller) -> None:
        """Enqueue a test mail to the account; does nothing if there was one in this minute.

        Raises StoreUnavailable.
        """
        ledger = await self._store.ledger(caller)
        alert = trial(self._plans[caller.account.tier], ledger, caller.account)
        await self._post(caller.account.id, message_name(alert), alert)

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
        for account in await _until_answered(self._store.accounts):
            if account.alerts:
                await contained(self._poll_without_key, account.id)
            await trio.sleep(SWEEP_PAUSE_S)

    async def _poll_without_key(self, account_id: str) -> None:
        """Check by any key of the account; without a key there is no usage."""
        keys = await _until_answered(lambda: self._store.keys(account_id))
        if keys:
            await self._poll(account_id, keys[0])

    async def _poll(self, account_id: str, key: Key) -> None:
        refused = self._refused.pop(account_id, None)
        await _until_answered(lambda: self._post_reached(account_id, key, refused))

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
                await self._post(account_id, name, alert)

    async def _post(self, account_id: str, name: str, alert: Alert) -> None:
        is_new = await self._store.enqueue_message(
            "alert", account_id, name, msgspec.json.encode(alert), due_at=self._now()
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
            "alert not sent: account=%s alert=%s MAILPROBE_ALERT_SMTP_URL is not set",
            account_id, name,
        )  # fmt: skip


# -- sending -----------------------------------------------------------------------------------


class AlertSender:
    """Sends alert messages to the relay."""

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

    def worker(self) -> Worker[OutboxMessage]:
        queue = WorkQueue(
            "alerts",
            PACE,
            claim=lambda most: self._store.claim_messages("alert", limit=most, lease_s=LEASE_S),
            extend=partial(self._store.extend_message, lease_s=LEASE_S),
            attempt=self._send,
            name_of=lambda message: f"{message.name} of account {message.account_id}",
        )
        return Worker(queue, chance=self._rng.random)

    async def _send(self, message: OutboxMessage, _: Batch[OutboxMessage]) -> AttemptResult:
        account = await self._store.account(message.account_id)
        send_result = await self._try(message, account)
        wait_s = self._wait_s(message) if send_result.why and not send_result.final else None
        due_at = None if wait_s is None else self._now() + timedelta(seconds=wait_s)
        _log_send_result(message, account, send_result, due_at)
        record = partial(
            self._store.message_attempted,
            message, sent=send_result.why is None, due_at=due_at, error=send_result.why,
        )  # fmt: skip
        return AttemptResult(record, retry_in_s=wait_s)

    async def _try(self, outbox_message: OutboxMessage, account: Account | None) -> SendResult:
        try:
            message = self._composed(outbox_message, account)
        except Unwritable as error:
            return SendResult(str(error), final=True)
        return await self._mailer.send(message)

    def _composed(self, outbox_message: OutboxMessage, account: Account | None) -> EmailMessage:
        """The mail of a message. Raises Unwritable, also where nobody wants it any more."""
        is_of_list = outbox_message.name.startswith(list_mail.OF_LISTS)  # was asked for by itself
        if account is None or not (account.alerts or is_of_list):
            raise Unwritable("the account wants none")
        to = {"dashboard_url": self._dashboard_url, "sender": self._sender}
        if is_of_list:
            done = read_body(outbox_message.body, list_mail.DoneList)
            if self._now() > done.at + STALE_AFTER:
                raise Unwritable("the list is long done")
            return list_mail.compose_list(done, account, **to)
        alert = read_body(outbox_message.body, Alert)
        if self._now() > alert.figures.period_end + STALE_AFTER:
            raise Unwritable("its period is long over")
        return compose(alert, account, **to)

    def _wait_s(self, message: OutboxMessage) -> float | None:
        """Return the seconds until the next try; None after TRIED_FOR."""
        now = self._now()
        tried = now - (message.first_tried_at or now)
        return RETRY.pause_s(
            message.tries + 1, chance=self._rng.random(), tried_s=tried.total_seconds()
        )


def _log_send_result(
    message: OutboxMessage,
    account: Account | None,
    send_result: SendResult,
    due_at: datetime | None,
) -> None:
    to = printable(shortened(account.email)) if account else None
    what = f"account={message.account_id} alert={message.name} to={to}"
    if send_result.why is None:
        log.info("alert sent: %s", what)
    elif due_at is not None:
        log.warning(
            "alert failed: %s next_try=%s error=%s", what, due_at.isoformat(), send_result.why
        )
    else:
        log.warning("alert given up: %s error=%s", what, send_result.why)


# -- opening -----------------------------------------------------------------------------------


@asynccontextmanager
async def open_alerts(
    store: Store,
    plans: Plans,
    links: Links,
    *,
    now: Callable[[], datetime],
    url: str | None,
    sender: str | None,
    rng: random.Random,
    mailer: Mailer | None = None,
) -> AsyncIterator[Alerts]:
    """Detect and send alerts for the duration of the block; the quota service calls `watch`.

    Without a relay's URL (or a mailer) messages stay due in the outbox. Leaving the
    block waits up to a second for the current message. Raises WrongSetting.
    """
    if mailer is None and url is not None:
        mailer = RelayMailer(relay_of(url))
    workers = []
    if mailer is not None:
        sender = sender_of(sender or f"mailprobe@{host_name()}")
        alert_sender = AlertSender(
            store, mailer, now=now, rng=rng, dashboard_url=links.dashboard_url, sender=sender
        )
        workers = [alert_sender.worker()]
    wake_sender = workers[0].wake if workers else None
    alerts = Alerts(store, plans, now=now, notify_sender=wake_sender)
    async with open_workers(*workers), running_loops(alerts.check_changed, alerts.sweep):
        yield alerts


def relay_of(url: str) -> Relay:
    """The relay of MAILPROBE_ALERT_SMTP_URL. Raises WrongSetting."""
    try:
        return read_relay(url, host_name())
    except ValueError:  # its message might contain the password
        raise WrongSetting("MAILPROBE_ALERT_SMTP_URL cannot be read") from None


def sender_of(sender: str) -> str:
    """The sender, if it is a valid header address; else raises WrongSetting."""
    with suppress(ValueError, MessageError, IndexError):
        address = Address(addr_spec=sender)
        if address.domain:
            return address.addr_spec
    raise WrongSetting(f"MAILPROBE_ALERT_FROM is {sender!r}: it takes an e-mail address")
