"""The verdict on an address, for each kind of mail host and resolver."""

from dataclasses import replace

import pytest
import trio

from mailprobe.bench.world.fake_network import open_fake_network
from mailprobe.bench.world.faults import Close, Late, SendLine, StaySilent
from mailprobe.bench.world.host_profiles import SPAMHAUS, new_host
from mailprobe.bench.world.mail_host import MailHost
from mailprobe.bench.world.zone import ZoneMode
from mailprobe.engine import (
    in_order,
    open_answers,
)
from tests.engine.engine_runs import (
    CATCH_ALL,
    DELIVERABLE,
    FAILED,
    NO_MX,
    TIMED_OUT,
    UNDELIVERABLE,
    UNKNOWN,
    UNTESTED,
    fields_of,
    knowns,
    open_test_engine,
    verify,
    verify_once,
)


@pytest.mark.parametrize(
    ("profile", "known", "unknown"),
    [
        ("friendly", DELIVERABLE, UNDELIVERABLE),
        ("postfix", DELIVERABLE, UNDELIVERABLE),
        ("exim", DELIVERABLE, UNDELIVERABLE),
        ("opensmtpd", DELIVERABLE, UNDELIVERABLE),
        ("exchange", DELIVERABLE, UNDELIVERABLE),
        ("google", DELIVERABLE, UNDELIVERABLE),
        ("catch all", CATCH_ALL, CATCH_ALL),
        ("helo only", DELIVERABLE, UNDELIVERABLE),
        ("no pipelining", DELIVERABLE, UNDELIVERABLE),
        ("no smtputf8", DELIVERABLE, UNDELIVERABLE),
        ("one recipient", DELIVERABLE, UNDELIVERABLE),
        ("one recipient declared", DELIVERABLE, UNDELIVERABLE),
        ("few connections", DELIVERABLE, UNDELIVERABLE),
        ("far away", DELIVERABLE, UNDELIVERABLE),
        ("laborious", DELIVERABLE, UNDELIVERABLE),
        ("splitting", DELIVERABLE, UNDELIVERABLE),
        ("slow banner", DELIVERABLE, UNDELIVERABLE),
        ("latin-1", DELIVERABLE, UNDELIVERABLE),
        ("greylisting", UNKNOWN, UNKNOWN),
        ("blocklisted", UNKNOWN, UNKNOWN),
        ("no reverse name", UNKNOWN, UNKNOWN),
        ("banned", UNKNOWN, UNKNOWN),
        ("blocked at mail", FAILED, FAILED),
        ("blocked at banner", FAILED, FAILED),
        ("full", UNKNOWN, UNDELIVERABLE),
        ("over quota", UNKNOWN, UNDELIVERABLE),
        ("disabled", UNDELIVERABLE, UNDELIVERABLE),
        ("not now", UNKNOWN, UNKNOWN),
        ("refused", FAILED, FAILED),
        ("unanswered", TIMED_OUT, TIMED_OUT),
        ("unreachable", FAILED, FAILED),
        ("silent", TIMED_OUT, TIMED_OUT),
        ("silent at ehlo", TIMED_OUT, TIMED_OUT),
        ("silent at mail", TIMED_OUT, TIMED_OUT),
        ("silent at rcpt", TIMED_OUT, TIMED_OUT),
        ("dripping", TIMED_OUT, TIMED_OUT),
        ("dripping at ehlo", TIMED_OUT, TIMED_OUT),
        ("dripping at rcpt", TIMED_OUT, TIMED_OUT),
        ("stalling", TIMED_OUT, TIMED_OUT),
        ("stalling at rcpt", TIMED_OUT, TIMED_OUT),
        ("late", TIMED_OUT, TIMED_OUT),
        ("late banner", TIMED_OUT, TIMED_OUT),
        ("endless banner", FAILED, FAILED),
        ("endless ehlo", FAILED, FAILED),
        ("endless line", FAILED, FAILED),
        ("garbage", FAILED, FAILED),
        ("garbage at ehlo", FAILED, FAILED),
        ("garbage at rcpt", FAILED, FAILED),
        ("closing", FAILED, FAILED),
        ("closing at ehlo", FAILED, FAILED),
        ("closing at mail", FAILED, FAILED),
        ("closing at rcpt", FAILED, FAILED),
        ("closing in mid reply", FAILED, FAILED),
        ("resetting", FAILED, FAILED),
        ("resetting at rcpt", FAILED, FAILED),
        ("shutting down", FAILED, FAILED),
        ("shutting down at ehlo", FAILED, FAILED),
        ("shutting down at mail", FAILED, FAILED),
        ("shutting down at rcpt", FAILED, FAILED),
        ("starttls offered", DELIVERABLE, UNDELIVERABLE),
        ("starttls demanded", DELIVERABLE, UNDELIVERABLE),
        ("starttls demanded at rcpt", DELIVERABLE, UNDELIVERABLE),
        ("starttls demanded, in step", DELIVERABLE, UNDELIVERABLE),
        ("starttls demanded at rcpt, in step", DELIVERABLE, UNDELIVERABLE),
        ("starttls demanded, not offered", FAILED, FAILED),
        ("starttls demanded at rcpt, not offered", UNKNOWN, UNKNOWN),
        ("starttls refused", FAILED, FAILED),
        ("no null sender", FAILED, FAILED),
        ("no null sender at rcpt", UNKNOWN, UNKNOWN),
        ("no named sender", DELIVERABLE, UNDELIVERABLE),
    ],
)
async def test_a_host_of_each_character(autojump_clock, profile, known, unknown):
    """A mailbox that exists and one that does not, each verified alone."""
    for text, expected in (("known@shop.test", known), ("nobody@shop.test", unknown)):
        async with open_fake_network() as network:
            host = new_host(profile)
            network.add("shop.test", host)
            [verdict] = await verify_once(network, text)
            assert fields_of(verdict) == expected
            assert verdict.latency_ms <= 3050
            assert verdict.mx_found
            assert verdict.mx_host == "mx.shop.test"
            assert host.record.mistakes == []


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        (ZoneMode.NXDOMAIN, NO_MX),
        (ZoneMode.SERVFAIL, UNKNOWN),
        (ZoneMode.REFUSED, UNKNOWN),
        (ZoneMode.HANG, UNKNOWN),
        (ZoneMode.HTML, UNKNOWN),
        (ZoneMode.WRONG_QUESTION, UNKNOWN),
        (ZoneMode.BLOCKED, UNKNOWN),
        (ZoneMode.CENSORED, UNKNOWN),
    ],
)
async def test_a_resolver_of_each_mood(autojump_clock, mode, expected):
    """Only a certain answer is `no_mx`; a resolver's failure never is."""
    async with open_fake_network() as network:
        network.zone.mode("shop.test", mode)
        [verdict] = await verify_once(network, "ann@shop.test")
        assert fields_of(verdict) == expected
        assert (verdict.mx_found, verdict.mx_host) == (False, None)


