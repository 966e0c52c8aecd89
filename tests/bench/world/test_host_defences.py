"""The default defences of mail hosts: when each bans a source, what it says then, and for how long."""

from typing import Any

import pytest
import trio

from mailprobe.bench.world.defended_hosts import DEFENDED_HOSTS, defended_host
from mailprobe.bench.world.fake_network import FakeNetwork, open_fake_network
from mailprobe.bench.world.mail_host import MailHost
from tests.bench.world.test_mail_hosts import HELLO, MAIL, Client, meet

HOUR_S = 3600.0
BANNED_AT_GREETING = {
    "mdaemon": "554",
    "exim-recipe": "421",
    "cpanel": "421",
    "forcepoint": "550",
    "kerio": "550",
    "trendmicro": "554",
}
# kind -> sessions that ban nobody, the session that bans, what its recipients get, seconds.
# A letter is a recipient: k known, u unknown. Each session is one message.
DEFENCES = {
    "mdaemon": (["uuk", "kuku"], "kuuuk", "250 550 550 550 554", 600.0),
    "exim-recipe": (["uuuu", "kkuuu"], "uuuuk", "550 550 550 550 421", HOUR_S),
    "cpanel": (["uuuuu", "uuuuk"], "uuuuuk", "550 550 550 550 550 421", HOUR_S),
    "forcepoint": (["uuuuk"], "uk", "550 550", 3 * HOUR_S),
    "kerio": (["uuuuuuu", "uuu"], "ku", "250 550", HOUR_S),
    "cisco": (["u" * 20, "uuuuu"], "kukk", "250 550 550 550", HOUR_S),
    "trendmicro": (["u" * 10, "kkkkkkkuuuuu"], "kkkkkuuuuuuk", "250 250 250 250 250" + " 550" * 6 + " 554", 4 * HOUR_S),
}  # fmt: skip
LETTERS = {"k": "RCPT TO:<known.ann@shop.test>", "u": "RCPT TO:<nobody@shop.test>"}


async def greet(network: FakeNetwork, host: MailHost) -> tuple[Client, str]:
    client = await meet(network, host)
    return client, (await client.reply(within_s=10))[:3]


async def name_recipients(network: FakeNetwork, host: MailHost, letters: str) -> str:
    """The codes that these recipients of one session get."""
    client, greeting = await greet(network, host)
    if greeting != "220":
        return greeting
    await client.exchange(HELLO, MAIL)
    codes = " ".join([r[:3] for r in await client.exchange(*(LETTERS[x] for x in letters))])
    await client.stream.aclose()
    await trio.sleep(0.01)
    return codes


@pytest.mark.parametrize("kind", DEFENCES)
async def test_a_host_bans_a_source_by_its_default_for_its_time(
    autojump_clock: Any, kind: str
) -> None:
    harmless, banning, expected, ban_s = DEFENCES[kind]
    host = defended_host(kind, "mx.shop.test")
    async with open_fake_network() as network:
        for letters in harmless:
            await name_recipients(network, host, letters)
            assert host.record.bans == 0
        assert await name_recipients(network, host, banning) == expected
        assert host.record.bans == 1
        banned = BANNED_AT_GREETING.get(kind, "550")
        assert await name_recipients(network, host, "k") == banned
        await trio.sleep(ban_s - 10)
        assert await name_recipients(network, host, "k") == banned
        await trio.sleep(20)
        assert await name_recipients(network, host, "k") == "250"
        assert host.record.bans == 1


async def test_counts_of_an_hour_are_forgotten_after_it(autojump_clock: Any) -> None:
    host = defended_host("kerio", "mx.shop.test")
    async with open_fake_network() as network:
        for _ in range(5):
            await name_recipients(network, host, "u" * 10)
            await trio.sleep(HOUR_S)
    assert host.record.bans == 0


async def test_fail2ban_bans_a_moment_after_the_fifth_refusal_within_ten_minutes(
    autojump_clock: Any,
) -> None:
    host = defended_host("fail2ban", "mx.shop.test")
    async with open_fake_network() as network:
        assert await name_recipients(network, host, "uuuuk") == "550 550 550 550 250"
        await trio.sleep(601)
        assert await name_recipients(network, host, "uuuuuk") == "550 550 550 550 550 250"
        await trio.sleep(4)
        client = await meet(network, host)
        assert await client.reply() == "closed"
        await trio.sleep(600)
        assert await name_recipients(network, host, "k") == "250"
        assert host.record.bans == 1


