"""What was learnt of a host outlasts its addresses, and a host that refuses us is let alone."""

import pytest
import trio

from mailprobe.bench.world.fake_network import FakeNetwork, open_fake_network
from mailprobe.bench.world.faults import SendLine
from mailprobe.bench.world.host_profiles import SPAMHAUS, new_host
from mailprobe.bench.world.mail_host import MailHost
from mailprobe.engine import Verdict
from tests.engine.engine_runs import (
    DELIVERABLE,
    fields_of,
    knowns,
    open_checked_engine,
    verify,
)

HOUR_S = 3600.0


def several_addresses(network: FakeNetwork, domain: str, hosts: list[MailHost]) -> list[str]:
    addresses = [network.add(f"h{n}.{domain}", host) for n, host in enumerate(hosts)]
    network.zone.mx(domain, f"mx.{domain}")
    network.zone.host(f"mx.{domain}", *addresses, ttl_s=300)
    return addresses


@pytest.mark.parametrize("shown", [1, 2])
async def test_rotating_addresses_lose_nothing_that_was_learnt(autojump_clock, shown):
    """In six hours one random recipient, whatever addresses the exchange has."""
    async with open_fake_network() as network:
        hosts = [MailHost() for _ in range(8)]
        several_addresses(network, "shop.test", hosts)
        network.zone.rotate("mx.shop.test", shown)
        async with open_checked_engine(network) as engine:
            for number in range(60):
                [verdict] = await verify(engine, f"known{number}@shop.test")
                assert fields_of(verdict) == DELIVERABLE
                await trio.sleep(350)  # its addresses are looked up anew
        recipients = [r for host in hosts for s in host.record.sessions for r in s.recipients]
        assert sum(not each.startswith("known") for each in recipients) == 1
        assert sum(host.record.sessions_seen > 0 for host in hosts) > 4


async def test_names_whose_addresses_overlap_share_what_is_known_of_a_domain(autojump_clock):
    async with open_fake_network() as network:
        hosts = [MailHost() for _ in range(3)]
        one, two, three = (network.add(f"h{n}.test", host) for n, host in enumerate(hosts))
        network.zone.mx("shop.test", (10, "mx1.hub.test"), (10, "mx2.hub.test"))
        network.zone.host("mx1.hub.test", one, two)
        network.zone.host("mx2.hub.test", two, three)
        async with open_checked_engine(network) as engine:
            for number in range(20):
                await verify(engine, f"known{number}@shop.test")
        recipients = [r for host in hosts for s in host.record.sessions for r in s.recipients]
        assert sum(not each.startswith("known") for each in recipients) == 1


@pytest.mark.parametrize("step", ["MAIL", "RCPT"])
async def test_a_refusal_is_remembered_of_the_address_that_refused(autojump_clock, step):
    """The exchange names another's address first, and four of its own, which refuse us later."""
    refusal = {"mail_reply": SPAMHAUS} if step == "MAIL" else {"default_known": SPAMHAUS}
    async with open_fake_network() as network:
        good = MailHost(domains=frozenset({"shop.test"}))
        its_address = network.add("shop.test", good)
        own = [network.add(f"own{n}.test", MailHost(**refusal)) for n in range(4)]  # type: ignore[arg-type]
        for n in range(9):
            network.zone.mx(f"evil{n}.test", "mx.evil.test")
        network.zone.host("mx.evil.test", its_address, *own)
        async with open_checked_engine(network) as engine:
            for number in range(90):
                await verify(engine, f"known{number}@evil{number % 9}.test")
                await trio.sleep(1.5)
            for number in range(4):
                [verdict] = await verify(engine, f"known{number}@shop.test")
                assert fields_of(verdict) == DELIVERABLE
                await trio.sleep(10)