async def test_no_mx_record_and_a_null_mx(autojump_clock):
    async with open_fake_network() as network:
        network.zone.exists("bare.test")
        network.zone.null_mx("null.test")
        for verdict in await verify_once(network, "ann@bare.test", "ann@null.test"):
            assert fields_of(verdict) == NO_MX
            assert (verdict.mx_found, verdict.mx_host) == (False, None)


async def test_mx_records_that_name_no_host_are_no_mx_found(autojump_clock):
    """mx_found and mx_host always agree; such a domain is not `no_mx`."""
    async with open_fake_network() as network:
        network.zone.mx("shop.test", "127.0.0.1")
        [verdict] = await verify_once(network, "ann@shop.test")
        assert fields_of(verdict) == UNKNOWN
        assert (verdict.mx_found, verdict.mx_host) == (False, None)


async def test_an_exchange_without_an_address_is_smtp(autojump_clock):
    async with open_fake_network() as network:
        network.zone.mx("shop.test", "mx.nowhere.test")
        [verdict] = await verify_once(network, "ann@shop.test")
        assert fields_of(verdict) == FAILED
        assert (verdict.mx_found, verdict.mx_host) == (True, "mx.nowhere.test")


async def test_an_exchange_whose_look_up_fails_is_the_resolvers_failure(autojump_clock):
    async with open_fake_network() as network:
        network.zone.mx("shop.test", "mx.shop.test")
        network.zone.mode("mx.shop.test", ZoneMode.SERVFAIL)
        [verdict] = await verify_once(network, "ann@shop.test")
        assert fields_of(verdict) == UNKNOWN
        assert (verdict.mx_found, verdict.mx_host) == (True, "mx.shop.test")


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "10.1.2.3",
        "169.254.169.254",
        "100.64.0.1",
        "192.0.2.1",
        "224.0.0.1",
        "::1",
        "::ffff:8.8.8.8",
        "64:ff9b::808:808",
        "fe80::1",
        "2002:808:808::1",
    ],
)
async def test_an_exchange_that_is_not_public_is_never_connected_to(autojump_clock, address):
    async with open_fake_network() as network:
        network.add("shop.test", MailHost(), address=address)
        [verdict] = await verify_once(network, "known@shop.test")
        assert fields_of(verdict) == FAILED
        assert not network.dialled