async def test_fail2ban_does_not_forget_a_failure_while_others_follow(autojump_clock: Any) -> None:
    """Its count is that of the rate since the first one, until no other came for ten minutes."""
    host = defended_host("fail2ban", "mx.shop.test")
    async with open_fake_network() as network:
        for bans in (0, 0, 1):  # four within ten minutes
            await name_recipients(network, host, "uu")
            assert host.record.bans == bans
            await trio.sleep(400)


async def test_a_ban_holds_on_the_open_connections_too(autojump_clock: Any) -> None:
    host = defended_host("mdaemon", "mx.shop.test")
    async with open_fake_network() as network:
        other, _ = await greet(network, host)
        await other.exchange(HELLO)
        await name_recipients(network, host, "uuu")
        assert await other.exchange(MAIL) == [
            "554 5.7.1 Your address is blocked by Dynamic Screening"
        ]
        assert await other.reply() == "closed"


async def test_cisco_refuses_each_recipient_and_then_hangs_up(autojump_clock: Any) -> None:
    host = defended_host("cisco", "mx.shop.test")
    async with open_fake_network() as network:
        await name_recipients(network, host, "u" * 26)
        client, _ = await greet(network, host)
        await client.exchange(HELLO, MAIL)
        assert await client.exchange(LETTERS["k"], LETTERS["k"], "RSET") == [
            "550 Too many invalid recipients",
            "550 Too many invalid recipients",
            "closed",
        ]


@pytest.mark.parametrize("kind", ["postfix", "exim", "exchange", "postscreen"])
async def test_a_host_without_such_a_defence_bans_nobody(autojump_clock: Any, kind: str) -> None:
    host = defended_host(kind, "mx.shop.test", unknown_delay_s=0.0)
    async with open_fake_network() as network:
        for _ in range(10):
            await name_recipients(network, host, "u" * 9)
        assert await name_recipients(network, host, "k") == "250"
    assert host.record.bans == 0


async def test_exchange_sleeps_on_and_counts_a_source_that_has_left(autojump_clock: Any) -> None:
    """Its tarpit goes on after the client has hung up, and it takes 20 connections of a source."""
    host = defended_host("exchange", "mx.shop.test")
    async with open_fake_network() as network:
        for _ in range(20):
            client, greeting = await greet(network, host)
            assert greeting == "220"
            await client.exchange(HELLO, MAIL)
            await client.send(LETTERS["u"])
            await client.stream.aclose()
        _, greeting = await greet(network, host)
        assert greeting == "421"
        assert host.record.connections_peak == 21
        await trio.sleep(6)
        _, greeting = await greet(network, host)
        assert greeting == "220"


async def test_postscreen_lets_a_stranger_wait_once(autojump_clock: Any) -> None:
    host = defended_host("postscreen", "mx.shop.test")
    async with open_fake_network() as network:
        for waited_s in (6.0, 6.0, 0.0):  # the first one leaves without a command
            began = trio.current_time()
            client = await meet(network, host)
            reply = await client.reply(within_s=10)
            assert reply.splitlines()[-1] == "220 mx.shop.test ESMTP Postfix"
            assert len(reply.splitlines()) == (2 if waited_s else 1)
            assert trio.current_time() - began == pytest.approx(waited_s)
            if host.record.sessions_seen > 1:
                await client.exchange(HELLO)
            await client.stream.aclose()


def test_every_kind_is_tried() -> None:
    assert DEFENDED_HOSTS.keys() == DEFENCES.keys() | {
        "fail2ban",
        "postfix",
        "exim",
        "exchange",
        "postscreen",
    }


async def test_a_cpanel_host_greets_with_three_lines(autojump_clock: Any) -> None:
    async with open_fake_network() as network:
        client = await meet(network, defended_host("cpanel", "mx.shop.test"))
        lines = (await client.reply()).splitlines()
    assert [line[:4] for line in lines] == ["220-", "220-", "220 "]
