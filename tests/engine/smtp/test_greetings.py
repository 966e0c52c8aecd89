"""Greetings whose first line says less than their last: postscreen sends `220-` and decides later."""

import pytest
import trio
from msgspec import Struct

from mailprobe.bench.world.fake_network import open_fake_network
from mailprobe.bench.world.faults import ReplyWriter, as_octets
from mailprobe.bench.world.mail_host import MailHost
from mailprobe.engine import Answer, open_answers
from mailprobe.engine.reasons import verdict_cause
from mailprobe.engine.verdict import Outcome
from tests.engine.engine_runs import open_checked_engine

TEASER = "220-mx.shop.test ESMTP Postfix"


class Deciding(Struct, frozen=True):
    """Send the teaser at once, and this last line, or else the usual greeting, after a pause."""

    last: str = ""
    pause_s: float = 0.5

    async def answer(self, reply_writer: ReplyWriter, octets: bytes) -> bool:
        await reply_writer.send(as_octets(TEASER))
        await trio.sleep(self.pause_s)
        await reply_writer.send(as_octets(self.last) if self.last else octets)
        return not self.last


class EndsTwice(Struct, frozen=True):
    """The usual greeting, and an empty line after a pause."""

    pause_s: float = 0.0

    async def answer(self, reply_writer: ReplyWriter, octets: bytes) -> bool:
        if self.pause_s:
            await reply_writer.send(octets)
            await trio.sleep(self.pause_s)
        await reply_writer.send(b"\r\n" if self.pause_s else octets + b"\r\n")
        return True


async def ask(text: str, greeting: Deciding | EndsTwice) -> Answer:
    async with open_fake_network() as network:
        network.add("shop.test", MailHost(faults={"CONNECT": greeting}))
        async with (
            open_checked_engine(network) as engine,
            open_answers(engine, [text], account="me", explain=True) as answers,
        ):
            return await anext(answers)


@pytest.mark.parametrize("pause_s", [0.0, 0.5])
@pytest.mark.parametrize(
    ("last", "reason", "blame"),
    [
        (
            "521 5.7.1 Service unavailable; client [192.0.2.1] blocked using zen.spamhaus.org",
            "blocked_us",
            "us",
        ),
        (
            "550 5.7.1 Service unavailable; client [192.0.2.1] blocked using zen.spamhaus.org",
            "blocked_us",
            "us",
        ),
        ("521 5.3.2 Service currently unavailable", "blocked_us", "us"),
        ("450 4.3.2 Service currently unavailable", "greylisted", "host"),
        ("421 4.3.2 All server ports are busy", "temporary", "host"),
        ("421 4.7.0 Too many connections from 192.0.2.1", "rate_limited", "us"),
        ("220-more\n550 5.7.1 Your IP address is on our blocklist", "blocked_us", "us"),
    ],
)
async def test_a_greeting_is_read_by_its_last_line(autojump_clock, last, reason, blame, pause_s):
    answer = await ask("known@shop.test", Deciding(last, pause_s))
    assert answer.verdict.status == "unknown"
    assert answer.verdict.failed_check == "smtp"
    assert answer.evidence is not None
    assert answer.evidence.rule is not None
    assert verdict_cause(Outcome.CONVERSATION_FAILED, answer.evidence.rule) == (reason, blame)
    lines = [line.text for line in answer.evidence.conversation if line.who == "server"]
    assert lines == [TEASER, *last.split("\n")]


async def test_a_teaser_and_a_welcome_are_one_greeting(autojump_clock):
    answer = await ask("gone@shop.test", Deciding())
    assert answer.verdict.status == "undeliverable"


@pytest.mark.parametrize("pause_s", [0.0, 0.001, 0.2])
@pytest.mark.parametrize("who", ["known", "gone"])
async def test_an_empty_line_behind_a_greeting_costs_no_answer(autojump_clock, who, pause_s):
    """Internet.nl #560: a mail host that ends its greeting with two line ends."""
    answer = await ask(f"{who}@shop.test", EndsTwice(pause_s))
    assert answer.verdict.status == ("deliverable" if who == "known" else "undeliverable")