async def test_a_private_exchange_is_reached_where_that_is_allowed(autojump_clock):
    async with open_fake_network() as network:
        network.add("shop.test", MailHost(), address="127.0.0.1")
        [verdict] = await verify_once(network, "known@shop.test", allow_private=True)
        assert fields_of(verdict) == DELIVERABLE


# -- the random address ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        ("550 5.1.1 User unknown", DELIVERABLE),
        ("250 2.1.5 Ok", CATCH_ALL),
        (SPAMHAUS, UNTESTED),
        ("451 4.3.0 Try again later", UNTESTED),
        ("450 4.7.1 Greylisted", UNTESTED),
        ("552 5.2.2 Mailbox full", UNTESTED),
    ],
)
async def test_the_reply_to_the_random_address_decides_catch_all(autojump_clock, reply, expected):
    async with open_fake_network() as network:
        network.add("shop.test", MailHost(default_unknown=reply))
        [verdict] = await verify_once(network, "known@shop.test")
        assert fields_of(verdict) == expected


async def test_a_random_address_that_times_out_leaves_the_real_one_deliverable(autojump_clock):
    async with open_fake_network() as network:
        host = MailHost(reply_s=0.9, ehlo_lines=("SIZE 1",))
        network.add("shop.test", host)
        [verdict] = await verify_once(network, "known@shop.test")
        assert fields_of(verdict) == TIMED_OUT  # 0.9 s for each of banner, EHLO, MAIL and RCPT
        host = MailHost(reply_s=0.65, ehlo_lines=("SIZE 1",))
        network.add("slow.test", host)
        [verdict] = await verify_once(network, "known@slow.test")
        assert fields_of(verdict) == UNTESTED
        assert verdict.latency_ms <= 3050


@pytest.mark.parametrize(
    ("catch_all", "kept_h"), [(False, 7 * 24), (True, 6)], ids=["refuses", "accepts"]
)
async def test_a_domain_is_tested_once_in_a_week_or_where_it_accepts_all_in_six_hours(
    autojump_clock, catch_all, kept_h
):
    async with open_fake_network() as network:
        host = MailHost(catch_all=catch_all)
        network.add("shop.test", host)
        async with open_test_engine(network, mint=lambda shape: "random") as engine:
            for number, (at_h, tests) in enumerate(
                ((0, 1), (1, 1), (kept_h - 0.1, 1), (kept_h + 0.1, 2))
            ):
                await trio.sleep_until(at_h * 3600)
                [verdict] = await verify(engine, f"known{number}@shop.test")
                assert fields_of(verdict) == (CATCH_ALL if catch_all else DELIVERABLE)
                assert host.record.recipients["random@shop.test"] == tests


