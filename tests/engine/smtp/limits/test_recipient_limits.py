"""Hosts with a limit of recipients in any words: asked again in smaller ones, and told right."""

from collections import Counter
from typing import Any

import pytest
import trio

from mailprobe.bench.world.fake_network import open_fake_network
from mailprobe.bench.world.faults import Late, SendLine
from mailprobe.bench.world.host_profiles import LIMIT_REPLIES, NO_PIPELINING, limited_host
from mailprobe.bench.world.mail_host import EHLO_LINES, MailHost
from mailprobe.engine import Verdict, open_answers
from mailprobe.engine.smtp.limits import FIRST_S, UNLIMITED, RecipientLimits
from mailprobe.engine.smtp.probe import OBJECTIONS_MAX
from mailprobe.engine.smtp.session.recipient_limits import REFUSALS_MAX
from tests.engine.engine_runs import (
    DELIVERABLE,
    FAILED,
    UNDELIVERABLE,
    UNKNOWN,
    UNTESTED,
    fields_of,
    knowns,
    open_checked_engine,
    open_test_engine,
    verify,
    verify_once,
)
from tests.seeds import pairs

LIMITS: dict[str, dict[str, int]] = {
    "1 a transaction": {"per_transaction": 1},
    "2 a transaction": {"per_transaction": 2},
    "3 a transaction": {"per_transaction": 3},
    "10 a transaction": {"per_transaction": 10},
    "1 a connection": {"per_connection": 1},
    "2 a connection": {"per_connection": 2},
    "5 a connection": {"per_connection": 5},
    "2 a transaction, 4 a connection": {"per_transaction": 2, "per_connection": 4},
}
ONE_ONLY = "550 Nur ein Empfänger je Nachricht erlaubt"
POLICY = "550 5.7.1 <{rcpt}>: Delivery not authorized by the customer"


def mixed(count: int) -> list[str]:
    """Every fifth mailbox is missing."""
    return [f"{'nobody' if n % 5 == 3 else 'known'}{n}@shop.test" for n in range(count)]


def assert_true(verdicts: list[Verdict]) -> None:
    for verdict in verdicts:
        expected = UNDELIVERABLE if verdict.email.startswith("nobody") else DELIVERABLE
        assert fields_of(verdict) == expected, verdict


def assert_polite(host: MailHost) -> None:
    assert host.record.mistakes == []
    assert all(session.refusals <= REFUSALS_MAX for session in host.record.sessions)


def limits_of(engine: Any) -> RecipientLimits:
    [probed] = engine.probing.egresses[0].hosts.values()
    limits: RecipientLimits = probed.terms.limits
    return limits


@pytest.mark.parametrize(("limit", "reply"), pairs(LIMITS, LIMIT_REPLIES))
async def test_a_batch_gets_right_verdicts_at_any_limit_and_wording(autojump_clock, limit, reply):
    turn = LIMIT_REPLIES.index(reply) + list(LIMITS).index(limit)
    async with open_fake_network() as network:
        host = limited_host(
            reply,
            **LIMITS[limit],
            ehlo_lines=NO_PIPELINING if turn % 2 else EHLO_LINES,
            counts_accepted_only=turn % 4 > 1,
            latency_s=0.005,
        )
        network.add("shop.test", host)
        assert_true(await verify_once(network, *mixed(50)))
        assert_polite(host)


@pytest.mark.parametrize("pipelining", [True, False], ids=["pipelined", "in step"])
@pytest.mark.parametrize(
    ("limit", "reply"),
    pairs(LIMITS, [LIMIT_REPLIES[0], ONE_ONLY, "421 4.7.0 Too many", ""]),
)
async def test_a_list_gets_right_verdicts(autojump_clock, reply, limit, pipelining):
    async with open_fake_network() as network:
        host = limited_host(
            reply,
            **LIMITS[limit],
            ehlo_lines=EHLO_LINES if pipelining else NO_PIPELINING,
            latency_s=0.02,
            connect_s=0.02,
        )
        network.add("shop.test", host)
        async with open_checked_engine(network) as engine:
            assert_true(await verify(engine, *mixed(80), deferred_start=True))
        assert_polite(host)


