"""Alerts: each threshold is noticed once for each billing period."""

import random
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import trio
from msgspec.structs import replace

from mailprobe.api.alerts.sender import POLL_S, open_alerts
from mailprobe.api.alerts.smtp_relay import (
    SendResult,
)
from tests.api.alerts.alerts_fixture import EUR, FEW, Mailbox
from tests.api.service_fixture import PLACES, START, open_shop

# -- once per threshold and period ------------------------------------------------------------


async def test_each_threshold_is_notified_when_it_is_crossed(autojump_clock, setup):
    account = await setup.account()
    async with setup.open() as alerts:
        reported = []
        for _ in range(21):
            await setup.use_before(alerts, account, 1)
            reported.append(len(setup.box.taken))
        assert set(setup.box.subjects) == {"75 %", "90 %", "100 %"}
        assert reported == [0] * 14 + [1] * 3 + [2] * 2 + [3] * 2


async def test_a_free_accounts_alert_counts_the_months_units_billable_or_not(autojump_clock, setup):
    account = await setup.account("free")
    async with setup.open() as alerts:
        alerts.watch(await setup.use(account, 15, billable=False), False)
        await trio.sleep(2)
        assert setup.box.subjects == ["75 %"]
        assert "free monthly quota" in setup.box.taken[0]["Subject"]


async def test_a_jump_over_thresholds_is_a_mail_for_each(autojump_clock, setup):
    account = await setup.account(soft_cap_micros=EUR)
    async with setup.open() as alerts:
        await setup.use_before(alerts, account, 30)
        assert set(setup.box.subjects) == {"75 %", "90 %", "100 %", "soft cap"}


async def test_they_go_to_the_accounts_address(autojump_clock, setup):
    account = await setup.account()
    async with setup.open() as alerts:
        await setup.use_before(alerts, account, 15)
    (message,) = setup.box.taken
    assert str(message["To"]) == "ann@example.org"
    assert str(message["From"]) == "mailprobe <alerts@mailprobe.test>"
    assert PLACES.dashboard_url in message.get_body(("plain",)).get_content()


async def test_processes_on_one_store_send_one_mail(autojump_clock, setup):
    account = await setup.account()
    async with setup.open() as first, setup.open() as second, setup.open():
        for _ in range(10):
            caller = await setup.use(account, 2)
            first.watch(caller, False)
            second.watch(caller, False)
            await trio.sleep(0.3)
        await trio.sleep(60)
    assert set(setup.box.subjects) == {"75 %", "90 %", "100 %"}


async def test_a_restart_repeats_nothing_and_forgets_nothing(autojump_clock, setup):
    account = await setup.account()
    async with setup.open() as alerts:
        await setup.use_before(alerts, account, 15)
    await setup.use(account, 3)  # and the process was killed before it noticed
    for _ in range(3):
        async with setup.open():
            await trio.sleep(30)
    assert setup.box.subjects == ["75 %", "90 %"]


async def test_each_period_has_its_own_alert(autojump_clock, setup):
    account = await setup.account("free")
    async with setup.open() as alerts:
        await setup.use_before(alerts, account, 15)
        setup.clock.set(datetime(2026, 4, 2, tzinfo=UTC))
        await setup.use_before(alerts, account, 14)
        assert setup.box.subjects == ["75 %"]
        await setup.use_before(alerts, account, 1)
        assert setup.box.subjects == ["75 %", "75 %"]


async def test_a_subscriptions_period_counts_and_not_the_month(autojump_clock, setup):
    period = {"current_period_start": START - timedelta(days=30), "current_period_end": START}
    period["current_period_end"] += timedelta(minutes=1)
    account = await setup.account(**period)
    async with setup.open() as alerts:
        await setup.use_before(alerts, account, 15)
        await trio.sleep(60)
        await setup.use_before(alerts, account, 15)  # of the next, and the provider hasn't said so
        assert setup.box.subjects == ["75 %"]
        start = period["current_period_end"]
        period = {"current_period_start": start, "current_period_end": start + timedelta(days=30)}
        await setup.store.change_account(account.id, **period)
        await setup.use_before(alerts, account, 1)
        assert setup.box.subjects == ["75 %", "75 %"]
        assert [message.name for message in await setup.messages()] == [
            "2026-02-12T09:26:53Z 75",
            "2026-03-14T09:27:53Z 75",
        ]


async def test_reserved_units_that_are_released_cause_no_alert(autojump_clock, setup):
    account = await setup.account("free")
    async with setup.open() as alerts:
        caller = await setup.caller(account)
        await setup.store.reserve(caller, 20, lambda ledger: None, lease_s=30)
        alerts.watch(caller, False)
        await trio.sleep(5)
        assert setup.box.tries == []


async def test_an_upgrade_in_mid_month_has_thresholds_of_its_own(autojump_clock, setup):
    account = await setup.account("free")
    async with setup.open() as alerts:
        await setup.use_before(alerts, account, 15)
        await setup.store.change_account(account.id, tier="builder")
        await setup.use_before(alerts, account, 1)
        subjects = [message["Subject"] for message in setup.box.taken]
    assert ["free" in subject for subject in subjects] == [True, False]
    assert setup.box.subjects == ["75 %", "75 %"]


async def test_an_account_in_constant_use_is_looked_at_once_a_second(autojump_clock, setup):
    account = await setup.account()
    async with setup.open() as alerts:
        await trio.sleep(5)
        caller = await setup.use(account, 16)
        setup.store.calls.clear()
        for _ in range(1000):
            alerts.watch(caller, False)
            await trio.sleep(0.01)
        assert setup.store.calls.count("ledger") == pytest.approx(10, abs=1)
        assert setup.store.calls.count("enqueue_message") == 1


