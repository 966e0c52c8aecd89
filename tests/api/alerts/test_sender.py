"""Alerts: each threshold is noticed once, and its mail is kept until somebody has taken it."""

import random
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from email.message import EmailMessage
from typing import Any

import pytest
import trio

from mailprobe.api.alerts.sender import LEASE_S, POLL_S, Alerts, open_alerts, pause_s
from mailprobe.api.alerts.smtp_relay import (
    ACCEPTED,
    ANSWER_S,
    DELIVERY_S,
    Relay,
    SendResult,
    read_relay,
    shortened,
)
from mailprobe.api.quota.plans import PLANS, Plans
from mailprobe.api.settings import WrongSetting
from mailprobe.storage.memory.store import MemoryStore
from mailprobe.storage.records import Account, Caller, Tier, UsageRow
from tests.api.service_fixture import PLACES, START, Clock, Unsteady, open_shop

EUR = 1_000_000
FEW: Plans = {
    **PLANS,
    "free": replace(PLANS["free"], monthly_calls=20, rate_limit_per_min=1000),
    "builder": replace(PLANS["builder"], monthly_calls=20, price_micros_per_call=EUR),
    "scale": replace(PLANS["scale"], monthly_calls=100, price_micros_per_call=EUR),
}


# -- an office: a store, an account, and a mailer that remembers ----------------------------------


@dataclass
class Mailbox:
    """A Mailer that takes everything, or what its script says."""

    fates: list[SendResult] = field(default_factory=list)  # of the first tries
    taken: list[EmailMessage] = field(default_factory=list)
    tries: list[float] = field(default_factory=list)
    takes_s: float = 0.0

    async def send(self, message: EmailMessage) -> SendResult:
        self.tries.append(trio.current_time())
        await trio.sleep(self.takes_s)
        send_result = self.fates.pop(0) if self.fates else ACCEPTED
        if send_result == ACCEPTED:
            self.taken.append(message)
        return send_result

    @property
    def subjects(self) -> list[str]:
        """What was told of, without the words around it; and nothing twice."""
        ids = [message["Message-ID"] for message in self.taken]
        assert len(set(ids)) == len(ids)
        return [told_of(message) for message in self.taken]


def told_of(message: EmailMessage) -> str:
    words = ("75 %", "90 %", "100 %", "soft cap", "hard cap")
    (word,) = (word for word in words if word in message["Subject"])
    return word