@pytest.mark.parametrize("explain", [False, True])
@pytest.mark.parametrize("limit", ["1 a transaction", "1 a connection"])
@pytest.mark.parametrize("reply", LIMIT_REPLIES)
async def test_a_random_address_that_a_limit_refused_is_sent_again(
    autojump_clock, reply, limit, explain
):
    """Its refusal says nothing about the domain, which is then not left untested."""
    async with open_fake_network() as network:
        host = limited_host(reply, **LIMITS[limit])
        network.add("shop.test", host)
        async with (
            open_checked_engine(network) as engine,
            open_answers(engine, ["known@shop.test"], account="me", explain=explain) as answers,
        ):
            [verdict] = [answer.verdict async for answer in answers]
        assert fields_of(verdict) == DELIVERABLE
        assert_polite(host)


async def test_a_limit_is_learned_once(autojump_clock):
    async with open_fake_network() as network:
        host = limited_host(ONE_ONLY, per_transaction=2)
        network.add("shop.test", host)
        async with open_checked_engine(network, host_connections=1) as engine:
            assert_true(await verify(engine, *knowns(8), deferred_start=True))
            assert limits_of(engine).per_transaction == 2
            met = sum(session.refusals for session in host.record.sessions)
            await trio.sleep(10)  # the connection is closed
            assert_true(await verify(engine, *knowns(40), deferred_start=True))
        assert sum(session.refusals for session in host.record.sessions) == met


async def test_an_exchange_keeps_its_limit_when_its_addresses_change(autojump_clock):
    async with open_fake_network() as network:
        host = limited_host(ONE_ONLY, per_connection=1)
        network.add("shop.test", host, mx="mx.shop.test")
        network.add("other.test", host, mx="mx.other.test")
        async with open_checked_engine(network) as engine:
            await verify(engine, *knowns(3))
            probed = next(iter(engine.probing.egresses[0].hosts.values()))
            moved = engine.probing.egresses[0].hosts.find(("11.0.0.77",), "mx.shop.test")
            assert moved.terms.limits is probed.terms.limits
            assert moved.terms.limits.per_connection == 1


@pytest.mark.parametrize("pipelining", [True, False], ids=["pipelined", "in step"])
async def test_refusals_as_unknown_are_no_limit(autojump_clock, pipelining):
    """They are evidence in themselves: each is asked once."""
    async with open_fake_network() as network:
        host = MailHost(ehlo_lines=EHLO_LINES if pipelining else NO_PIPELINING)
        network.add("shop.test", host)
        texts = ["known1@shop.test", "known2@shop.test", *(f"no{n}@shop.test" for n in range(6))]
        async with open_checked_engine(network, host_connections=1) as engine:
            verdicts = await verify(engine, *texts)
            assert limits_of(engine).per_transaction == UNLIMITED
        assert Counter(map(fields_of, verdicts)) == {DELIVERABLE: 2, UNDELIVERABLE: 6}
        accepted = set(texts[:2])  # they may be asked again as controls of a host that refuses
        again = {each for each, times in host.record.recipients.items() if times > 1}
        assert again <= accepted


@pytest.mark.parametrize("explain", [False, True])
async def test_greylisting_from_the_first_recipient_on_is_no_limit(autojump_clock, explain):
    async with open_fake_network() as network:
        host = MailHost(greylist_s=300.0)
        network.add("shop.test", host)
        async with (
            open_checked_engine(network, host_connections=1) as engine,
            open_answers(engine, knowns(20), account="me", explain=explain) as answers,
        ):
            verdicts = [answer.verdict async for answer in answers]
        assert {fields_of(verdict) for verdict in verdicts} == {UNKNOWN}
        assert max(host.record.recipients.values()) == 1


async def test_a_policy_between_judged_recipients_is_no_limit(autojump_clock):
    async with open_fake_network() as network:
        host = MailHost(replies={"picky": POLICY})
        network.add("shop.test", host)
        texts = ["known1@shop.test", "picky@shop.test", "known2@shop.test"]
        verdicts = await verify_once(network, *texts)
        assert [fields_of(each) for each in verdicts] == [DELIVERABLE, UNKNOWN, DELIVERABLE]
        assert host.record.recipients["picky@shop.test"] == 1


