"""What a host wants before it speaks of recipients: TLS, and another sender."""

import re
from dataclasses import replace
from typing import Any

import pytest
import trio

from mailprobe.bench.world.fake_network import FakeNetwork, open_fake_network
from mailprobe.bench.world.faults import (
    Close,
    Garbage,
    Late,
    ReplyFault,
    ResetConnection,
    SendLine,
    StaySilent,
    Twice,
)
from mailprobe.bench.world.host_profiles import (
    NAMED_SENDER,
    NO_PIPELINING,
    NULL_SENDER,
    TLS_OFFERED,
    new_host,
)
from mailprobe.bench.world.mail_host import EHLO_LINES, MailHost
from mailprobe.engine import (
    Answer,
    Verdict,
    open_answers,
)
from mailprobe.engine.smtp.host_policy import Terms, first_terms
from tests.engine.engine_runs import (
    DELIVERABLE,
    FAILED,
    TIMED_OUT,
    UNDELIVERABLE,
    UNKNOWN,
    fields_of,
    open_checked_engine,
    open_test_engine,
    verify,
    verify_once,
)
from tests.engine.invariants import assert_whole

NAMED = "check@probe.test"
DEMANDING = (
    "starttls demanded",
    "starttls demanded at rcpt",
    "starttls demanded, in step",
    "starttls demanded at rcpt, in step",
)
PARTICULAR = {  # hosts that refuse one kind of sender
    "null, at MAIL": MailHost(null_sender_reply=NULL_SENDER),
    "null, at RCPT": MailHost(null_sender_reply=NULL_SENDER, judges_sender_at_rcpt=True),
    "named, at MAIL": MailHost(named_sender_reply=NAMED_SENDER),
    "named, at RCPT": MailHost(named_sender_reply=NAMED_SENDER, judges_sender_at_rcpt=True),
}


def commands_of(host: MailHost, session: int = 0) -> list[str]:
    """The commands of one session, mailboxes left out."""
    lines = [spoken.line for spoken in host.record.sessions[session].commands_seen]
    return [re.sub(r"^RCPT.*", "RCPT", line) for line in lines]


def senders(host: MailHost) -> list[str]:
    return [
        spoken.line[10:]
        for session in host.record.sessions
        for spoken in session.commands_seen
        if spoken.line.startswith("MAIL")
    ]


async def explain(network: FakeNetwork, text: str, **settings: Any) -> Answer:
    async with (
        open_test_engine(network, **settings) as engine,
        open_answers(engine, [text], account="me", explain=True) as answers,
    ):
        [answer] = [answer async for answer in answers]
    return answer


async def in_turn(network: FakeNetwork, *rounds: list[str], **settings: Any) -> list[list[Verdict]]:
    """Verify each list when the connections of the one before are closed."""
    verdicts = []
    async with open_test_engine(network, **settings) as engine:
        for texts in rounds:
            verdicts.append(await verify(engine, *texts))
            await trio.sleep(10)
        assert_whole(engine)
    return verdicts


# -- TLS is demanded -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("profile", "commands"),
    [
        ("starttls demanded", ["MAIL FROM:<>", "RCPT", "RCPT"]),
        ("starttls demanded at rcpt", ["MAIL FROM:<>", "RCPT", "RCPT", "RSET"]),
        ("starttls demanded, in step", ["MAIL FROM:<>"]),
        ("starttls demanded at rcpt, in step", ["MAIL FROM:<>", "RCPT", "RSET"]),
    ],
)
async def test_the_connection_is_upgraded_and_the_same_recipient_sent_again(
    autojump_clock, profile, commands
):
    async with open_fake_network() as network:
        host = new_host(profile)
        network.add("shop.test", host)
        [verdict] = await verify_once(network, "known@shop.test", helo_name="probe.test")
        assert fields_of(verdict) == DELIVERABLE
        assert commands_of(host) == [
            "EHLO probe.test",
            *commands,
            "STARTTLS",
            "EHLO probe.test",
            "MAIL FROM:<>",
            "RCPT",
            "RCPT",
            "QUIT",
        ]
        real = [mailbox for mailbox in host.record.sessions[0].recipients if "known" in mailbox]
        assert host.record.sessions[0].recipients[-2] == real[-1], "the real one first"
        assert host.record.sessions_seen == 1
        assert host.record.mistakes == []