async def test_a_look_at_nobody_costs_nothing(autojump_clock, setup):
    async with setup.open():
        await trio.sleep(1)
        setup.store.calls.clear()
        await trio.sleep(10 * POLL_S)
        assert set(setup.store.calls) == {"claim_messages"}
        assert len(setup.store.calls) == pytest.approx(10, abs=1)


# -- what the account wants -------------------------------------------------------------------


async def test_nothing_is_posted_while_alerts_are_off(autojump_clock, setup):
    account = await setup.account(alerts=False)
    async with setup.open() as alerts:
        await setup.use_before(alerts, account, 19)
        assert await setup.messages() == []
        await setup.store.change_account(account.id, alerts=True)
        await setup.use_before(alerts, account, 0 + 1)
        assert set(setup.box.subjects) == {"75 %", "90 %", "100 %"}


async def test_a_caller_of_before_the_change_changes_nothing(autojump_clock, setup):
    """A stream keeps the account record from when it began."""
    account = await setup.account()
    async with setup.open() as alerts:
        before = await setup.caller(account)
        await setup.store.change_account(account.id, alerts=False)
        await setup.use(account, 16)
        alerts.watch(before, False)
        await trio.sleep(2)
        assert setup.box.tries == []


async def test_a_message_that_nobody_wants_any_more_is_not_sent(autojump_clock, setup):
    setup.box.results = [SendResult("450 later")]
    account = await setup.account()
    async with setup.open() as alerts:
        await setup.use_before(alerts, account, 15)
        await setup.store.change_account(account.id, alerts=False)
        await trio.sleep(3600)
    assert len(setup.box.tries) == 1
    (message,) = await setup.messages()
    assert (message.due_at, message.sent_at) == (None, None)


async def test_a_soft_cap_set_later_holds_from_the_next_use_on(autojump_clock, setup):
    account = await setup.account()
    async with setup.open() as alerts:
        await setup.use_before(alerts, account, 30)
        await setup.store.change_account(account.id, soft_cap_micros=11 * EUR)
        await trio.sleep(60)
        assert "soft cap" not in setup.box.subjects
        await setup.use_before(alerts, account, 1)
        assert setup.box.subjects[3:] == ["soft cap"]


async def test_a_cap_raised_before_the_check_causes_no_hard_cap_alert(autojump_clock, setup):
    account = await setup.account(hard_cap_micros=5 * EUR, soft_cap_micros=5 * EUR)
    async with setup.open() as alerts:
        await trio.sleep(2)  # the first look is over
        refused = await setup.use(account, 25)
        await setup.store.change_account(
            account.id, hard_cap_micros=50 * EUR, soft_cap_micros=50 * EUR
        )
        alerts.watch(refused, True)
        await trio.sleep(2)
        assert set(setup.box.subjects) == {"75 %", "90 %", "100 %"}
        alerts.watch(await setup.caller(account), True)
        await trio.sleep(2)
        assert setup.box.subjects[3:] == ["hard cap"]


async def test_a_cap_reached_again_in_one_period_causes_one_alert(autojump_clock, setup):
    account = await setup.account(soft_cap_micros=EUR)
    async with setup.open() as alerts:
        await setup.use_before(alerts, account, 21)
        await setup.store.change_account(account.id, soft_cap_micros=2 * EUR)
        await setup.use_before(alerts, account, 5)
        assert setup.box.subjects.count("soft cap") == 1


async def test_the_quota_tells_of_use_and_of_402(autojump_clock):
    """Test the whole service, from the request to the mail."""
    box = Mailbox()
    received: list[Any] = []
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


async def test_the_start_looks_at_every_account_once_and_gently(autojump_clock, setup):
    accounts = [await setup.account("free") for _ in range(200)]
    accounts.append(await setup.account("free", keys=0))
    for account in accounts[:20]:
        await setup.use(account, 15)
    await setup.store.change_account(accounts[0].id, alerts=False)
    began = trio.current_time()
    async with setup.open():
        await trio.sleep(1)
        assert setup.store.calls.count("ledger") <= 110
        await trio.sleep(60)
    assert len(setup.box.taken) == 19
    assert setup.store.calls.count("ledger") == 199
    assert trio.current_time() - began == pytest.approx(61)


async def test_the_start_does_not_take_past_use_for_a_402(autojump_clock, setup):
    account = await setup.account(hard_cap_micros=0)
    await setup.use(account, 25)
    async with setup.open():
        await trio.sleep(2)
        assert set(setup.box.subjects) == {"75 %", "90 %", "100 %"}


# -- an unavailable store ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "away",
    ["account", "ledger", "enqueue_message", "claim_messages", "message_attempted", "everything"],
)
async def test_an_alert_check_is_repeated_after_the_store_was_unavailable(
    autojump_clock, setup, caplog, away
):
    accounts = [await setup.account(), await setup.account()]
    async with setup.open() as alerts:
        await trio.sleep(5)
        callers = [await setup.use(account, 15) for account in accounts]
        setup.store.away = away == "everything" or {away}
        for caller in callers:
            alerts.watch(caller, False)
        await trio.sleep(7)
        setup.store.away = False
        await trio.sleep(2 * POLL_S)
    assert setup.box.subjects == ["75 %", "75 %"]
    assert "error=the disk is gone" in caplog.text


@pytest.mark.parametrize("away", ["accounts", "keys", "account", "ledger", "everything"])
async def test_a_start_without_the_store_is_made_up_for(autojump_clock, setup, away):
    for account in [await setup.account(), await setup.account()]:
        await setup.use(account, 15)
    setup.store.away = away == "everything" or {away}
    async with setup.open():
        await trio.sleep(7)
        setup.store.away = False
        await trio.sleep(2 * POLL_S)
    assert setup.box.subjects == ["75 %", "75 %"]