class Office:
    """Everything but the process: what is here outlives a restart."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.store = Unsteady(MemoryStore(self.clock))
        self.box = Mailbox()
        self.rng = random.Random(7)

    async def account(self, tier: Tier = "builder", keys: int = 1, **changes: Any) -> Account:
        account = await self.store.create_account("ann@example.org", tier)
        for n in range(keys):
            await self.store.create_key(
                account.id, "standard", None, sha256=f"{account.id} {n}", prefix="", keys_max=None
            )
        return await self.store.change_account(account.id, **changes) or account

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
        """Use so much before the eyes of the alerts, and wait until the mails are out."""
        alerts.watch(await self.use(account, units), False)
        await trio.sleep(2)

    def open(self, **more: Any) -> Any:
        given = {"now": self.clock, "url": None, "sender": "alerts@mailprobe.test"}
        given |= {"rng": self.rng, "mailer": self.box}
        return open_alerts(self.store, FEW, PLACES, **{**given, **more})

    async def messages(self) -> list[Any]:
        return list(reversed(await self.store.messages("alert", limit=1000)))


@pytest.fixture
async def office() -> Office:
    return Office()


# -- once per threshold and period ------------------------------------------------------------


async def test_each_threshold_is_told_of_when_it_is_crossed(autojump_clock, office):
    account = await office.account()
    async with office.open() as alerts:
        reported = []
        for _ in range(21):
            await office.use_before(alerts, account, 1)
            reported.append(len(office.box.taken))
        assert set(office.box.subjects) == {"75 %", "90 %", "100 %"}
        assert reported == [0] * 14 + [1] * 3 + [2] * 2 + [3] * 2


async def test_a_free_account_is_told_of_its_months_units_billable_or_not(autojump_clock, office):
    account = await office.account("free")
    async with office.open() as alerts:
        alerts.watch(await office.use(account, 15, billable=False), False)
        await trio.sleep(2)
        assert office.box.subjects == ["75 %"]
        assert "free monthly quota" in office.box.taken[0]["Subject"]


async def test_a_jump_over_thresholds_is_a_mail_for_each(autojump_clock, office):
    account = await office.account(soft_cap_micros=EUR)
    async with office.open() as alerts:
        await office.use_before(alerts, account, 30)
        assert set(office.box.subjects) == {"75 %", "90 %", "100 %", "soft cap"}


async def test_they_go_to_the_accounts_address(autojump_clock, office):
    account = await office.account()
    async with office.open() as alerts:
        await office.use_before(alerts, account, 15)
    (message,) = office.box.taken
    assert str(message["To"]) == "ann@example.org"
    assert str(message["From"]) == "mailprobe <alerts@mailprobe.test>"
    assert PLACES.dashboard_url in message.get_body(("plain",)).get_content()


async def test_processes_on_one_store_send_one_mail(autojump_clock, office):
    account = await office.account()
    async with office.open() as first, office.open() as second, office.open():
        for _ in range(10):
            caller = await office.use(account, 2)
            first.watch(caller, False)
            second.watch(caller, False)
            await trio.sleep(0.3)
        await trio.sleep(60)
    assert set(office.box.subjects) == {"75 %", "90 %", "100 %"}


async def test_a_restart_repeats_nothing_and_forgets_nothing(autojump_clock, office):
    account = await office.account()
    async with office.open() as alerts:
        await office.use_before(alerts, account, 15)
    await office.use(account, 3)  # and the process was killed before it noticed
    for _ in range(3):
        async with office.open():
            await trio.sleep(30)
    assert office.box.subjects == ["75 %", "90 %"]


async def test_the_next_period_is_told_of_again(autojump_clock, office):
    account = await office.account("free")
    async with office.open() as alerts:
        await office.use_before(alerts, account, 15)
        office.clock.set(datetime(2026, 4, 2, tzinfo=UTC))
        await office.use_before(alerts, account, 14)
        assert office.box.subjects == ["75 %"]
        await office.use_before(alerts, account, 1)
        assert office.box.subjects == ["75 %", "75 %"]


async def test_a_subscriptions_period_counts_and_not_the_month(autojump_clock, office):
    period = {"current_period_start": START - timedelta(days=30), "current_period_end": START}
    period["current_period_end"] += timedelta(minutes=1)
    account = await office.account(**period)
    async with office.open() as alerts:
        await office.use_before(alerts, account, 15)
        await trio.sleep(60)
        await office.use_before(alerts, account, 15)  # of the next, and the provider hasn't said so
        assert office.box.subjects == ["75 %"]
        start = period["current_period_end"]
        period = {"current_period_start": start, "current_period_end": start + timedelta(days=30)}
        await office.store.change_account(account.id, **period)
        await office.use_before(alerts, account, 1)
        assert office.box.subjects == ["75 %", "75 %"]
        assert [message.name for message in await office.messages()] == [
            "2026-02-12T09:26:53Z 75",
            "2026-03-14T09:27:53Z 75",
        ]


async def test_units_that_are_given_back_are_not_told_of(autojump_clock, office):
    account = await office.account("free")
    async with office.open() as alerts:
        caller = await office.caller(account)
        await office.store.reserve(caller, 20, lambda ledger: None, lease_s=30)
        alerts.watch(caller, False)
        await trio.sleep(5)
        assert office.box.tries == []


async def test_an_upgrade_in_mid_month_has_thresholds_of_its_own(autojump_clock, office):
    account = await office.account("free")
    async with office.open() as alerts:
        await office.use_before(alerts, account, 15)
        await office.store.change_account(account.id, tier="builder")
        await office.use_before(alerts, account, 1)
        subjects = [message["Subject"] for message in office.box.taken]
    assert ["free" in subject for subject in subjects] == [True, False]
    assert office.box.subjects == ["75 %", "75 %"]


async def test_an_account_in_constant_use_is_looked_at_once_a_second(autojump_clock, office):
    account = await office.account()
    async with office.open() as alerts:
        await trio.sleep(5)
        caller = await office.use(account, 16)
        office.store.calls.clear()
        for _ in range(1000):
            alerts.watch(caller, False)
            await trio.sleep(0.01)
        assert office.store.calls.count("ledger") == pytest.approx(10, abs=1)
        assert office.store.calls.count("enqueue_message") == 1


async def test_a_look_at_nobody_costs_nothing(autojump_clock, office):
    async with office.open():
        await trio.sleep(1)
        office.store.calls.clear()
        await trio.sleep(10 * POLL_S)
        assert set(office.store.calls) == {"claim_messages"}
        assert len(office.store.calls) == pytest.approx(10, abs=1)


# -- what the account wants -------------------------------------------------------------------


async def test_nothing_is_posted_while_alerts_are_off(autojump_clock, office):
    account = await office.account(alerts=False)
    async with office.open() as alerts:
        await office.use_before(alerts, account, 19)
        assert await office.messages() == []
        await office.store.change_account(account.id, alerts=True)
        await office.use_before(alerts, account, 0 + 1)
        assert set(office.box.subjects) == {"75 %", "90 %", "100 %"}


async def test_a_caller_of_before_the_change_changes_nothing(autojump_clock, office):
    """A stream knows its account as it was when it began."""
    account = await office.account()
    async with office.open() as alerts:
        before = await office.caller(account)
        await office.store.change_account(account.id, alerts=False)
        await office.use(account, 16)
        alerts.watch(before, False)
        await trio.sleep(2)
        assert office.box.tries == []


async def test_a_message_that_nobody_wants_any_more_is_not_sent(autojump_clock, office):
    office.box.fates = [SendResult("450 later")]
    account = await office.account()
    async with office.open() as alerts:
        await office.use_before(alerts, account, 15)
        await office.store.change_account(account.id, alerts=False)
        await trio.sleep(3600)
    assert len(office.box.tries) == 1
    (message,) = await office.messages()
    assert (message.due_at, message.sent_at) == (None, None)


async def test_a_soft_cap_set_later_holds_from_the_next_use_on(autojump_clock, office):
    account = await office.account()
    async with office.open() as alerts:
        await office.use_before(alerts, account, 30)
        await office.store.change_account(account.id, soft_cap_micros=11 * EUR)
        await trio.sleep(60)
        assert "soft cap" not in office.box.subjects
        await office.use_before(alerts, account, 1)
        assert office.box.subjects[3:] == ["soft cap"]


async def test_a_cap_that_was_raised_before_the_look_is_not_told_of(autojump_clock, office):
    account = await office.account(hard_cap_micros=5 * EUR, soft_cap_micros=5 * EUR)
    async with office.open() as alerts:
        await trio.sleep(2)  # the first look is over
        refused = await office.use(account, 25)
        await office.store.change_account(
            account.id, hard_cap_micros=50 * EUR, soft_cap_micros=50 * EUR
        )
        alerts.watch(refused, True)
        await trio.sleep(2)
        assert set(office.box.subjects) == {"75 %", "90 %", "100 %"}
        alerts.watch(await office.caller(account), True)
        await trio.sleep(2)
        assert office.box.subjects[3:] == ["hard cap"]


async def test_a_cap_reached_again_in_one_period_is_told_of_once(autojump_clock, office):
    account = await office.account(soft_cap_micros=EUR)
    async with office.open() as alerts:
        await office.use_before(alerts, account, 21)
        await office.store.change_account(account.id, soft_cap_micros=2 * EUR)
        await office.use_before(alerts, account, 5)
        assert office.box.subjects.count("soft cap") == 1


async def test_the_quota_tells_of_use_and_of_402(autojump_clock):
    """The service itself, from the request to the mail."""
    box, received = Mailbox(), []
    plans = {**FEW, "builder": replace(FEW["builder"], monthly_calls=4)}
    async with (
        open_shop("builder", plans=plans, watch=lambda *reported: received[0].watch(*reported)) as shop,
        open_alerts(
            shop.store, plans, PLACES, now=shop.clock, url=None, sender="a@b.test",
            rng=random.Random(1), mailer=box,
        ) as alerts,
    ):  # fmt: skip
        received.append(alerts)
        await shop.change(hard_cap_micros=0)
        assert (await shop.batch(*["known@friendly.test"] * 3)).status == 200
        await trio.sleep(2)
        assert box.subjects == ["75 %"]
        assert (await shop.batch(*["known@friendly.test"] * 2)).status == 402
        await trio.sleep(2)
        assert box.subjects == ["75 %", "hard cap"]
        assert (await shop.verify()).status == 200
        for _ in range(3):
            assert (await shop.verify()).status == 402
        await trio.sleep(2)
        assert set(box.subjects) == {"75 %", "hard cap", "90 %", "100 %"}


# -- the first look ---------------------------------------------------------------------------


async def test_the_start_looks_at_every_account_once_and_gently(autojump_clock, office):
    accounts = [await office.account("free") for _ in range(200)]
    accounts.append(await office.account("free", keys=0))
    for account in accounts[:20]:
        await office.use(account, 15)
    await office.store.change_account(accounts[0].id, alerts=False)
    began = trio.current_time()
    async with office.open():
        await trio.sleep(1)
        assert office.store.calls.count("ledger") <= 110
        await trio.sleep(60)
    assert len(office.box.taken) == 19
    assert office.store.calls.count("ledger") == 199
    assert trio.current_time() - began == pytest.approx(61)


async def test_the_start_does_not_take_past_use_for_a_402(autojump_clock, office):
    account = await office.account(hard_cap_micros=0)
    await office.use(account, 25)
    async with office.open():
        await trio.sleep(2)
        assert set(office.box.subjects) == {"75 %", "90 %", "100 %"}


# -- a store that is away ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "away",
    ["account", "ledger", "enqueue_message", "claim_messages", "message_attempted", "everything"],
)
async def test_what_the_store_cannot_be_asked_is_asked_later(autojump_clock, office, caplog, away):
    accounts = [await office.account(), await office.account()]
    async with office.open() as alerts:
        await trio.sleep(5)
        callers = [await office.use(account, 15) for account in accounts]
        office.store.away = away == "everything" or {away}
        for caller in callers:
            alerts.watch(caller, False)
        await trio.sleep(7)
        office.store.away = False
        await trio.sleep(2 * POLL_S)
    assert office.box.subjects == ["75 %", "75 %"]
    assert "must wait: the disk is gone" in caplog.text


@pytest.mark.parametrize("away", ["accounts", "keys", "account", "ledger", "everything"])
async def test_a_start_without_the_store_is_made_up_for(autojump_clock, office, away):
    for account in [await office.account(), await office.account()]:
        await office.use(account, 15)
    office.store.away = away == "everything" or {away}
    async with office.open():
        await trio.sleep(7)
        office.store.away = False
        await trio.sleep(2 * POLL_S)
    assert office.box.subjects == ["75 %", "75 %"]


async def test_a_message_whose_account_cannot_be_read_waits_for_its_lease(autojump_clock, office):
    """A mail begun late in its lease might end after it, in the hands of two."""
    office.box.fates = [SendResult("450 later")]
    account = await office.account()
    async with office.open() as alerts:
        await office.use_before(alerts, account, 15)
        office.store.away = {"account"}
        await trio.sleep(60 * 1.25 + POLL_S)
        office.store.away = False
        await trio.sleep(60)
        assert len(office.box.tries) == 1
        await trio.sleep(LEASE_S)
        assert office.box.subjects == ["75 %"]


async def test_a_mail_that_was_taken_is_marked_before_anything_else_is_sent(autojump_clock, office):
    """Else it would be due again, and sent again."""
    account = await office.account()
    await office.use(account, 18)
    office.store.away = {"message_attempted"}
    async with office.open():
        await trio.sleep(LEASE_S / 2)
        assert len(office.box.tries) == 1
        office.store.away = False
        await trio.sleep(LEASE_S)
    assert office.box.subjects == ["75 %", "90 %"]


async def test_a_bug_of_ours_ends_one_look_alone(office, faults):
    async def broken(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError

    account = await office.account()
    async with office.open() as alerts:
        whole, office.store.store.ledger = office.store.store.ledger, broken
        await office.use_before(alerts, account, 1)
        assert faults
        office.store.store.ledger = whole
        await office.use_before(alerts, account, 15)
    assert office.box.subjects == ["75 %"]


# -- trying again -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tries", "least"),
    [
        (0, 60),
        (1, 120),
        (2, 240),
        (5, 1920),
        (8, 15_360),
        (9, 21_600),
        (50, 21_600),
        (10**6, 21_600),
    ],
)
def test_pauses_double_from_a_minute_to_six_hours(tries, least):
    assert pause_s(tries, 0.0) == least
    assert pause_s(tries, 1.0) == least * 1.25


async def test_a_mail_is_tried_until_it_is_taken(autojump_clock, office):
    office.box.fates = [SendResult("451 later")] * 3
    account = await office.account()
    async with office.open() as alerts:
        await office.use_before(alerts, account, 15)
        await trio.sleep(1800)
    assert office.box.subjects == ["75 %"]
    pauses = [b - a for a, b in zip(office.box.tries, office.box.tries[1:], strict=False)]
    for pause, least in zip(pauses, (60, 120, 240), strict=True):
        assert least <= pause <= least * 1.25 + POLL_S
    (message,) = await office.messages()
    assert (message.tries, message.due_at, message.error) == (4, None, None)
    assert message.sent_at


async def test_it_tells_the_figures_of_the_crossing(autojump_clock, office):
    office.box.fates = [SendResult("451 later")]
    account = await office.account()
    async with office.open() as alerts:
        await office.use_before(alerts, account, 15)
        await office.use_before(alerts, account, 2)
        await trio.sleep(120)
    assert "15 so far" in office.box.taken[-1].get_body(("plain",)).get_content()


async def test_after_three_days_it_is_given_up(autojump_clock, office, caplog):
    office.box.fates = [SendResult("the relay is gone")] * 1000
    account = await office.account()
    began = trio.current_time()
    async with office.open() as alerts:
        await office.use_before(alerts, account, 15)
        await trio.sleep(5 * 86_400)
    assert 2 * 86_400 < office.box.tries[-1] - began <= 3 * 86_400
    assert len(office.box.tries) < 25
    (message,) = await office.messages()
    assert (message.due_at, message.sent_at, message.error) == (None, None, "the relay is gone")
    assert "given up" in caplog.text


async def test_a_final_no_is_given_up_at_once(autojump_clock, office, caplog):
    office.box.fates = [SendResult("550 no such user", final=True)]
    account = await office.account()
    async with office.open() as alerts:
        await office.use_before(alerts, account, 15)
        await trio.sleep(86_400)
        assert len(office.box.tries) == 1
        await office.use_before(alerts, account, 3)
        assert office.box.subjects == ["90 %"]
    lines = [line for line in caplog.messages if "given up" in line]
    assert len(lines) == 1
    assert "550 no such user" in lines[0]
    assert "a…@example.org" in lines[0]
    assert "ann@" not in caplog.text


async def test_an_account_that_cannot_be_written_to_stops_nobody(autojump_clock, office, caplog):
    mute = await office.account(email="no address\r\nBcc: eve@example.org")
    account = await office.account()
    async with office.open() as alerts:
        await office.use_before(alerts, mute, 15)
        await office.use_before(alerts, account, 15)
    assert len(office.box.taken) == 1
    assert "cannot be written to" in caplog.text


async def test_a_message_of_another_version_stops_nobody(autojump_clock, office, caplog):
    account = await office.account()
    await office.store.enqueue_message(
        "alert", account.id, "x", b'{"kind":"80"}', due_at=office.clock()
    )
    async with office.open() as alerts:
        await office.use_before(alerts, account, 15)
    assert office.box.subjects == ["75 %"]
    assert "cannot be read" in caplog.text


async def test_a_period_that_is_long_over_is_told_of_no_more(autojump_clock, office, caplog):
    """Letters may wait for months for a relay's URL."""
    account = await office.account()
    async with office.open(mailer=None) as alerts:
        await office.use_before(alerts, account, 15)
    office.clock.set(datetime(2026, 4, 4, 0, 1, tzinfo=UTC))
    async with office.open():
        await trio.sleep(5)
    assert office.box.tries == []
    assert "long over" in caplog.text