@pytest.mark.parametrize("profile", DEMANDING)
async def test_the_next_connection_starts_tls_before_it_is_refused(autojump_clock, profile):
    async with open_fake_network() as network:
        host = new_host(profile)
        network.add("shop.test", host)
        [[first], [second]] = await in_turn(network, ["known1@shop.test"], ["nobody@shop.test"])
        assert (fields_of(first), fields_of(second)) == (DELIVERABLE, UNDELIVERABLE)
        assert [line.split(" ")[0] for line in commands_of(host, 1)] == [
            *("EHLO", "STARTTLS", "EHLO", "MAIL", "RCPT", "QUIT")
        ]
        assert host.record.mistakes == []


@pytest.mark.parametrize("profile", DEMANDING)
@pytest.mark.parametrize("latency_s", [0.0, 0.05])
async def test_a_batch_at_a_host_that_demands_tls_gets_right_verdicts(
    autojump_clock, profile, latency_s
):
    """However many were in the round, and on however many connections, when the demand came."""
    async with open_fake_network() as network:
        host = new_host(profile, latency_s=latency_s)
        network.add("shop.test", host)
        texts = [f"{kind}{n}@shop.test" for n in range(25) for kind in ("known", "nobody")]
        verdicts = await verify_once(network, *texts)
        for verdict in verdicts:
            right = DELIVERABLE if verdict.email.startswith("known") else UNDELIVERABLE
            assert fields_of(verdict) == right
            assert verdict.latency_ms <= 3050
        assert host.record.mistakes == []
        assert max(session.refusals for session in host.record.sessions) <= 8


async def test_tls_is_not_started_where_nobody_demands_it(autojump_clock):
    async with open_fake_network() as network:
        host = new_host("starttls offered")
        network.add("shop.test", host)
        await in_turn(network, ["known@shop.test"], ["nobody@shop.test"])
        assert "STARTTLS" not in commands_of(host) + commands_of(host, 1)


async def test_extensions_offered_only_within_tls_are_used(autojump_clock):
    """The first offer is forgotten: here SMTPUTF8 and PIPELINING are gone within TLS."""
    async with open_fake_network() as network:
        host = MailHost(ehlo_lines=TLS_OFFERED, tls_demanded_at="MAIL")
        network.add("shop.test", host)
        async with open_test_engine(network) as engine:
            await verify(engine, "known1@shop.test")
            [verdict] = await verify(engine, "ä@shop.test")
        assert fields_of(verdict) == UNDELIVERABLE
        assert "MAIL FROM:<> SMTPUTF8" in commands_of(host)
        assert host.record.mistakes == []


FAILURES = [
    ({"TLS": StaySilent()}, TIMED_OUT),
    ({"TLS": Close()}, FAILED),
    ({"TLS": ResetConnection()}, FAILED),
    ({"TLS": Garbage()}, FAILED),
    ({"STARTTLS": StaySilent()}, TIMED_OUT),
    ({"STARTTLS": Late(1.5)}, TIMED_OUT),
    ({"STARTTLS": Close()}, FAILED),
    ({"STARTTLS": ResetConnection()}, FAILED),
    ({"STARTTLS": Garbage()}, FAILED),
    ({"STARTTLS": Twice()}, FAILED),  # plain text behind the reply: command injection
    ({"STARTTLS": SendLine("421 4.3.2 Shutting down", close=True)}, FAILED),
    ({"STARTTLS": SendLine("454 4.7.0 TLS not available due to temporary reason")}, FAILED),
    ({"STARTTLS": SendLine("502 5.5.1 Command not implemented")}, FAILED),
    ({"EHLO 2": StaySilent()}, TIMED_OUT),
    ({"EHLO 2": Close()}, FAILED),
    ({"EHLO 2": SendLine("550 5.7.1 Go away")}, FAILED),
]


