"""Alerts: each mail is kept until a relay has accepted it."""

from datetime import UTC, datetime
from typing import Any

import pytest
import trio

from mailprobe.api.alerts.sender import LEASE_S, POLL_S, RETRY
from mailprobe.api.alerts.smtp_relay import (
    ANSWER_S,
    DELIVERY_S,
    Relay,
    SendResult,
    read_relay,
)
from mailprobe.api.observability.logs import shortened
from mailprobe.api.settings import WrongSetting
from tests.api.alerts.alerts_fixture import AlertsSetup


async def test_a_message_whose_account_cannot_be_read_waits_for_its_lease(autojump_clock, setup):
    """A mail begun late in its lease could outlast it, and a second process would send it too."""
    setup.box.results = [SendResult("450 later")]
    account = await setup.account()
    async with setup.open() as alerts:
        await setup.use_before(alerts, account, 15)
        setup.store.away = {"account"}
        await trio.sleep(60 * 1.25 + POLL_S)
        setup.store.away = False
        await trio.sleep(60)
        assert len(setup.box.tries) == 1
        await trio.sleep(LEASE_S)
        assert setup.box.subjects == ["75 %"]


async def test_a_mail_that_was_taken_is_marked_before_anything_else_is_sent(autojump_clock, setup):
    """Otherwise the mail would be due again, and sent twice."""
    account = await setup.account()
    await setup.use(account, 18)
    setup.store.away = {"message_attempted"}
    async with setup.open():
        await trio.sleep(LEASE_S / 2)
        assert len(setup.box.tries) == 1
        setup.store.away = False
        await trio.sleep(LEASE_S)
    assert setup.box.subjects == ["75 %", "90 %"]