async def test_both_answers_are_kept(autojump_clock):
    async with open_fake_network() as network:
        host = MailHost(catch_all=True)
        network.add("shop.test", host)
        async with open_test_engine(network, mint=lambda shape: "random") as engine:
            for number in range(3):
                [verdict] = await verify(engine, f"a{number}@shop.test")
                assert fields_of(verdict) == CATCH_ALL
        assert host.record.recipients["random@shop.test"] == 1


async def test_no_random_address_is_sent_unless_a_real_one_was_accepted(autojump_clock):
    """In lock-step, where nothing is pipelined behind the real one."""
    async with open_fake_network() as network:
        host = new_host("no pipelining")
        network.add("shop.test", host)
        await verify_once(network, "nobody@shop.test")
        assert set(host.record.recipients) == {"nobody@shop.test"}


async def test_the_real_recipient_comes_first(autojump_clock):
    async with open_fake_network() as network:
        host = MailHost()
        network.add("shop.test", host)
        await verify_once(network, "known@shop.test")
        [session] = host.record.sessions
        assert session.recipients[0] == "known@shop.test"
        assert len(session.recipients) == 2


# -- from exchange to exchange ---------------------------------------------------------------


@pytest.mark.parametrize(
    "first",
    [
        "refused",
        "unanswered",
        "unreachable",
        "silent",
        "late banner",
        "garbage",
        "closing",
        "resetting",
        "shutting down",
        "blocked at banner",
        "blocked at mail",
        "silent at ehlo",
        "closing at mail",
        "shutting down at ehlo",
    ],
)
async def test_the_next_exchange_is_tried(autojump_clock, first):
    async with open_fake_network() as network:
        network.add("shop.test", new_host(first), mx="mx1.shop.test", preference=10)
        network.add("shop.test", MailHost(), mx="mx2.shop.test", preference=20)
        known, unknown = await verify_once(network, "known@shop.test", "nobody@shop.test")
        assert fields_of(known) == DELIVERABLE
        assert fields_of(unknown) == UNDELIVERABLE
        assert known.mx_host == "mx1.shop.test"


async def test_an_answer_to_rcpt_is_final_whatever_the_next_exchange_would_say(autojump_clock):
    async with open_fake_network() as network:
        backup = MailHost(catch_all=True)
        network.add("shop.test", MailHost(), mx="mx1.shop.test", preference=10)
        network.add("shop.test", backup, mx="mx2.shop.test", preference=20)
        [verdict] = await verify_once(network, "nobody@shop.test")
        assert fields_of(verdict) == UNDELIVERABLE
        assert backup.record.sessions_seen == 0


async def test_at_most_five_addresses_and_two_conversations(autojump_clock):
    async with open_fake_network() as network:
        for number in range(8):
            network.add(
                "refused.test",
                new_host("refused"),
                mx=f"mx{number}.refused.test",
                preference=number,
            )
            network.add(
                "busy.test",
                new_host("shutting down"),
                mx=f"mx{number}.busy.test",
                preference=number,
            )
        [refused] = await verify_once(network, "ann@refused.test")
        assert fields_of(refused) == FAILED
        assert len(network.dialled) == 5
        network.dialled.clear()
        [busy] = await verify_once(network, "ann@busy.test")
        assert fields_of(busy) == FAILED
        assert len(network.dialled) == 2


async def test_the_verdict_is_that_of_the_last_exchange_tried(autojump_clock):
    async with open_fake_network() as network:
        network.add("shop.test", new_host("silent"), mx="mx1.shop.test", preference=10)
        network.add("shop.test", new_host("refused"), mx="mx2.shop.test", preference=20)
        [verdict] = await verify_once(network, "ann@shop.test")
        assert fields_of(verdict) == FAILED


async def test_an_exchange_of_several_addresses_is_tried_at_each(autojump_clock):
    async with open_fake_network() as network:
        network.add("shop.test", new_host("refused"), mx="mx.shop.test", address="11.1.1.1")
        network.zone.host("mx.shop.test", "11.1.1.1", "11.1.1.2")
        network.hosts["11.1.1.2"] = MailHost()
        [verdict] = await verify_once(network, "known@shop.test")
        assert fields_of(verdict) == DELIVERABLE