@pytest.mark.parametrize(("faults", "expected"), FAILURES)
@pytest.mark.parametrize("step", ["MAIL", "RCPT"])
async def test_tls_that_fails_is_a_conversation_that_fails(autojump_clock, step, faults, expected):
    """At the first question, and at the next connection, which starts with it."""
    async with open_fake_network() as network:
        host = MailHost(ehlo_lines=TLS_OFFERED, tls_demanded_at=step, faults=faults)
        network.add("shop.test", host)
        rounds = (["known1@shop.test"], ["known2@shop.test", "nobody@shop.test"])
        for verdicts in await in_turn(network, *rounds):
            for verdict in verdicts:
                assert fields_of(verdict) == expected
                assert verdict.latency_ms <= 2050
        for session in host.record.sessions:
            commands = [spoken.line.split(" ")[0] for spoken in session.commands_seen]
            tail = commands[commands.index("STARTTLS") + 1 :] if "STARTTLS" in commands else []
            assert "MAIL" not in tail
        assert host.record.connections_now == 0


@pytest.mark.parametrize("faults", [faults for faults, _ in FAILURES])
async def test_the_next_exchange_is_tried_if_tls_fails(autojump_clock, faults):
    async with open_fake_network() as network:
        bad = MailHost(ehlo_lines=TLS_OFFERED, tls_demanded_at="MAIL", faults=faults)
        network.add("shop.test", bad, mx="mx1.shop.test", preference=10)
        network.add("shop.test", MailHost(), mx="mx2.shop.test", preference=20)
        for verdict in await verify_once(network, "known1@shop.test", "known2@shop.test"):
            assert fields_of(verdict) == DELIVERABLE
            assert verdict.latency_ms <= 3050


async def test_the_upgrade_does_not_cost_the_second_conversation(autojump_clock):
    """The first exchange demands TLS and then fails at RCPT; there is one conversation left."""
    async with open_fake_network() as network:
        first = MailHost(ehlo_lines=TLS_OFFERED, tls_demanded_at="MAIL", faults={"RCPT 3": Close()})
        network.add("shop.test", first, mx="mx1.shop.test", preference=10)
        network.add("shop.test", MailHost(), mx="mx2.shop.test", preference=20)
        [verdict] = await verify_once(network, "known@shop.test")
        assert fields_of(verdict) == DELIVERABLE
        assert "STARTTLS" in commands_of(first)


@pytest.mark.parametrize("pipelining", [True, False])
async def test_a_host_that_demands_tls_and_hangs_up_gets_a_new_connection(
    autojump_clock, pipelining
):
    async with open_fake_network() as network:
        offer = TLS_OFFERED if pipelining else (*NO_PIPELINING, "STARTTLS")
        demand = SendLine("530 5.7.0 Must issue a STARTTLS command first", close=True)
        host = MailHost(
            ehlo_lines=offer,
            tls_demanded_at="MAIL",
            faults={"MAIL": demand},
            troubled_sessions=1,
        )
        network.add("shop.test", host)
        [verdict] = await verify_once(network, "known@shop.test")
        assert fields_of(verdict) == DELIVERABLE
        assert host.record.sessions_seen == 2


async def test_a_host_that_repeats_its_demand_is_given_up(autojump_clock):
    demand = SendLine("530 5.7.0 Must issue a STARTTLS command first")
    async with open_fake_network() as network:
        host = MailHost(ehlo_lines=TLS_OFFERED, tls_demanded_at="MAIL", faults={"MAIL": demand})
        network.add("shop.test", host)
        [verdict] = await verify_once(network, "known@shop.test")
        assert fields_of(verdict) == FAILED
        assert commands_of(host).count("STARTTLS") == 1
        assert sum(line.startswith("MAIL") for line in commands_of(host)) == 2


async def test_the_upgrade_ends_with_the_overall_clock(autojump_clock):
    """Every reply comes within its second, and all of them take longer than three."""
    async with open_fake_network() as network:
        host = new_host("starttls demanded", latency_s=0.7)
        network.add("shop.test", host)
        [verdict] = await verify_once(network, "known@shop.test")
        assert fields_of(verdict) == TIMED_OUT
        assert 3000 <= verdict.latency_ms <= 3050


