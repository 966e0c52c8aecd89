"""What a host does to one domain's recipients keeps no answer from its other domains."""

import pytest
import trio

from mailprobe.bench.world.fake_network import open_fake_network
from mailprobe.bench.world.faults import Close, Garbage, ReplyFault, StaySilent
from mailprobe.bench.world.mail_host import MailHost
from tests.engine.engine_runs import open_checked_engine, verify

ABOUT_US = {
    "blocklist": "550 5.7.1 Your IP is listed in a blocklist",
    "sender": "550 5.7.1 Sender verify failed",
    "421": "421 4.7.0 Go away",
}
UNANSWERED: dict[str, ReplyFault] = {
    "closes": Close(),
    "garbage": Garbage(),
    "silence": StaySilent(),
}


@pytest.mark.parametrize("reply", ABOUT_US)
async def test_two_domains_that_refuse_us_do_not_silence_a_third(autojump_clock, reply):
    """Whoever owns domains at a shared host may choose what it says of their recipients."""
    async with open_fake_network() as network:
        host = MailHost(replies=dict.fromkeys(("@one.test", "@two.test"), ABOUT_US[reply]))
        for domain in ("shop.test", "one.test", "two.test"):
            network.add(domain, host)
        async with open_checked_engine(network) as engine:
            for round_ in range(3):
                texts = [f"a{n}@{domain}" for n in range(4) for domain in ("one.test", "two.test")]
                await verify(engine, *texts)
                [verdict] = await verify(engine, f"known{round_}@shop.test")
                assert verdict.status == "deliverable"
                await trio.sleep(10)


@pytest.mark.parametrize("reply", ABOUT_US)
async def test_five_domains_that_refuse_us_do_not_silence_one_that_is_answered(
    autojump_clock, reply
):
    refused = [f"refused{number}.test" for number in range(5)]
    async with open_fake_network() as network:
        host = MailHost(replies={f"@{domain}": ABOUT_US[reply] for domain in refused})
        for domain in ("shop.test", *refused):
            network.add(domain, host)
        async with open_checked_engine(network) as engine:
            for round_ in range(4):
                [verdict] = await verify(engine, f"known{round_}@shop.test")
                assert verdict.status == "deliverable"
                await verify(engine, *(f"a{n}@{domain}" for n in range(4) for domain in refused))
                await trio.sleep(30)


@pytest.mark.parametrize("fault", UNANSWERED)
async def test_two_domains_without_an_answer_do_not_silence_a_third(autojump_clock, fault):
    locals_ = [f"a{number}" for number in range(40)]
    async with open_fake_network() as network:
        host = MailHost(faults=dict.fromkeys(locals_, UNANSWERED[fault]))
        for domain in ("shop.test", "one.test", "two.test"):
            network.add(domain, host)
        async with open_checked_engine(network) as engine:
            for round_ in range(10):
                for local in locals_[4 * round_ : 4 * round_ + 4]:
                    await verify(engine, f"{local}@one.test", f"{local}@two.test")
                [verdict] = await verify(engine, f"known{round_}@shop.test")
                assert verdict.status == "deliverable"


@pytest.mark.parametrize("domains", [1, 10, 50])
@pytest.mark.parametrize("kind", [*ABOUT_US, *UNANSWERED])
async def test_a_host_that_answers_nobody_gets_few_connections(autojump_clock, kind, domains):
    """One question a second for two minutes, by an account each; nobody is told a refusal."""
    if kind in ABOUT_US:
        host = MailHost(default_known=ABOUT_US[kind])
    else:
        host = MailHost(faults={"RCPT": UNANSWERED[kind]})
    async with open_fake_network() as network:
        for number in range(domains):
            network.add(f"shop{number}.test", host)
        async with open_checked_engine(network) as engine:
            ends = trio.current_time() + 120
            number = 0
            while trio.current_time() < ends:
                text = f"known{number}@shop{number % domains}.test"
                [verdict] = await verify(engine, text, account=str(number))
                assert verdict.status == "unknown"
                await trio.sleep(1)
                number += 1
        assert len(network.dialled) <= 12


async def test_a_tarpit_that_knows_some_is_not_rested(autojump_clock):
    """Refusals that never come are silence, too; between them somebody is answered."""
    async with open_fake_network() as network:
        network.add("shop.test", MailHost(reply_s=0.02, unknown_delay_s=5.0))
        async with open_checked_engine(network) as engine:
            [verdict] = await verify(engine, "known@shop.test")
            for number in range(40):
                await verify(engine, f"gone{number}@shop.test")
            [verdict] = await verify(engine, "known1@shop.test")
            assert verdict.status == "deliverable"
