"""Lists and requests at hosts, and for mailboxes, that take only so many recipients in a time."""

import pytest

from mailprobe.bench.world.fake_network import open_fake_network
from mailprobe.engine.smtp.tolerance.limits import HOUR_S
from tests.engine.engine_runs import open_checked_engine
from tests.engine.smtp.tolerance.test_at_hosts import (
    ask,
    ask_list,
    ask_list_again,
    mixed,
    neutral_host,
    recipients,
)


@pytest.mark.parametrize(
    "reply",
    [
        "450 4.7.1 Error: too many recipients from probe.test[192.0.2.1]",  # Postfix's anvil
        "451 4.7.1 Rate limit exceeded",
    ],
)
async def test_a_list_comes_back_to_a_host_that_takes_fewer_recipients_in_a_time(
    autojump_clock, reply
):
    async with open_fake_network() as network:
        slow = {f"known{number}": (*[reply] * 4, "250 2.1.5 Ok") for number in range(5)}
        network.add("shop.test", neutral_host(replies=slow))
        async with open_checked_engine(network) as engine:
            (await ask_list(engine, mixed(20, 0.1))).assert_true()


@pytest.mark.parametrize("code", ["450", "421"])
@pytest.mark.parametrize(("most", "rate_s"), [(8, 60.0), (10, 600.0), (20, HOUR_S)])
async def test_a_list_leaves_a_host_alone_that_takes_few_recipients_in_a_time(
    autojump_clock, most, rate_s, code
):
    """Refused tries count there, too: asked again all at once, it would take hardly anybody."""
    async with open_fake_network() as network:
        host = neutral_host(
            rate_max=most, rate_s=rate_s, rate_reply=f"{code} 4.7.1 Rate limit exceeded, slow down"
        )
        network.add("shop.test", host)
        async with open_checked_engine(network) as engine:
            (await ask_list_again(engine, mixed(40, 0.25))).assert_true()
        # A 421 may be a limit of the connection as well, so its recipient is sent on another one:
        # 220 on average, 325 where a task's turn comes worst.
        assert recipients(host) <= (200 if code == "450" else 350)


async def test_a_rate_of_one_mailbox_holds_up_no_other_row(autojump_clock):
    busy = "450 4.2.1 The user you are trying to contact is receiving mail at a rate that is high"
    async with open_fake_network() as network:
        network.add("shop.test", neutral_host(replies={"known3": busy, "known8": busy}))
        async with open_checked_engine(network) as engine:
            results = await ask_list(engine, mixed(40, 0.1), passes=3)
        assert results.statuses() == {"deliverable": 34, "undeliverable": 4, "unknown": 2}


@pytest.mark.parametrize(
    "busy",
    [
        "450 4.2.1 The user you are trying to contact is receiving mail at a rate that prevents more",
        "450 The recipient is receiving too many messages, try again later",
        "450 4.2.1 Too many messages, slow down",
        "450 4.7.1 host mx.far.test[192.0.2.9] said: 450 4.7.1 Rate limit exceeded"
        " (in reply to RCPT TO command)",  # where the mailbox forwards to
    ],
    ids=["Gmail", "words", "code", "quoted"],
)
async def test_mailboxes_that_limit_a_rate_hold_up_no_other_account(autojump_clock, busy):
    """An account can have such mailboxes at any host: it fills two of its own."""
    async with open_fake_network() as network:
        replies = {f"known{number}": busy for number in range(900, 910)}
        network.add("shop.test", neutral_host(replies=replies))
        async with open_checked_engine(network) as engine:
            own = await ask_list(
                engine, [f"{name}@shop.test" for name in replies], "other", passes=3
            )
            assert own.reasons() == {"rate_limited": 10}
            (await ask_list(engine, mixed(40, 0.1))).assert_true()


async def test_a_request_is_sent_while_lists_leave_the_host_alone(autojump_clock):
    async with open_fake_network() as network:
        host = neutral_host(rate_max=10, rate_s=30.0)
        network.add("shop.test", host)
        async with open_checked_engine(network) as engine:
            waiting = await ask_list(engine, mixed(40, 0.1), passes=1)  # and a minute's rest
            assert waiting.reasons()["host_budget"] > 20
            (await ask(engine, ["known901@shop.test", "gone.x9@shop.test"])).assert_true()
