"""Alerts on their way: noticed, kept in the outbox, handed to a mail relay.

The meter tells whose usage has changed; a task looks at those accounts and posts a
letter for each threshold that they have reached. The letter's name is unique in the
store, so there is one however many processes look, and however often they start.
Another task hands due letters to the relay. A letter is marked as sent after the
relay has taken it: it is never lost, and it is sent twice only where a process or a
connection dies between the relay's yes and the mark. Its Message-ID is the same then.

Raises what is our own fault out of its nursery, never what the store or the relay does.
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

POLL_EVERY_S = 1.0  # at most so often at an account
SWEEP_PAUSE_S = 0.01  # between two accounts at the start: at most 100 a second
POSTED_KEPT_MAX = 100_000  # letters known to be in the outbox: 20 MiB; it is asked about others
POLL_S = 20.0  # between two looks for letters of other processes, and for retries
STORE_PAUSE_S = 2.0  # where the store cannot be asked

LEASE_S = 180.0  # longer than a hand-over with its yes: no two processes have one letter in hand
CLOSING_S = 1.0  # as long a stop waits for the mail that is under way; a stop has 10 s in all

RETRY_S = 60.0  # after the first failure; twice as long after each further one
RETRY_S_MAX = 6 * 3600.0
JITTER = 0.25  # of a pause, on top of it
TRIED_FOR = timedelta(days=3)
STALE_AFTER = timedelta(days=3)  # a period is over: nobody acts on its thresholds any more

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
    """Learns whose usage has changed, and posts what they have reached; `open_alerts()` opens it."""

    def __init__(
        self,
        store: Store,
        plans: Plans,
        *,
        now: Callable[[], datetime],
        tell_outbox_worker: Callable[[], None] | None,
    ) -> None:
        self._store = store
        self._plans = plans
        self._now = now
        self._notify_sender = tell_outbox_worker
        self._changed: dict[str, Key] = {}  # by account; each at most once
        self._refused: dict[str, tuple[Tier, int | None]] = {}  # on which terms, by account
        self._stirred = trio.Event()
        self._posted: set[tuple[str, str]] = set()  # by account and name

    def watch(self, caller: Caller, capped: bool) -> None:
        """The meter's Watch: this caller's usage has changed, or the hard cap has refused it."""
        account = caller.account
        self._changed[account.id] = caller.key
        if capped:
            self._refused[account.id] = account.tier, account.hard_cap_micros
        self._stirred.set()

    async def check_changed(self) -> None:
        """Look at them as they come, in rounds that last a second at least."""
        while True:
            await self._stirred.wait()
            self._stirred = trio.Event()
            changed, self._changed = self._changed, {}
            for account_id, key in changed.items():
                await contained(self._poll, account_id, key)
            await trio.sleep(POLL_EVERY_S)

    async def sweep(self) -> None:
        """Look at every account once: a process that was killed could not."""
        for account in await _until_answered(self._store.accounts, "the alerts' first look"):
            if account.alerts:
                await contained(self._poll_without_key, account.id)
            await trio.sleep(SWEEP_PAUSE_S)

    async def _poll_without_key(self, account_id: str) -> None:
        """By any of its keys; an account that has none uses nothing."""
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
        """By the account as it is now: its caps, its plan and its wish may have changed since."""
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
    """Until the next try, after so many failures before this one; `jitter` is from 0 to 1."""
    pause = min(RETRY_S * 2.0 ** min(tries, 20), RETRY_S_MAX)
    return pause * (1 + JITTER * jitter)


class AlertSender:
    """Sends letters, one at a time."""

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
        """There is a letter."""
        self._wake_event.set()
        self._wake_event = trio.Event()

    def close(self) -> None:
        """Finish what is in hand within CLOSING_S; whoever calls this cancels the rest."""
        self._closes_at = trio.current_time() + CLOSING_S
        if self._in_flight is not None:
            self._in_flight.deadline = self._closes_at

    async def send_due(self) -> None:
        while True:
            bell = self._wake_event
            messages = await _until_answered(self._claim, "letters")
            for message in messages:
                await contained(self._send, message)
            if not messages:
                with trio.move_on_after(POLL_S):
                    await bell.wait()

    async def _claim(self) -> list[OutboxMessage]:
        # one: the lease of a second would run out while the relay is slow with the first
        return await self._store.claim_messages("alert", limit=1, lease_s=LEASE_S)

    async def _send(self, message: OutboxMessage) -> None:
        """Once begun it is finished and marked, a stop or not: half of it would be a second copy."""
        with trio.CancelScope(shield=True, deadline=self._closes_at) as self._in_flight:
            try:
                account = await self._store.account(message.account_id)
            except StoreUnavailable as error:
                # not tried again here: the lease runs, and must not end in the middle of a mail
                log.warning("alert %s must wait: %s", message.name, error)
                return
            send_result = await self._try(message, account)
            await self._mark(message, account, send_result)

    async def _try(self, letter: OutboxMessage, account: Account | None) -> SendResult:
        if account is None or not account.alerts:
            return SendResult("the account wants none", final=True)
        try:
            alert = from_body(letter.body)
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
        """None: it has been tried for long enough."""
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
    """Notice and send as long as the block lasts; its `watch` is the meter's.

    Without a relay's URL (or a mailer) letters are kept, due, in the outbox. Leaving
    the block finishes the mail that is under way, within CLOSING_S. Raises WrongSetting.
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
        store, plans, now=now, tell_outbox_worker=outbox_worker.wake if outbox_worker else None
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
    except ValueError:  # whose words might repeat the password
        raise WrongSetting("MAILPROBE_ALERT_SMTP_URL cannot be read") from None


def _checked(sender: str) -> str:
    """An address that a header can hold."""
    try:
        address = Address(addr_spec=sender)
        if address.domain:
            return address.addr_spec
    except (ValueError, MessageError, IndexError):
        pass
    raise WrongSetting(f"MAILPROBE_ALERT_FROM is {sender!r}: it takes an e-mail address")