async def test_a_probe_abandoned_during_the_upgrade_is_not_sent_afterwards(autojump_clock):
    async with open_fake_network() as network:
        host = new_host("starttls demanded", latency_s=0.2)
        network.add("shop.test", host)
        async with open_test_engine(network) as engine:
            with trio.move_on_after(0.9):
                await verify(engine, "known1@shop.test")
            [verdict] = await verify(engine, "known2@shop.test", account="he")
            await trio.sleep(10)
            assert_whole(engine)
        assert fields_of(verdict) == DELIVERABLE
        assert host.record.recipients["known1@shop.test"] == 1


async def test_the_evidence_shows_the_upgrade(autojump_clock):
    async with open_fake_network() as network:
        host = new_host("starttls demanded, in step", latency_s=0.1)
        address = network.add("shop.test", host)
        answer = await explain(network, "nobody@shop.test", helo_name="probe.test")
        assert answer.evidence is not None
        lines = [(line.who, line.text) for line in answer.evidence.conversation]
        begin = lines.index(("client", "MAIL FROM:<>"))
        starttls = ("client", "STARTTLS")
        assert lines[begin : begin + 5] == [
            ("client", "MAIL FROM:<>"),
            ("server", "530 5.7.0 Must issue a STARTTLS command first"),
            starttls,
            ("server", "220 2.0.0 Ready to start TLS"),
            ("client", "(TLS 1.3, certificate not judged)"),
        ]
        assert lines[begin + 5] == ("client", "EHLO probe.test")
        assert lines.count(("client", "EHLO probe.test")) == 2
        assert lines.count(("server", "220 mx.host.test ESMTP Postfix")) == 1
        times = [line.at_ms for line in answer.evidence.conversation]
        assert times == sorted(times)
        assert [(t.address, t.result) for t in answer.evidence.exchanges] == [(address, "answered")]
        assert answer.evidence.cached == []


async def test_the_evidence_of_a_connection_that_began_with_tls(autojump_clock):
    async with open_fake_network() as network:
        network.add("shop.test", new_host("starttls demanded at rcpt"))
        async with open_test_engine(network) as engine:
            for text in ("nobody1@shop.test", "nobody2@shop.test"):
                async with open_answers(engine, [text], account="me", explain=True) as answers:
                    [answer] = [answer async for answer in answers]
                await trio.sleep(10)
        assert answer.evidence is not None
        ours = [line.text for line in answer.evidence.conversation if line.who == "client"]
        assert [line.split(" ")[0] for line in ours] == [
            *("(connect)", "EHLO", "STARTTLS", "(TLS", "EHLO", "MAIL", "RCPT")
        ]


@pytest.mark.parametrize(
    ("faults", "last", "rule"),
    [
        ({"TLS": StaySilent()}, "(handshake failed: no answer in time)", "clock.starttls"),
        ({"TLS": Close()}, "(handshake failed: closed by the server)", "closed.starttls"),
        ({"TLS": Garbage()}, "(handshake failed: no TLS: ", "garbage.starttls"),
        ({"STARTTLS": Twice()}, "(handshake failed: plain text behind", "garbage.starttls"),
        ({"STARTTLS": SendLine("454 4.7.0 Later")}, "454 4.7.0 Later", None),
        ({"STARTTLS": StaySilent()}, "STARTTLS", "clock.starttls"),
    ],
)
async def test_the_evidence_of_an_upgrade_that_failed(autojump_clock, faults, last, rule):
    async with open_fake_network() as network:
        host = MailHost(ehlo_lines=TLS_OFFERED, tls_demanded_at="MAIL", faults=faults)
        network.add("shop.test", host)
        answer = await explain(network, "known@shop.test")
        assert answer.evidence is not None
        assert answer.evidence.conversation[-1].text.startswith(last)
        assert rule in (None, answer.evidence.rule)


# -- a sender is refused ---------------------------------------------------------------------


def test_the_senders_that_there_are():
    assert first_terms("") == Terms(("",))
    assert first_terms(NAMED) == Terms((NAMED, ""))


def test_a_sender_that_is_refused_comes_last():
    terms = first_terms(NAMED)
    assert terms.refuse(NAMED)
    assert terms.sender == ""
    assert terms.refuse(NAMED)  # by another connection's transaction, which began with it
    assert terms.sender == ""
    assert terms.refuse("")
    assert terms.sender == NAMED


