"""Shared set-up of the alert tests: a store, an account, and a mailer that records mails."""

import random
from dataclasses import dataclass, field
from email.message import EmailMessage
from typing import Any

import trio
from msgspec.structs import replace

from mailprobe.api.alerts.sender import Alerts, open_alerts
from mailprobe.api.alerts.smtp_relay import (
    ACCEPTED,
    SendResult,
)
from mailprobe.api.quota.plans import PLANS, Plans
from mailprobe.storage.records import Account, Caller, Tier, UsageRow
from mailprobe.storage.sqlite.memory import MemoryStore
from tests.api.service_fixture import PLACES, Clock, Unsteady

EUR = 1_000_000
FEW: Plans = {
    **PLANS,
    "free": replace(PLANS["free"], monthly_calls=20, rate_limit_per_min=1000),
    "builder": replace(PLANS["builder"], monthly_calls=20, price_micros_per_call=EUR),
    "scale": replace(PLANS["scale"], monthly_calls=100, price_micros_per_call=EUR),
}


@dataclass
class Mailbox:
    """A Mailer that accepts everything, or gives its scripted results."""

    results: list[SendResult] = field(default_factory=list)  # of the first attempts
    taken: list[EmailMessage] = field(default_factory=list)
    tries: list[float] = field(default_factory=list)
    takes_s: float = 0.0

    async def send(self, message: EmailMessage) -> SendResult:
        self.tries.append(trio.current_time())
        await trio.sleep(self.takes_s)
        send_result = self.results.pop(0) if self.results else ACCEPTED
        if send_result == ACCEPTED:
            self.taken.append(message)
        return send_result

    @property
    def subjects(self) -> list[str]:
        """The kinds of the mails taken; no Message-ID may come twice."""
        ids = [message["Message-ID"] for message in self.taken]
        assert len(set(ids)) == len(ids)
        return [kind_of(message) for message in self.taken]


def kind_of(message: EmailMessage) -> str:
    words = ("75 %", "90 %", "100 %", "soft cap", "hard cap")
    (word,) = (word for word in words if word in message["Subject"])
    return word


class AlertsSetup:
    """Everything that outlives a restart of the process."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.store: Any = Unsteady(MemoryStore(self.clock))
        self.box = Mailbox()
        self.rng = random.Random(7)

    async def account(self, tier: Tier = "builder", keys: int = 1, **changes: Any) -> Account:
        account = await self.store.create_account("ann@example.org", tier)
        for n in range(keys):
            await self.store.create_key(
                account.id, "standard", None, sha256=f"{account.id} {n}", prefix="", keys_max=None
            )
        changed: Account | None = await self.store.change_account(account.id, **changes)
        return changed or account

    async def caller(self, account: Account) -> Caller:
        caller = await self.store.caller(f"{account.id} 0")
        assert isinstance(caller, Caller)
        return caller

    async def use(self, account: Account, units: int, *, billable: bool = True) -> Caller:
        caller = await self.caller(account)
        reservation = await self.store.reserve(caller, units, lambda ledger: None, lease_s=60)
        row = UsageRow(self.clock(), "batch", "deliverable", None, 1, billable, 1)
        await self.store.settle(reservation, [row] * units)
        return caller

    async def use_before(self, alerts: Alerts, account: Account, units: int) -> None:
        """Use units while the alerts watch, and wait until the mails are sent."""
        alerts.watch(await self.use(account, units), False)
        await trio.sleep(2)

    def open(self, **more: Any) -> Any:
        given: dict[str, Any] = {"now": self.clock, "url": None, "sender": "alerts@mailprobe.test"}
        given |= {"rng": self.rng, "mailer": self.box}
        return open_alerts(self.store, FEW, PLACES, **{**given, **more})

    async def messages(self) -> list[Any]:
        return list(reversed(await self.store.messages("alert", limit=1000)))
