"""When a random address is sent: only where its answer decides."""

import random

import pytest
import trio
from trio.testing import MockClock

from mailprobe.bench.world.fake_network import open_fake_network
from mailprobe.bench.world.faults import StaySilent
from mailprobe.bench.world.host_profiles import NO_PIPELINING
from mailprobe.bench.world.mail_host import MailHost
from tests.engine.engine_runs import (
    CATCH_ALL,
    UNDELIVERABLE,
    fields_of,
    knowns,
    open_checked_engine,
    open_test_engine,
    verify,
)

RANDOM = "somebody.else@shop.test"
UNKNOWN_USER = "550 5.1.1 <{rcpt}>: Recipient address rejected: User unknown"


@pytest.mark.parametrize("deferred_start", [False, True], ids=["requests", "list"])
@pytest.mark.parametrize("place", [0, 5, 9])
async def test_a_listed_refusal_spares_no_random_address(autojump_clock, place, deferred_start):
    """A catch-all that refuses a former member of staff still accepts everybody else."""
    async with open_fake_network() as network:
        host = MailHost(catch_all=True, replies={"former": UNKNOWN_USER})
        network.add("shop.test", host)
        texts = [f"ann{number}@shop.test" for number in range(9)]
        texts.insert(place, "former@shop.test")
        async with open_checked_engine(network) as engine:
            verdicts = await verify(engine, *texts, deferred_start=deferred_start)
    for verdict in verdicts:
        is_former = verdict.email.startswith("former")
        assert fields_of(verdict) == (UNDELIVERABLE if is_former else CATCH_ALL)


async def test_a_domain_that_accepts_all_but_a_few_is_tested_again(autojump_clock):
    async with open_fake_network() as network:
        host = MailHost(ehlo_lines=NO_PIPELINING, catch_all=True, replies={"blocked": UNKNOWN_USER})
        network.add("shop.test", host)
        async with open_checked_engine(network, mint=lambda shape: "somebody.else") as engine:
            for text, expected in (
                ("ann", CATCH_ALL),
                ("blocked", UNDELIVERABLE),
                ("ben", CATCH_ALL),
            ):
                [verdict] = await verify(engine, f"{text}@shop.test")
                assert fields_of(verdict) == expected
    assert host.record.recipients[RANDOM] == 2


async def test_a_hosts_words_for_unknown_users_hold_for_all_of_its_domains(autojump_clock):
    """In the first domain they may be about the shape of the name; in the second they are known."""
    rejected = "550 #5.1.0 Address rejected."
    async with open_fake_network() as network:
        replies = dict.fromkeys(("gone", "somebody.else", "any.other"), rejected)
        host = MailHost(ehlo_lines=NO_PIPELINING, replies=replies)
        for domain in ("shop.test", "fair.test", "mart.test"):
            network.add(domain, host, mx="mx.gateway.test")
        names = ("somebody.else", "any.other")
        async with open_checked_engine(network, mint=lambda shape: names[shape]) as engine:
            for text in ("known@shop.test", "gone@fair.test", "known@mart.test"):
                await verify(engine, text)
    tried = [each for each in host.record.recipients if each.partition("@")[0] in names]
    assert tried == ["somebody.else@shop.test", "any.other@shop.test", "somebody.else@mart.test"]


@pytest.mark.parametrize("patient", [False, True], ids=["first pass", "patient pass"])
@pytest.mark.parametrize("has_backup", [False, True])
@pytest.mark.parametrize(
    ("most", "reply"), [(2, "451 4.7.1 Try again later"), (3, "421 4.7.0 Enough"), (3, "")]
)
@pytest.mark.parametrize("count", [2, 3, 8])
async def test_a_list_ends_where_its_random_address_needs_a_connection_that_fails(
    autojump_clock, count, most, reply, has_backup, patient
):
    """The row that was to carry it goes to the backup; the accepted rows waited for it for ever."""
    async with open_fake_network() as network:
        host = MailHost(latency_s=0.1, session_recipients_max=most, session_recipients_reply=reply)
        address = network.add("shop.test", host, mx="mx1.shop.test")
        if has_backup:
            network.add("shop.test", MailHost(), mx="mx2.shop.test", preference=20)
        async with open_checked_engine(network) as engine, trio.open_nursery() as nursery:

            async def replace_host() -> None:
                await trio.sleep(0.25)  # it has greeted, and answered no recipient
                network.hosts[address] = MailHost(faults={"CONNECT": StaySilent()})

            nursery.start_soon(replace_host)
            with trio.fail_after(120):
                verdicts = await verify(
                    engine, *knowns(count), deferred_start=True, patient=patient
                )
            assert all(verdict.valid or verdict.status == "unknown" for verdict in verdicts)


@pytest.mark.parametrize("latency_s", [0.01, 0.05])
def test_a_first_batch_of_several_domains_at_a_new_host_is_tested_whole(latency_s: float) -> None:
    """No session takes more domains whose random name is lacking than it may have refusals."""
    names = [f"{first}{last}" for first in ("ann", "bob", "eve") for last in ("lee", "oak", "moss")]

    async def ask(seed: int) -> set[float]:
        rng = random.Random(seed)
        host = MailHost(
            banner="220 {name} ESMTP ready", mailboxes=frozenset(names), latency_s=latency_s
        )
        domains = [f"d{number}.test" for number in range(8)]
        async with open_fake_network(seed=seed) as network:
            for domain in domains:
                network.add(domain, host, mx="mx.hoster.test")
            texts = [f"{rng.choice(names)}@{rng.choice(domains)}" for _ in range(10)]
            async with open_test_engine(network) as engine:
                verdicts = await verify(engine, *dict.fromkeys(texts))
                return {verdict.confidence for verdict in verdicts}

    for seed in range(40):
        clock = MockClock(autojump_threshold=0)
        assert trio.run(ask, seed, clock=clock) == {0.97}, seed