# -- what goes wrong half-way ----------------------------------------------------------------


async def test_recipients_behind_a_stalled_one_are_sent_again(autojump_clock):
    """One mailbox that the host cannot look up must not cost the others their verdicts."""
    async with open_fake_network() as network:
        network.add("shop.test", MailHost(faults={"stuck@shop.test": StaySilent()}))
        texts = ["stuck@shop.test", *knowns(5)]
        stuck, *others = await verify_once(network, *texts)
        assert fields_of(stuck) == TIMED_OUT
        assert {fields_of(verdict) for verdict in others} == {DELIVERABLE}


async def test_a_late_reply_never_answers_the_next_question(autojump_clock):
    """A reply after our time-out must not be taken for another address's."""
    async with open_fake_network() as network:
        network.add("shop.test", MailHost(faults={"nobody@shop.test": Late(1.5)}))
        async with open_test_engine(network, host_connections=1) as engine:
            for text, expected in (
                ("nobody@shop.test", TIMED_OUT),
                ("known@shop.test", DELIVERABLE),
            ):
                [verdict] = await verify(engine, text)
                assert fields_of(verdict) == expected


@pytest.mark.parametrize(
    "closed", [Close(), SendLine("421 4.4.2 Error: timeout exceeded", close=True)]
)
async def test_a_reused_connection_that_fails_first_is_replaced(autojump_clock, closed):
    """An idle connection turns out to be closed: the probe is sent again on a new one."""
    async with open_fake_network() as network:
        host = MailHost(faults={"known2": closed}, troubled_sessions=1)
        network.add("shop.test", host)
        async with open_test_engine(network) as engine:
            for text in ("known1@shop.test", "known2@shop.test"):
                [verdict] = await verify(engine, text)
                assert fields_of(verdict) == DELIVERABLE
        assert host.record.sessions_seen == 2


async def test_a_connection_is_reused_and_quit(autojump_clock):
    async with open_fake_network() as network:
        host = MailHost()
        network.add("shop.test", host)
        async with open_test_engine(network) as engine:
            for number in range(5):
                await verify(engine, f"known{number}@shop.test")
        [session] = host.record.sessions
        assert session.quit


async def test_closing_the_engine_says_quit_at_once(autojump_clock):
    async with open_fake_network() as network:
        host = MailHost()
        network.add("shop.test", host)
        async with open_test_engine(network) as engine:
            await verify(engine, "known@shop.test")
            before = trio.current_time()
        assert trio.current_time() - before < 0.1
        assert host.record.sessions[0].quit


# -- our side of the conversation ------------------------------------------------------------


async def test_smtputf8_is_used_only_if_it_is_offered(autojump_clock):
    async with open_fake_network() as network:
        offers, lacks = MailHost(catch_all=True), new_host("no smtputf8", catch_all=True)
        network.add("offers.test", offers)
        network.add("lacks.test", lacks)
        offered, lacking, plain = await verify_once(
            network, "jürgen@offers.test", "jürgen@lacks.test", "ann@lacks.test"
        )
        assert fields_of(offered) == CATCH_ALL
        assert fields_of(lacking) == UNKNOWN
        assert fields_of(plain) == CATCH_ALL
        assert "jürgen@offers.test" in offers.record.recipients
        assert "jürgen@lacks.test" not in lacks.record.recipients


async def test_eight_refusals_end_a_session(autojump_clock):
    async with open_fake_network() as network:
        host = new_host("postfix")
        network.add("shop.test", host)
        verdicts = await verify_once(
            network, *(f"nobody{number}@shop.test" for number in range(40))
        )
        assert {fields_of(verdict) for verdict in verdicts} == {UNDELIVERABLE}
        assert all(session.refusals <= 8 for session in host.record.sessions)
        assert all(session.quit for session in host.record.sessions)


