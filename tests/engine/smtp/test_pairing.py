"""Which recipient a reply names, whatever names resemble it and however long it takes to say."""

import math
import time
from dataclasses import replace

import pytest
import trio

from mailprobe.bench.world.fake_network import open_fake_network
from mailprobe.bench.world.faults import Twice
from mailprobe.bench.world.host_profiles import NO_PIPELINING
from mailprobe.bench.world.mail_host import EHLO_LINES, MailHost
from mailprobe.engine.smtp.pairing import (
    RENAMINGS_MAX,
    NamesAnother,
    OutOfStep,
    Pairing,
    Renamings,
)
from mailprobe.engine.smtp.wire import SmtpReply
from tests.engine.engine_runs import open_checked_engine, verify
from tests.seeds import pairs

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


def test_a_reply_to_mail_may_name_only_recipients_about_to_be_sent():
    pairing = recipients()
    reply = SmtpReply(250, ("<ann@shop.test> Ok",))
    pairing.check_names_none(reply, ["Ann@shop.test"])
    with pytest.raises(OutOfStep):
        pairing.check_names_none(reply, ["joann@shop.test"])


@pytest.mark.parametrize("offer", [EHLO_LINES, NO_PIPELINING], ids=["pipelined", "in step"])
@pytest.mark.parametrize("gap_s", [0.0, 0.001])
async def test_a_similar_recipient_does_not_get_the_reply_of_another(autojump_clock, offer, gap_s):
    """A doubled refusal of joann says nothing about ann."""
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


@pytest.mark.parametrize("known", [False, True], ids=["unknown", "known"])
def test_a_renamed_recipient_proves_nothing(known: bool):
    """Not its own reply, and not that of the recipient that it was renamed to."""
    renamings = Renamings()
    pairing = Pairing(renamings)
    pairing.add("ann@alias.test")
    reply = SmtpReply(550, ("5.1.1 <ann@canonical.test>: User unknown",))
    assert not pairing.proves(reply, "ann@alias.test")
    assert pairing.renamed == {("alias.test", "canonical.test")}
    if known:
        renamings.learn(pairing.renamed)
    pairing.add("ann@canonical.test")
    pairing.add("bob@alias.test")
    if known:
        assert not pairing.proves(reply, "ann@alias.test")
        assert not pairing.proves(reply, "ann@canonical.test")
    else:
        with pytest.raises(NamesAnother) as trouble:
            pairing.proves(reply, "ann@alias.test")
        assert trouble.value.same_local
    with pytest.raises(NamesAnother) as trouble:
        pairing.proves(reply, "bob@alias.test")
    assert not trouble.value.same_local


def test_renamings_are_bounded():
    renamings = Renamings()
    for number in range(2 * RENAMINGS_MAX):
        assert renamings.learn({(f"d{number}.test", "canonical.test")}) == (number < RENAMINGS_MAX)
    assert ("d0.test", "canonical.test") in renamings


UNKNOWN_USER = "550 5.1.1 {}: Recipient address rejected: User unknown"
ALIASES = {  # as asked -> as the host names it
    "ann@alias.test": "ann@canonical.test",
    "ann@other.test": "ann@canonical.test",
    "gone@alias.test": "gone@canonical.test",
    "sales@alias.test": "ann@canonical.test",
    "info@alias.test": "gone@canonical.test",
}
TRUE = {
    "ann": "deliverable",
    "sales": "deliverable",
    "gone": "undeliverable",
    "info": "undeliverable",
}
TEXTS: dict[str, list[str]] = {
    "alias alone": ["ann@alias.test"],
    "alias first": ["ann@alias.test", "ann@canonical.test"],
    "alias last": ["gone@canonical.test", "gone@alias.test"],
    "two aliases": ["ann@alias.test", "ann@other.test", "ann@canonical.test"],
    "one accepted and one refused": ["ann@alias.test", "gone@canonical.test", "gone@alias.test"],
    "both twice": [
        *("ann@alias.test", "gone@alias.test", "gone@canonical.test", "ann@canonical.test"),
    ],
    "another local part": ["sales@alias.test", "ann@canonical.test"],
    "another local part of two": [
        *("ann@canonical.test", "info@alias.test", "gone@canonical.test", "sales@alias.test"),
    ],
}


def renaming_host(offer: tuple[str, ...], *, names_accepted: bool, latency_s: float) -> MailHost:
    """It names a recipient by the address that it was renamed to."""
    replies = {"@alias.test": UNKNOWN_USER.format("<{local}@canonical.test>")}
    for asked in {*ALIASES, *ALIASES.values()}:
        name = f"<{ALIASES.get(asked, asked)}>"
        accepted = f"250 2.1.5 {name}" if names_accepted else "250 2.1.5 Ok"
        living = TRUE[asked.partition("@")[0]] == "deliverable"
        replies[asked] = accepted if living else UNKNOWN_USER.format(name)
    return MailHost(ehlo_lines=offer, replies=replies, latency_s=latency_s)


@pytest.mark.parametrize("offer", [EHLO_LINES, NO_PIPELINING], ids=["pipelined", "in step"])
@pytest.mark.parametrize(("asked", "case"), pairs(["list", "requests", "one by one"], TEXTS))
@pytest.mark.parametrize("names_accepted", [True, False], ids=["names all", "names refused"])
@pytest.mark.parametrize("latency_s", [0.0, 0.05])
async def test_a_host_that_renames_its_recipients_is_read_right(
    autojump_clock, offer, asked, names_accepted, latency_s, case
):
    async with open_fake_network() as network:
        host = renaming_host(offer, names_accepted=names_accepted, latency_s=latency_s)
        for domain in ("canonical.test", "alias.test", "other.test"):
            network.add(domain, host, mx="mx.canonical.test")
        async with open_checked_engine(network) as engine:
            for _ in range(2):  # the second time knows what the first has learned
                if asked == "one by one":
                    verdicts = [(await verify(engine, text))[0] for text in TEXTS[case]]
                else:
                    verdicts = await verify(engine, *TEXTS[case], deferred_start=asked == "list")
                for verdict in verdicts:
                    assert verdict.status == TRUE[verdict.email.partition("@")[0]], verdict


