"""What a raw client sees of a scripted host that speaks TLS."""

import ssl

import pytest
import trio

from mailprobe.bench.world.fake_network import FakeNetwork, open_fake_network
from mailprobe.bench.world.faults import Close, Garbage, ResetConnection, StaySilent
from mailprobe.bench.world.host_profiles import TLS_OFFERED, new_host
from mailprobe.bench.world.mail_host import MailHost
from tests.bench.world.test_mail_hosts import HELLO, KNOWN, MAIL, Client, codes, meet


def upgraded(client: Client) -> Client:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return Client(trio.SSLStream(client.stream, context, https_compatible=True))


async def ready(network: FakeNetwork, host: MailHost) -> Client:
    """A client that got a positive reply to STARTTLS."""
    client = await meet(network, host)
    await client.reply()
    replies = await client.exchange(HELLO, "STARTTLS")
    assert codes(replies) == "250 220"
    assert "STARTTLS" in replies[0]
    return client


@pytest.mark.parametrize(
    ("profile", "before"),
    [("starttls demanded", "250 530"), ("starttls demanded at rcpt", "250 250 530 250")],
)
async def test_a_host_that_demands_tls_goes_on_within_it(autojump_clock, profile, before):
    async with open_fake_network() as network:
        host = new_host(profile)
        client = await meet(network, host)
        await client.reply()
        lines = [HELLO, MAIL, KNOWN, "RSET"][: len(before.split())]
        assert codes(await client.exchange(*lines)) == before
        assert codes(await client.exchange("STARTTLS")) == "220"
        client = upgraded(client)
        replies = await client.exchange(HELLO, MAIL, KNOWN, "QUIT")
        assert codes(replies) == "250 250 250 221"
        assert "STARTTLS" not in replies[0]
        assert host.record.mistakes == []


async def test_after_the_handshake_ehlo_comes_first(autojump_clock):
    async with open_fake_network() as network:
        host = new_host("starttls demanded")
        client = upgraded(await ready(network, host))
        assert codes(await client.exchange(MAIL, "STARTTLS")) == "503 502"
        assert host.record.mistakes == ["MAIL before EHLO", "STARTTLS where it is not offered"]


@pytest.mark.parametrize(
    ("profile", "mistake"),
    [
        ("friendly", "STARTTLS where it is not offered"),
        ("starttls offered", "STARTTLS where it is not demanded"),
    ],
)
async def test_starttls_that_is_not_offered_is_an_error_of_the_client(
    autojump_clock, profile, mistake
):
    async with open_fake_network() as network:
        host = new_host(profile)
        client = await meet(network, host)
        await client.reply()
        await client.exchange(HELLO, "STARTTLS")
        assert host.record.mistakes == [mistake]


async def test_starttls_is_refused_within_a_transaction_and_in_company(autojump_clock):
    async with open_fake_network() as network:
        host = new_host("starttls demanded at rcpt")
        client = await meet(network, host)
        await client.reply()
        assert codes(await client.exchange(HELLO, MAIL, "STARTTLS", "RSET")) == "250 250 503 250"
        await client.send("STARTTLS", HELLO)
        assert codes([await client.reply(), await client.reply()]) == "503 250"
        assert set(host.record.mistakes) == {"STARTTLS out of order"}


async def test_a_client_that_does_not_shake_hands_loses_the_session(autojump_clock):
    async with open_fake_network() as network:
        host = new_host("starttls demanded")
        client = await ready(network, host)
        await client.send("QUIT")
        assert not (await client.reply())[:3].isdigit()
        await trio.sleep(1)
        assert host.record.connections_now == 0


@pytest.mark.parametrize(
    ("fault", "seen"),
    [
        (StaySilent(), "silent"),
        (Close(), "closed"),
        (ResetConnection(), "reset"),
        (Garbage(), "garbage"),
    ],
)
async def test_a_handshake_goes_wrong_in_each_way(autojump_clock, fault, seen):
    async with open_fake_network() as network:
        host = MailHost(ehlo_lines=TLS_OFFERED, tls_demanded_at="MAIL", faults={"TLS": fault})
        client = await ready(network, host)
        assert await client.reply() == seen
        await client.stream.aclose()
        await trio.sleep(1)
        assert host.record.connections_now == 0