async def test_a_hundred_recipients_end_a_session(autojump_clock):
    async with open_fake_network() as network:
        host = MailHost(catch_all=True)
        network.add("shop.test", host)
        verdicts = await verify_once(
            network, *(f"a{number}@shop.test" for number in range(250)), host_connections=1
        )
        assert {fields_of(verdict) for verdict in verdicts} == {CATCH_ALL}
        assert all(len(session.recipients) <= 100 for session in host.record.sessions)
        assert host.record.sessions_seen == 3


async def test_a_host_that_wants_each_recipient_by_itself_gets_few_resets(autojump_clock):
    async with open_fake_network() as network:
        host = replace(new_host("exim"), recipients_max=1)
        network.add("shop.test", host)
        verdicts = await verify_once(network, *knowns(30))
        assert {fields_of(verdict) for verdict in verdicts} == {DELIVERABLE}
        for session in host.record.sessions:
            assert sum(spoken.line == "RSET" for spoken in session.commands_seen) <= 8


@pytest.mark.parametrize("limit", ["RCPTMAX=3", "MAILMAX=1 RCPTMAX=4", "RCPTDOMAINMAX=1"])
async def test_declared_limits_are_obeyed(autojump_clock, limit):
    async with open_fake_network() as network:
        host = replace(MailHost(), ehlo_lines=(*MailHost().ehlo_lines, f"LIMITS {limit}"))
        network.add("one.test", host)
        network.add("two.test", host)
        texts = [
            f"known{number}@{domain}.test" for number in range(10) for domain in ("one", "two")
        ]
        verdicts = await verify_once(network, *texts)
        assert {fields_of(verdict) for verdict in verdicts} == {DELIVERABLE}
        for session in host.record.sessions:
            assert_limits(session, dict(item.split("=") for item in limit.split()))


def assert_limits(session, limits: dict[str, str]) -> None:
    transactions, recipients = 0, 0
    domains: set[str] = set()
    for spoken in session.commands_seen:
        if spoken.line.startswith("MAIL"):
            transactions, recipients, domains = transactions + 1, 0, set()
        elif spoken.line.startswith("RCPT"):
            recipients += 1
            domains.add(spoken.line.rpartition("@")[2])
        assert transactions <= int(limits.get("MAILMAX", 1000))
        assert recipients <= int(limits.get("RCPTMAX", 1000))
        assert len(domains) <= int(limits.get("RCPTDOMAINMAX", 1000))


async def test_the_whole_conversation_as_it_stands_on_the_wire(autojump_clock):
    async with open_fake_network() as network:
        host = MailHost()
        network.add("shop.test", host)
        async with (
            open_test_engine(
                network,
                mint=lambda shape: "nobodyhasthis",
                helo_name="probe.example.org",
                mail_from="check@example.org",
            ) as engine,
            open_answers(engine, ["known@shop.test"], account="me") as answers,
        ):
            await in_order(answers, 1)
        assert [spoken.line for spoken in host.record.sessions[0].commands_seen] == [
            "EHLO probe.example.org",
            "MAIL FROM:<check@example.org>",
            "RCPT TO:<known@shop.test>",
            "RCPT TO:<nobodyhasthis@shop.test>",
            "QUIT",
        ]


async def test_a_host_that_refuses_us_is_rested(autojump_clock):
    """After repeated refusals the host gets a back-off; the verdict stays the same."""
    async with open_fake_network() as network:
        host = new_host("blocked at banner")
        network.add("shop.test", host)
        async with open_test_engine(network) as engine:
            for number in range(20):
                [verdict] = await verify(engine, f"a{number}@shop.test")
                assert fields_of(verdict) == FAILED
            assert host.record.sessions_seen <= 3
            await trio.sleep(3600)
            await verify(engine, "later@shop.test")
        assert host.record.sessions_seen > 2


async def test_a_host_that_blocks_us_at_rcpt_is_rested_with_the_same_verdict(autojump_clock):
    async with open_fake_network() as network:
        host = new_host("blocklisted")
        network.add("shop.test", host)
        verdicts = await verify_once(network, *knowns(50))
        assert {fields_of(verdict) for verdict in verdicts} == {UNKNOWN}
        assert sum(host.record.recipients.values()) <= 16