def test_where_there_is_one_kind_of_sender_there_is_no_other():
    terms = first_terms("")
    assert not terms.refuse("")
    assert terms.sender == ""


@pytest.mark.parametrize("name", PARTICULAR)
@pytest.mark.parametrize("pipelining", [True, False], ids=["pipelined", "in step"])
async def test_the_other_kind_of_sender_is_offered_once(autojump_clock, name, pipelining):
    async with open_fake_network() as network:
        lines = EHLO_LINES if pipelining else NO_PIPELINING
        host = replace(PARTICULAR[name], ehlo_lines=lines)
        network.add("shop.test", host)
        texts = ["known1@shop.test", "nobody1@shop.test"]
        rounds = await in_turn(network, texts, ["known2@shop.test"], mail_from=NAMED)
        assert [fields_of(verdict) for verdicts in rounds for verdict in verdicts] == [
            *(DELIVERABLE, UNDELIVERABLE, DELIVERABLE)
        ]
        taken = "<>" if name.startswith("named") else f"<{NAMED}>"
        assert senders(host)[-1] == taken
        assert len([sender for sender in senders(host) if sender != taken]) <= 1
        assert host.record.sessions_seen == 2
        assert host.record.mistakes == []


@pytest.mark.parametrize("name", ["null, at MAIL", "null, at RCPT"])
async def test_without_a_named_sender_nothing_changes(autojump_clock, name):
    async with open_fake_network() as network:
        host = replace(PARTICULAR[name])
        network.add("shop.test", host)
        [verdict] = await verify_once(network, "known@shop.test")
        assert fields_of(verdict) == (FAILED if "MAIL" in name else UNKNOWN)
        assert senders(host) == ["<>"]


@pytest.mark.parametrize("at_rcpt", [False, True])
@pytest.mark.parametrize("texts", [["known@shop.test"], [f"nobody{n}@shop.test" for n in range(6)]])
async def test_a_host_that_refuses_both_kinds_is_offered_each_once(autojump_clock, at_rcpt, texts):
    """And condemns nobody."""
    async with open_fake_network() as network:
        host = MailHost(
            null_sender_reply=NULL_SENDER,
            named_sender_reply=NAMED_SENDER,
            judges_sender_at_rcpt=at_rcpt,
        )
        network.add("shop.test", host)
        verdicts = await verify_once(network, *texts, mail_from=NAMED)
        assert {fields_of(verdict) for verdict in verdicts} == {UNKNOWN if at_rcpt else FAILED}
        assert set(senders(host)) == {f"<{NAMED}>", "<>"}
        for text in texts:
            assert host.record.recipients[text] <= 2
        assert len(senders(host)) <= 2 * host.record.sessions_seen


async def test_a_host_that_refuses_both_kinds_is_rested_like_one_that_refuses_mail(
    autojump_clock,
):
    seen = []
    for kinds, mail_from in (("both", NAMED), ("the only one", "")):
        async with open_fake_network() as network:
            host = MailHost(
                null_sender_reply=NULL_SENDER,
                named_sender_reply=NULL_SENDER if kinds == "both" else None,
            )
            network.add("shop.test", host)
            rounds = [[f"a{number}@shop.test"] for number in range(12)]
            await in_turn(network, *rounds, mail_from=mail_from)
            seen.append(host.record.sessions_seen)
    assert seen[0] == seen[1] < 12


async def test_a_recipient_that_refuses_every_sender_keeps_the_others_from_nothing(
    autojump_clock,
):
    """It is asked twice, and the sender that the others take comes first again."""
    async with open_fake_network() as network:
        refusal = "550 5.1.8 Sender address rejected: not wanted here"
        host = MailHost(replies={"picky": refusal})
        network.add("shop.test", host)
        texts = ["known1@shop.test", "picky@shop.test", "nobody1@shop.test"]
        rounds = await in_turn(network, texts, ["known2@shop.test"], mail_from=NAMED)
        assert [fields_of(verdict) for verdicts in rounds for verdict in verdicts] == [
            *(DELIVERABLE, UNKNOWN, UNDELIVERABLE, DELIVERABLE)
        ]
        assert host.record.recipients["picky@shop.test"] == 2
        first, second, *others = senders(host)
        assert (first, second) == (f"<{NAMED}>", "<>")
        assert set(others) == {f"<{NAMED}>"}


