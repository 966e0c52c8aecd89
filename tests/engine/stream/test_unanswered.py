"""The evidence of a time-out names the command that the host did not answer."""

from collections.abc import Sequence

import pytest
import trio

from mailprobe.bench.world.fake_network import open_fake_network
from mailprobe.bench.world.faults import Late, StaySilent
from mailprobe.bench.world.host_profiles import NO_PIPELINING, TLS_OFFERED, new_host
from mailprobe.bench.world.mail_host import MailHost
from mailprobe.engine.evidence import ConversationLine, is_reached
from tests.engine.engine_runs import open_test_engine
from tests.engine.stream.streams import collect
from tests.engine.stream.test_evidence import evidence_of, explain

RCPT = "RCPT TO:<known@shop.test>"


def last_of(lines: Sequence[ConversationLine]) -> str:
    """The last command, if nothing follows it."""
    assert lines[-1].who == "client"
    return lines[-1].text


@pytest.mark.parametrize(
    ("host", "unanswered", "reached"),
    [
        (new_host("silent"), "(connect)", False),
        (new_host("silent at ehlo"), "EHLO probe.test", True),
        (MailHost(ehlo_reply="502 no", faults={"HELO": StaySilent()}), "HELO probe.test", True),
        (new_host("silent at mail"), RCPT, True),  # pipelined: neither of the two is answered
        (new_host("silent at rcpt"), RCPT, True),
        (new_host("dripping at rcpt"), RCPT, True),
        (new_host("stalling at rcpt"), RCPT, True),
        (new_host("closing at rcpt"), RCPT, True),
        (new_host("garbage at rcpt"), RCPT, True),
        (
            MailHost(ehlo_lines=NO_PIPELINING, faults={"MAIL": StaySilent()}),
            "MAIL FROM:<>",
            True,
        ),
        (MailHost(ehlo_lines=NO_PIPELINING, faults={"RCPT": StaySilent()}), RCPT, True),
        (MailHost(ehlo_lines=NO_PIPELINING, faults={"RCPT": Late(1.5)}), RCPT, True),
        (
            MailHost(
                ehlo_lines=(*NO_PIPELINING, "STARTTLS"),
                tls_demanded_at="MAIL",
                faults={"STARTTLS": StaySilent()},
            ),
            "STARTTLS",
            True,
        ),
    ],
)
async def test_the_last_line_is_the_command_without_a_reply(
    autojump_clock, host, unanswered, reached
):
    async with open_fake_network() as network:
        network.add("shop.test", host)
        async with open_test_engine(network, helo_name="probe.test") as engine:
            answer = await explain(engine, "known@shop.test")
    evidence = evidence_of(answer)
    assert last_of(evidence.conversation) == unanswered
    assert [line.text for line in evidence.conversation].count(unanswered) == 1
    times = [line.at_ms for line in evidence.conversation]
    assert times == sorted(times)
    assert is_reached(evidence) == reached


async def test_a_demand_for_tls_in_reply_to_a_recipient_is_followed_by_the_unanswered_command(
    autojump_clock,
):
    async with open_fake_network() as network:
        host = MailHost(
            ehlo_lines=TLS_OFFERED, tls_demanded_at="RCPT", faults={"STARTTLS": StaySilent()}
        )
        network.add("shop.test", host)
        async with open_test_engine(network) as engine:
            answer = await explain(engine, "known@shop.test")
    assert last_of(evidence_of(answer).conversation) == "STARTTLS"


async def test_the_deadline_of_a_probe_names_the_command_too(autojump_clock):
    """The first exchanges use up the time, so that the read deadline of RCPT is never reached."""
    async with open_fake_network() as network:
        slow = MailHost(latency_s=0.8, faults={"RCPT": StaySilent()}, ehlo_lines=NO_PIPELINING)
        network.add("shop.test", slow)
        async with open_test_engine(network) as engine:
            answer = await explain(engine, "known@shop.test")
    evidence = evidence_of(answer)
    assert evidence.rule == "clock.overall"
    assert last_of(evidence.conversation) == RCPT


async def test_the_command_shows_no_other_recipient_of_the_batch(autojump_clock):
    async with open_fake_network() as network:
        network.add("shop.test", new_host("silent at mail"))
        async with open_test_engine(network) as engine:
            texts = [f"known{number}@shop.test" for number in range(6)]
            answers = await collect(engine, *texts, explain=True)
    for answer in answers:
        said = [line.text for line in evidence_of(answer).conversation if line.who == "client"]
        assert [line for line in said if line.startswith("RCPT")] == [
            f"RCPT TO:<{answer.verdict.email}>"
        ]


@pytest.mark.parametrize(
    ("late_s", "latency_s"), [(0.4, 0.01), (1.5, 0.01), (0.56, 0.1), (0.6, 0.15), (0.7, 0.15)]
)
async def test_an_answered_command_stands_there_once_in_each_conversation(
    autojump_clock, late_s, latency_s
):
    """A recipient behind a late reply is sent on another connection, too."""
    async with open_fake_network() as network:
        host = MailHost(faults={"known0": Late(late_s)}, latency_s=latency_s)
        network.add("shop.test", host)
        async with open_test_engine(network) as engine:
            await collect(engine, "nobody@shop.test")
            texts = ["known0@shop.test", *(f"gone{number}@shop.test" for number in range(5))]
            answers = await collect(engine, *texts, explain=True)
            await trio.sleep(5)
    for answer in answers:
        lines = evidence_of(answer).conversation
        own = [line for line in lines if line.text == f"RCPT TO:<{answer.verdict.email}>"]
        connections = sum(line.text.startswith("EHLO") for line in lines)
        assert 1 <= len(own) <= max(connections, 1)
        assert len({line.at_ms for line in own}) == len(own)