async def test_a_bug_of_ours_ends_one_look_alone(setup, faults):
    async def broken(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError

    account = await setup.account()
    async with setup.open() as alerts:
        whole, setup.store.store.ledger = setup.store.store.ledger, broken
        await setup.use_before(alerts, account, 1)
        assert faults
        setup.store.store.ledger = whole
        await setup.use_before(alerts, account, 15)
    assert setup.box.subjects == ["75 %"]


# -- retries ----------------------------------------------------------------------------------


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
    assert RETRY.pause_s(tries + 1, chance=0.0) == least
    assert RETRY.pause_s(tries + 1, chance=1.0) == least * 1.25


async def test_a_mail_is_tried_until_it_is_taken(autojump_clock, setup):
    setup.box.results = [SendResult("451 later")] * 3
    account = await setup.account()
    async with setup.open() as alerts:
        await setup.use_before(alerts, account, 15)
        await trio.sleep(1800)
    assert setup.box.subjects == ["75 %"]
    pauses = [b - a for a, b in zip(setup.box.tries, setup.box.tries[1:], strict=False)]
    for pause, least in zip(pauses, (60, 120, 240), strict=True):
        assert least <= pause <= least * 1.25 + POLL_S
    (message,) = await setup.messages()
    assert (message.tries, message.due_at, message.error) == (4, None, None)
    assert message.sent_at


async def test_it_tells_the_figures_of_the_crossing(autojump_clock, setup):
    setup.box.results = [SendResult("451 later")]
    account = await setup.account()
    async with setup.open() as alerts:
        await setup.use_before(alerts, account, 15)
        await setup.use_before(alerts, account, 2)
        await trio.sleep(120)
    assert "15 so far" in setup.box.taken[-1].get_body(("plain",)).get_content()


async def test_after_three_days_it_is_given_up(autojump_clock, setup, caplog):
    setup.box.results = [SendResult("the relay is gone")] * 1000
    account = await setup.account()
    began = trio.current_time()
    async with setup.open() as alerts:
        await setup.use_before(alerts, account, 15)
        await trio.sleep(3.5 * 86_400)
    assert 2 * 86_400 < setup.box.tries[-1] - began <= 3 * 86_400
    assert len(setup.box.tries) < 25
    (message,) = await setup.messages()
    assert (message.due_at, message.sent_at, message.error) == (None, None, "the relay is gone")
    assert "given up" in caplog.text


async def test_a_final_no_is_given_up_at_once(autojump_clock, setup, caplog):
    setup.box.results = [SendResult("550 no such user", final=True)]
    account = await setup.account()
    async with setup.open() as alerts:
        await setup.use_before(alerts, account, 15)
        await trio.sleep(86_400)
        assert len(setup.box.tries) == 1
        await setup.use_before(alerts, account, 3)
        assert setup.box.subjects == ["90 %"]
    lines = [line for line in caplog.messages if "given up" in line]
    assert len(lines) == 1
    assert "550 no such user" in lines[0]
    assert "a…@example.org" in lines[0]
    assert "ann@" not in caplog.text


@pytest.mark.parametrize(
    "email",
    ["no address\r\nBcc: eve@example.org", "=?utf-8?q?=0D=0ABcc?=@x.test", "=?x?q??=@x.test"],
)
async def test_an_account_that_cannot_be_written_to_stops_nobody(
    email, autojump_clock, setup, caplog
):
    mute = await setup.account(email=email)
    account = await setup.account()
    async with setup.open() as alerts:
        await setup.use_before(alerts, mute, 15)
        await setup.use_before(alerts, account, 15)
    assert len(setup.box.taken) == 1
    assert "cannot be written to" in caplog.text


async def test_a_message_of_another_version_stops_nobody(autojump_clock, setup, caplog):
    account = await setup.account()
    await setup.store.enqueue_message(
        "alert", account.id, "x", b'{"kind":"80"}', due_at=setup.clock()
    )
    async with setup.open() as alerts:
        await setup.use_before(alerts, account, 15)
    assert setup.box.subjects == ["75 %"]
    assert "cannot be read" in caplog.text


async def test_an_alert_of_a_period_that_is_long_over_is_not_sent(autojump_clock, setup, caplog):
    """Messages may wait for months until a relay's URL is configured."""
    account = await setup.account()
    async with setup.open(mailer=None) as alerts:
        await setup.use_before(alerts, account, 15)
    setup.clock.set(datetime(2026, 4, 4, 0, 1, tzinfo=UTC))
    async with setup.open():
        await trio.sleep(5)
    assert setup.box.tries == []
    assert "long over" in caplog.text


# -- without a relay --------------------------------------------------------------------------


async def test_without_a_relay_messages_wait_and_each_is_logged_once(autojump_clock, setup, caplog):
    account = await setup.account()
    for _ in range(2):
        async with setup.open(mailer=None) as one, setup.open(mailer=None) as other:
            caller = await setup.use(account, 8)
            one.watch(caller, False)
            other.watch(caller, False)
            await trio.sleep(86_400)
    lines = [line for line in caplog.messages if "MAILPROBE_ALERT_SMTP_URL" in line]
    assert len(lines) == 1
    assert account.id in lines[0]
    assert "2026-03-01T00:00:00Z 75" in lines[0]
    (message,) = await setup.messages()
    assert message.due_at
    async with setup.open():
        await trio.sleep(5)
    assert setup.box.subjects == ["75 %"]


# -- stopping ---------------------------------------------------------------------------------


async def test_a_mail_under_way_is_finished_by_a_stop(autojump_clock, setup):
    account = await setup.account()
    await setup.use(account, 15)
    setup.box.takes_s = 1.2
    with trio.move_on_after(0.5):
        async with setup.open():
            await trio.sleep_forever()
    assert setup.box.subjects == ["75 %"]
    (message,) = await setup.messages()
    assert message.sent_at


async def test_a_stop_does_not_wait_for_a_relay_that_hangs(autojump_clock, setup):
    account = await setup.account()
    await setup.use(account, 15)
    setup.box.takes_s = 100
    began = trio.current_time()
    with trio.move_on_after(0.5):
        async with setup.open():
            await trio.sleep_forever()
    assert trio.current_time() - began < 3
    assert setup.box.taken == []
    setup.box.takes_s = 0  # the next process sends it once the lease has ended
    async with setup.open():
        await trio.sleep(LEASE_S + POLL_S + 1)
    assert setup.box.subjects == ["75 %"]


async def test_no_second_process_takes_a_mail_that_is_under_way(autojump_clock, setup):
    account = await setup.account()
    await setup.use(account, 15)
    setup.box.takes_s = DELIVERY_S + ANSWER_S  # the longest that a relay may take
    async with setup.open(), setup.open(), setup.open():
        await trio.sleep(1000)
    assert len(setup.box.tries) == 1


async def test_a_stop_at_any_moment_loses_nothing(autojump_clock):
    """Stop after every number of scheduler steps."""
    unsent = 0
    for steps in range(60):
        setup = AlertsSetup()
        account = await setup.account()
        await setup.use(account, 15)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stay_open, setup)
            for _ in range(steps):
                await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()
        unsent += not setup.box.taken
        async with setup.open():
            await trio.sleep(LEASE_S + POLL_S + 1)
        assert setup.box.subjects == ["75 %"]
    assert 3 < unsent < 57


async def stay_open(setup: AlertsSetup) -> None:
    async with setup.open():
        await trio.sleep_forever()


# -- the operator's settings ------------------------------------------------------------------


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
async def test_unusable_alert_settings_are_refused_at_the_start(setup, more):
    with pytest.raises(WrongSetting, match="MAILPROBE_ALERT_") as wrong:
        async with setup.open(mailer=None, **more):
            pass
    assert "secret" not in str(wrong.value)


def test_an_address_is_shortened_for_the_log():
    assert shortened("ann.smith@example.org") == "a…@example.org"
    assert shortened('"a@b"@example.org') == '"…@example.org'
    assert shortened("") == "…"