# -- without a relay --------------------------------------------------------------------------


async def test_without_a_relay_messages_wait_and_each_is_logged_once(
    autojump_clock, office, caplog
):
    account = await office.account()
    for _ in range(2):
        async with office.open(mailer=None) as one, office.open(mailer=None) as other:
            caller = await office.use(account, 8)
            one.watch(caller, False)
            other.watch(caller, False)
            await trio.sleep(86_400)
    lines = [line for line in caplog.messages if "MAILPROBE_ALERT_SMTP_URL" in line]
    assert len(lines) == 1
    assert account.id in lines[0]
    assert "2026-03-01T00:00:00Z 75" in lines[0]
    (message,) = await office.messages()
    assert message.due_at
    async with office.open():
        await trio.sleep(5)
    assert office.box.subjects == ["75 %"]


# -- stopping ---------------------------------------------------------------------------------


async def test_a_mail_under_way_is_finished_by_a_stop(autojump_clock, office):
    account = await office.account()
    await office.use(account, 15)
    office.box.takes_s = 1.2
    with trio.move_on_after(0.5):
        async with office.open():
            await trio.sleep_forever()
    assert office.box.subjects == ["75 %"]
    (message,) = await office.messages()
    assert message.sent_at


async def test_a_stop_does_not_wait_for_a_relay_that_hangs(autojump_clock, office):
    account = await office.account()
    await office.use(account, 15)
    office.box.takes_s = 100
    began = trio.current_time()
    with trio.move_on_after(0.5):
        async with office.open():
            await trio.sleep_forever()
    assert trio.current_time() - began < 3
    assert office.box.taken == []
    office.box.takes_s = 0  # and the next process has it when the lease has ended
    async with office.open():
        await trio.sleep(LEASE_S + POLL_S + 1)
    assert office.box.subjects == ["75 %"]