async def test_an_exchange_that_names_anothers_address_can_hurt_nobody(autojump_clock):
    """Its own host refuses everybody; the host whose address it names too is still asked."""
    async with open_fake_network() as network:
        good, evil = MailHost(), MailHost(faults={"CONNECT": SendLine("554 5.7.1 No", close=True)})
        its_address = network.add("shop.test", good)
        evil_address = network.add("own.test", evil)
        network.zone.mx("evil.test", "mx.evil.test")
        network.zone.host("mx.evil.test", evil_address, its_address, ttl_s=300)
        async with open_checked_engine(network) as engine:
            for number in range(5):
                await verify(engine, f"known{number}@evil.test")
                network.zone.host("mx.evil.test", evil_address, ttl_s=300)
                await trio.sleep(400)
                await verify(engine, f"gone{number}@evil.test")
                network.zone.host("mx.evil.test", its_address, ttl_s=300)  # now the other's alone
                await trio.sleep(400)
                await verify(engine, f"gone{number}@evil.test")
                [verdict] = await verify(engine, f"known{number}@shop.test")
                assert fields_of(verdict) == DELIVERABLE


@pytest.mark.parametrize("words", ["554 5.7.1 No", SPAMHAUS])
@pytest.mark.parametrize("every_s", [0.3, 1.2])
async def test_a_host_that_serves_a_patient_list_is_dialled_for_it(autojump_clock, words, every_s):
    """Its sessions end one by one, while requests find the host in trouble, and its address rests."""
    async with open_fake_network() as network:
        host = MailHost(latency_s=0.2, commands_max=14)
        address = network.add("shop.test", host)
        async with open_checked_engine(network) as engine:
            verdicts: list[Verdict] = []

            async def ask_list() -> None:
                verdicts.extend(
                    await verify(engine, *knowns(100), deferred_start=True, patient=True)
                )

            async with trio.open_nursery() as nursery:
                nursery.start_soon(ask_list)
                await trio.sleep(1)
                network.hosts[address] = MailHost(faults={"CONNECT": SendLine(words, close=True)})
                for number in range(4):
                    [verdict] = await verify(engine, f"known{number}@shop.test", account="you")
                    assert verdict.status == "unknown"
                    await trio.sleep(every_s)
                network.hosts[address] = host
            assert {verdict.valid for verdict in verdicts} >= {True}


REFUSING = {
    "connect": lambda: new_host("refused"),
    "banner": lambda: MailHost(faults={"CONNECT": SendLine("554 5.7.1 No", close=True)}),
    "blocklist": lambda: MailHost(faults={"CONNECT": SendLine(SPAMHAUS, close=True)}),
    "mail": lambda: MailHost(mail_reply="550 5.7.1 Not you"),
    "421 at rcpt": lambda: new_host("421 at rcpt"),
    "close at rcpt": lambda: new_host("closing at rcpt"),
}


@pytest.mark.parametrize("addresses", [1, 3, 6])
@pytest.mark.parametrize("kind", REFUSING)
async def test_a_host_that_only_refuses_gets_few_connections(autojump_clock, kind, addresses):
    """One question a second for two minutes, by an account each."""
    async with open_fake_network() as network:
        several_addresses(network, "shop.test", [REFUSING[kind]() for _ in range(addresses)])
        async with open_checked_engine(network) as engine:
            for number in range(120):
                [verdict] = await verify(engine, f"known{number}@shop.test", account=str(number))
                assert verdict.status == "unknown"
                await trio.sleep(1)
        assert len(network.dialled) <= 12


async def test_rotating_addresses_do_not_end_a_rest(autojump_clock):
    async with open_fake_network() as network:
        several_addresses(network, "shop.test", [REFUSING["banner"]() for _ in range(8)])
        network.zone.rotate("mx.shop.test", 1)
        async with open_checked_engine(network) as engine:
            for number in range(100):
                await verify(engine, f"known{number}@shop.test", account=str(number))
                await trio.sleep(3)
        assert len(network.dialled) <= 12


async def test_a_transaction_refused_on_a_reused_connection_is_repeated_on_a_new_one(
    autojump_clock,
):
    """Whatever RSET was answered: only an accepted MAIL, or a reply to RCPT, is a first reply."""
    for profile in ("one transaction", "stale"):
        async with open_fake_network() as network:
            network.add("shop.test", new_host(profile))
            async with open_checked_engine(network) as engine:
                for number in range(30):
                    [verdict] = await verify(engine, f"known{number}@shop.test")
                    assert verdict.status == "deliverable", (profile, number)
                    await trio.sleep(2)