async def test_renamings_are_learned_by_domain(autojump_clock):
    """One pair is asked again; then the host is trusted with batches of others."""
    async with open_fake_network() as network:
        replies = {"@alias.test": UNKNOWN_USER.format("<{local}@canonical.test>")}
        host = MailHost(replies=replies)
        for domain in ("canonical.test", "alias.test"):
            network.add(domain, host, mx="mx.canonical.test")
        async with open_checked_engine(network) as engine:
            for start in range(0, 9, 3):
                texts = [
                    f"gone{number}@{domain}.test"
                    for number in range(start, start + 3)
                    for domain in ("alias", "canonical")
                ]
                verdicts = await verify(engine, *texts)
                assert {verdict.status for verdict in verdicts} == {"undeliverable"}
                await trio.sleep(5)
        sent = [
            mailbox
            for session in host.record.sessions
            for mailbox in session.recipients
            if mailbox.startswith("gone")  # a random address may be asked again
        ]
        asked_again = [mailbox for mailbox in sent if sent.count(mailbox) > 1]
        assert {mailbox.partition("@")[0] for mailbox in asked_again} <= {"gone0", "gone1", "gone2"}
        assert len(host.record.sessions) <= 5


ROUNDS = 50  # on a machine that does much else; mostly the first is enough


@pytest.mark.parametrize("unit", ["a@", "@a", "a", "@", "a@b", "<a@", "<a@b@", "<a@b>", "a@b "])
@pytest.mark.parametrize("line_octets", [16_000, 500])
def test_the_search_for_names_is_linear(unit: str, line_octets: int):
    """Eight times the text takes at most sixteen times as long, and a search took hundreds."""
    short_s = long_s = math.inf
    for _ in range(ROUNDS):  # in turns, so that both have a quiet moment
        short_s = min(short_s, max(search_s(unit, 2_000, line_octets), 2e-5))
        long_s = min(long_s, search_s(unit, 16_000, line_octets))
        if long_s < 16 * short_s:
            break
    assert long_s < 16 * short_s


def search_s(unit: str, octets: int, line_octets: int) -> float:
    text = ("<" + unit * octets)[:octets]
    reply = SmtpReply(
        250, tuple(text[at : at + line_octets] for at in range(0, octets, line_octets))
    )
    pairing = recipients()
    began_s = time.thread_time()
    pairing.proves(reply, "ann@shop.test")
    pairing.check_names_none(reply, ())
    return time.thread_time() - began_s


def test_an_acceptance_that_repeats_the_one_of_another_mailbox_is_marked():
    """Sendmail says it of every further recipient that is the same mailbox."""
    pairing = recipients("ann@shop.test", "bob@shop.test")
    first = SmtpReply(250, ("2.1.5 <ann@shop.test>... Recipient ok",))
    with pytest.raises(NamesAnother) as early:
        pairing.proves(first, "bob@shop.test")
    assert not early.value.repeated
    assert pairing.proves(first, "ann@shop.test")
    with pytest.raises(NamesAnother) as repeated:
        pairing.proves(first, "bob@shop.test")
    assert repeated.value.repeated
    with pytest.raises(NamesAnother) as other:
        pairing.proves(SmtpReply(250, ("2.1.5 <ann@shop.test>... ok",)), "bob@shop.test")
    assert not other.value.repeated


SENDMAIL = MailHost(
    default_known="250 2.1.5 <{rcpt}>... Recipient ok",
    default_unknown="550 5.1.1 <{rcpt}>... User unknown",
    one_mailbox=True,
)


@pytest.mark.parametrize("deferred_start", [False, True])
@pytest.mark.parametrize("count", [1, 2, 20])
async def test_a_domain_that_is_one_mailbox_of_sendmail_accepts_all(
    autojump_clock, count, deferred_start
):
    """Its reply to a random address names the listed one before it."""
    async with open_fake_network() as network:
        network.add("shop.test", replace(SENDMAIL, catch_all=True))
        async with open_checked_engine(network) as engine:
            texts = [f"ann{number}@shop.test" for number in range(count)]
            verdicts = await verify(engine, *texts, deferred_start=deferred_start)
    assert {verdict.status for verdict in verdicts} == {"catch_all"}


@pytest.mark.parametrize("gap_s", [None, 0.0, 0.005])
async def test_a_doubled_acceptance_of_sendmail_makes_no_other_name_deliverable(
    autojump_clock, gap_s
):
    """It looks like the reply to another name of the same mailbox."""
    async with open_fake_network() as network:
        faults = {} if gap_s is None else {"known": Twice(gap_s)}
        network.add("shop.test", replace(SENDMAIL, faults=faults))
        async with open_checked_engine(network) as engine:
            texts = [f"{kind}{n}@shop.test" for n in range(10) for kind in ("known", "gone")]
            for verdict in await verify(engine, *texts, deferred_start=True):
                right = "deliverable" if verdict.email.startswith("known") else "undeliverable"
                assert verdict.status in (right, "unknown")