@pytest.mark.parametrize("pipelining", [True, False], ids=["pipelined", "in step"])
async def test_a_policy_that_looks_like_a_limit_is_tested_once_for_a_host(
    autojump_clock, pipelining
):
    """A new transaction and a new connection do not cure it; then its words are known."""
    async with open_fake_network() as network:
        picky = [f"picky{n}" for n in range(12)]
        host = MailHost(
            ehlo_lines=EHLO_LINES if pipelining else NO_PIPELINING,
            replies=dict.fromkeys(picky, POLICY),
        )
        network.add("shop.test", host)
        async with open_checked_engine(network, host_connections=1) as engine:
            first = await verify(engine, *knowns(2), *(f"{each}@shop.test" for each in picky[:6]))
            assert Counter(map(fields_of, first)) == {DELIVERABLE: 2, UNKNOWN: 6}
            assert limits_of(engine).width == UNLIMITED
            sent = sum(host.record.recipients[f"{each}@shop.test"] for each in picky[:6])
            assert sent <= 6 + 2 * OBJECTIONS_MAX
            again = await verify(engine, *knowns(2), *(f"{each}@shop.test" for each in picky[6:]))
            assert Counter(map(fields_of, again)) == {DELIVERABLE: 2, UNKNOWN: 6}
        assert {host.record.recipients[f"{each}@shop.test"] for each in picky[6:]} == {1}
        assert_polite(host)


async def test_a_random_address_that_policy_refuses_is_settled_as_untested(autojump_clock):
    async with open_fake_network() as network:
        host = MailHost(default_unknown="550 5.7.1 Message rejected due to content restrictions")
        network.add("shop.test", host)
        [verdict] = await verify_once(network, "known@shop.test")
        assert fields_of(verdict) == UNTESTED
        assert host.record.sessions_seen <= 2


async def test_a_burst_of_temporary_failures_is_no_limit_for_long(autojump_clock):
    async with open_fake_network() as network:
        burst = ("451 4.3.0 Temporary lookup failure", "250 2.1.5 Ok")
        host = MailHost(replies={f"known{n}": burst for n in range(2, 6)})
        network.add("shop.test", host)
        async with open_checked_engine(network, host_connections=1) as engine:
            await verify(engine, "known@shop.test")  # a random address would be judged last
            assert_true(await verify(engine, *knowns(6)))
            assert limits_of(engine).width < UNLIMITED
            await trio.sleep(FIRST_S)
            assert_true(await verify(engine, *knowns(30)))
            assert limits_of(engine).width == UNLIMITED


async def test_a_host_that_restarts_has_no_limit_for_long(autojump_clock):
    async with open_fake_network() as network:
        closing = SendLine("421 4.3.2 Service shutting down", close=True)
        host = MailHost(faults={"RCPT 3": closing}, troubled_sessions=1)
        network.add("shop.test", host)
        async with open_checked_engine(network, host_connections=1) as engine:
            assert_true(await verify(engine, *mixed(20)))
            await trio.sleep(FIRST_S)
            assert_true(await verify(engine, *mixed(40)[20:]))
            assert limits_of(engine).width == UNLIMITED


@pytest.mark.parametrize(("code", "fields"), [("421 4.7.0 Not you", FAILED), (POLICY, UNKNOWN)])
async def test_a_recipient_refused_at_every_position_is_sent_a_bounded_number_of_times(
    autojump_clock, code, fields
):
    async with open_fake_network() as network:
        host = MailHost(replies={"picky": code})
        if code.startswith("421"):
            host = MailHost(faults={"picky": SendLine(code, close=True)})
        network.add("shop.test", host)
        verdicts = await verify_once(network, *knowns(30), "picky@shop.test")
        assert Counter(map(fields_of, verdicts)) == {DELIVERABLE: 30, fields: 1}
        assert host.record.recipients["picky@shop.test"] <= 1 + OBJECTIONS_MAX


async def test_a_refusal_stands_if_time_runs_out_before_the_recipient_is_sent_again(autojump_clock):
    async with open_fake_network() as network:
        host = MailHost(replies={"picky": POLICY}, faults={"RSET": Late(5.0)})
        network.add("shop.test", host)
        async with open_test_engine(network, host_connections=1) as engine:
            verdicts = await verify(engine, "known@shop.test", "picky@shop.test")
        assert fields_of(verdicts[1]) == UNKNOWN
        assert verdicts[1].latency_ms <= 3050


async def test_words_about_recipients_are_believed_after_a_first_recipient_was_refused_so(
    autojump_clock,
):
    """A host may count the recipients of several connections for a while."""
    async with open_fake_network() as network:
        crowded = "452 4.5.3 Too many recipients"
        host = limited_host(crowded, per_transaction=1, replies={"picky": crowded})
        network.add("shop.test", host)
        async with open_checked_engine(network, host_connections=1) as engine:
            await verify(engine, *knowns(2), "picky@shop.test")
            await trio.sleep(10)
            [picky] = await verify(engine, "picky@shop.test")
            assert fields_of(picky) == UNKNOWN
            assert_true(await verify(engine, *mixed(20)))