async def test_no_second_process_takes_a_mail_that_is_under_way(autojump_clock, office):
    account = await office.account()
    await office.use(account, 15)
    office.box.takes_s = DELIVERY_S + ANSWER_S  # the longest that a relay may take
    async with office.open(), office.open(), office.open():
        await trio.sleep(1000)
    assert len(office.box.tries) == 1


async def test_a_stop_at_any_moment_loses_nothing(autojump_clock):
    """Each turn of the scheduler is a moment to die in."""
    unsent = 0
    for steps in range(60):
        office = Office()
        account = await office.account()
        await office.use(account, 15)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stay_open, office)
            for _ in range(steps):
                await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()
        unsent += not office.box.taken
        async with office.open():
            await trio.sleep(LEASE_S + POLL_S + 1)
        assert office.box.subjects == ["75 %"]
    assert 3 < unsent < 57


async def stay_open(office: Office) -> None:
    async with office.open():
        await trio.sleep_forever()


# -- what the operator says -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "relay"),
    [
        ("smtp://mail.test:2525", Relay("mail.test", 2525, False)),
        ("smtp://mail.test", Relay("mail.test", 25, False)),
        ("smtps://mail.test/", Relay("mail.test", 465, True)),
        ("smtp://[::1]:587", Relay("::1", 587, False)),
        ("smtps://a%40b:p%2Fw%3A%25@m.test:1", Relay("m.test", 1, True, "a@b", "p/w:%")),
        ("smtp://ann@m.test:1", Relay("m.test", 1, False, "ann", "")),
    ],
)
def test_a_relays_url_is_read(url, relay):
    assert read_relay(url, "localhost") == relay


def test_a_password_is_not_shown():
    assert "secret" not in repr(read_relay("smtp://ann:secret@m.test", "x"))


@pytest.mark.parametrize(
    "more",
    [
        {"url": "smtp://ann:secret@mail.test:secret"},
        {"url": "http://ann:secret@mail.test"},
        {"url": "smtp://ann:secret@"},
        {"url": "smtp://m.test", "sender": "nobody"},
        {"url": "smtp://m.test", "sender": "a@b@c"},
        {"url": "smtp://m.test", "sender": "a@b\r\nBcc: eve@x.test"},
        {"url": "smtp://m.test", "sender": "a@"},
    ],
)
async def test_what_cannot_be_used_is_said_before_it_is_needed(office, more):
    with pytest.raises(WrongSetting, match="MAILPROBE_ALERT_") as wrong:
        async with office.open(mailer=None, **more):
            pass
    assert "secret" not in str(wrong.value)


def test_an_address_is_shortened_for_the_log():
    assert shortened("ann.smith@example.org") == "a…@example.org"
    assert shortened('"a@b"@example.org') == '"…@example.org'
    assert shortened("") == "…"