@pytest.mark.parametrize("name", PARTICULAR)
@pytest.mark.parametrize("pipelining", [True, False], ids=["pipelined", "in step"])
async def test_a_batch_at_a_host_that_refuses_a_kind_of_sender_gets_right_verdicts(
    autojump_clock, name, pipelining
):
    async with open_fake_network() as network:
        lines = EHLO_LINES if pipelining else NO_PIPELINING
        host = replace(PARTICULAR[name], ehlo_lines=lines, latency_s=0.02)
        network.add("shop.test", host)
        texts = [f"{kind}{n}@shop.test" for n in range(25) for kind in ("known", "nobody")]
        for verdict in await verify_once(network, *texts, mail_from=NAMED):
            right = DELIVERABLE if verdict.email.startswith("known") else UNDELIVERABLE
            assert fields_of(verdict) == right
        assert host.record.mistakes == []
        assert max(session.refusals for session in host.record.sessions) <= 8


@pytest.mark.parametrize("name", PARTICULAR)
@pytest.mark.parametrize("step", ["MAIL", "RCPT"])
async def test_a_host_may_want_tls_and_another_sender(autojump_clock, name, step):
    async with open_fake_network() as network:
        host = replace(PARTICULAR[name], ehlo_lines=TLS_OFFERED, tls_demanded_at=step)
        network.add("shop.test", host)
        texts = ["known@shop.test", "nobody@shop.test"]
        verdicts = await verify_once(network, *texts, mail_from=NAMED)
        assert [fields_of(verdict) for verdict in verdicts] == [DELIVERABLE, UNDELIVERABLE]
        assert host.record.sessions_seen == 1
        assert host.record.mistakes == []


async def test_the_evidence_shows_both_senders(autojump_clock):
    async with open_fake_network() as network:
        network.add("shop.test", replace(PARTICULAR["named, at RCPT"]))
        answer = await explain(network, "nobody@shop.test", mail_from=NAMED, helo_name="probe.test")
        assert answer.evidence is not None
        ours = [line.text for line in answer.evidence.conversation if line.who == "client"]
        assert ours == [
            "(connect)",
            "EHLO probe.test",
            f"MAIL FROM:<{NAMED}>",
            "RCPT TO:<nobody@shop.test>",
            "RSET",
            "MAIL FROM:<>",
            "RCPT TO:<nobody@shop.test>",
        ]
        assert [each.result for each in answer.evidence.exchanges] == ["answered"]


# -- one domain's terms are not another's ---------------------------------------------------

BROKEN_TLS: dict[str, dict[str, ReplyFault]] = {
    "closes": {"TLS": Close()},
    "resets": {"TLS": ResetConnection()},
    "silent": {"TLS": StaySilent()},
    "refuses": {"STARTTLS": SendLine("454 4.7.0 TLS not available due to temporary reason")},
}


@pytest.mark.parametrize("fault", BROKEN_TLS)
@pytest.mark.parametrize("in_step", [False, True])
async def test_tls_that_one_domain_demands_in_vain_is_not_begun_for_others(
    autojump_clock, fault, in_step
):
    offer = (*NO_PIPELINING, "STARTTLS") if in_step else TLS_OFFERED
    async with open_fake_network() as network:
        host = MailHost(
            ehlo_lines=offer,
            faults=BROKEN_TLS[fault],
            replies={"@strict.test": "530 5.7.0 Must issue a STARTTLS command first"},
        )
        network.add("shop.test", host)
        network.add("strict.test", host)
        async with open_checked_engine(network) as engine:
            for round_ in range(3):
                await verify(engine, f"a{round_}@strict.test", f"b{round_}@strict.test")
                for _ in range(2):
                    verdicts = await verify(engine, f"known{round_}@shop.test", "gone@shop.test")
                    assert [verdict.status for verdict in verdicts] == [
                        "deliverable",
                        "undeliverable",
                    ]
                    await trio.sleep(10)
