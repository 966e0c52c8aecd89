"""Which recipient a reply names, whatever names resemble it and however long it takes to say."""

import time

import pytest

from mailprobe.engine.smtp.pairing import OutOfStep, Pairing
from mailprobe.engine.smtp.wire import SmtpReply
from mailprobe.engine.testing.fake_network import open_fake_network
from mailprobe.engine.testing.faults import Twice
from mailprobe.engine.testing.host_profiles import NO_PIPELINING
from mailprobe.engine.testing.mail_host import EHLO_LINES, MailHost
from tests.engine.engine_runs import open_checked_engine, verify

ASKED = {"ann@shop.test", "joann@shop.test", "ann@shop.test.example"}


def recipients(*mailboxes: str) -> Pairing:
    pairing = Pairing()
    for mailbox in mailboxes or ASKED:
        pairing.add(mailbox)
    return pairing


@pytest.mark.parametrize("other", sorted(ASKED - {"ann@shop.test"}))
@pytest.mark.parametrize("text", ["<{}>: User unknown", "5.1.1 <{}> no", "to=<{}>, no such user"])
def test_a_longer_address_is_another_one(other: str, text: str):
    with pytest.raises(OutOfStep):
        recipients().proves(SmtpReply(550, (text.format(other),)), "ann@shop.test")


@pytest.mark.parametrize(
    "text",
    [
        "joann@shop.test unknown",
        "no ann@shop.test.example",
        "j.ann@shop.test",
        "jo=ann@shop.test",
        "'ann@shop.test'",
        "ann@shop.test and joann@shop.test",
        "<ann@shop.test> <joann@shop.test>",
    ],
)
def test_a_longer_address_proves_nothing(text: str):
    assert not recipients().proves(SmtpReply(550, (text,)), "ann@shop.test")


@pytest.mark.parametrize(
    "text", ["<ann@shop.test> unknown", "no ANN@shop.test.", "ann@shop.test: no", "(ann@shop.test)"]
)
def test_a_whole_address_is_proof(text: str):
    assert recipients().proves(SmtpReply(550, (text,)), "Ann@Shop.test")


def test_a_quoted_local_part_may_contain_any_address():
    pairing = recipients("ann@shop.test", '"no ann@shop.test"@shop.test')
    assert not pairing.proves(
        SmtpReply(550, ('"no ann@shop.test"@shop.test unknown',)), "ann@shop.test"
    )


def test_a_reply_to_mail_names_nobody_but_those_about_to_be_asked():
    pairing = recipients()
    reply = SmtpReply(250, ("<ann@shop.test> Ok",))
    pairing.check_names_none(reply, ["Ann@shop.test"])
    with pytest.raises(OutOfStep):
        pairing.check_names_none(reply, ["joann@shop.test"])


@pytest.mark.parametrize("offer", [EHLO_LINES, NO_PIPELINING], ids=["pipelined", "in step"])
@pytest.mark.parametrize("gap_s", [0.0, 0.001])
async def test_who_resembles_another_does_not_get_its_reply(autojump_clock, offer, gap_s):
    """A doubled refusal of joann is no word on ann."""
    async with open_fake_network() as network:
        host = MailHost(
            ehlo_lines=offer,
            mailboxes=frozenset({"ann"}),
            faults={"joann": Twice(gap_s)},
        )
        network.add("shop.test", host)
        async with open_checked_engine(network) as engine:
            for verdict in await verify(engine, "joann@shop.test", "ann@shop.test"):
                true = "deliverable" if verdict.email.startswith("ann") else "undeliverable"
                assert verdict.status in (true, "unknown"), verdict


@pytest.mark.parametrize("unit", ["a@", "@a", "a", "@", "a@b", "<a@", "<a@b@", "<a@b>", "a@b "])
@pytest.mark.parametrize("line_octets", [16_000, 500])
def test_the_search_for_names_is_linear(unit: str, line_octets: int):
    """Eight times the text takes at most sixteen times as long, and a search took hundreds."""
    assert search_s(unit, 16_000, line_octets) < 16 * max(search_s(unit, 2_000, line_octets), 2e-5)


def search_s(unit: str, octets: int, line_octets: int) -> float:
    text = ("<" + unit * octets)[:octets]
    reply = SmtpReply(
        250, tuple(text[at : at + line_octets] for at in range(0, octets, line_octets))
    )
    took_s = []
    for _ in range(5):
        pairing = recipients()
        began_s = time.thread_time()
        pairing.proves(reply, "ann@shop.test")
        pairing.check_names_none(reply, ())
        took_s.append(time.thread_time() - began_s)
    return min(took_s)
