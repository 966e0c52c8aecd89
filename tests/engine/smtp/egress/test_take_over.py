"""An address whose host refuses one egress is asked by another, within its own deadline."""

from dataclasses import replace
from random import Random

import pytest
import trio

from mailprobe.bench.world.faults import Close, Late, ResetConnection
from mailprobe.bench.world.mail_host import HostAddress, MailHost
from mailprobe.engine import open_answers
from mailprobe.engine.egress import Egress
from mailprobe.engine.net.tcp import EgressFailed
from mailprobe.engine.smtp.egress.relief import EgressRelief
from mailprobe.engine.smtp.host.staffing import HostLoad
from tests.engine.fault_places import failing
from tests.engine.smtp.egress.worlds import (
    LISTED,
    A,
    B,
    answers_of,
    open_engine_of,
    open_world,
    reasons,
)
from tests.seeds import seeds

BOTH = pytest.mark.parametrize("deferred_start", [False, True], ids=["requests", "list"])
UNKNOWN = MailHost().default_unknown
REFUSALS = {
    "banner": MailHost(banner=LISTED),
    "EHLO": MailHost(ehlo_reply=LISTED, helo_reply=LISTED),
    "MAIL": MailHost(mail_reply=LISTED),
    "RCPT": MailHost(default_known=LISTED, default_unknown=LISTED),
}


def mailboxes(domains: list[str], each: int = 2) -> list[str]:
    return [f"{name}{n}@{d}" for n in range(each) for d in domains for name in ("known", "nobody")]


@BOTH
@pytest.mark.parametrize("step", REFUSALS)
async def test_a_blocklisted_egress_costs_no_address_its_answer(
    autojump_clock, step, deferred_start
):
    async with open_world() as world:
        domains = world.add(60, refuses="a", how=REFUSALS[step], latency_s=0.05)
        texts = mailboxes(domains)
        async with open_engine_of(world, A, B) as engine:
            found = await answers_of(engine, texts, deferred_start=deferred_start)
            for answer in found:
                known = answer.verdict.email.startswith("known")
                assert answer.cause.reason == ("accepted" if known else "no_mailbox")
        assert world.control is not None
        assert world.control.quarantined == ["a"]


@BOTH
@pytest.mark.parametrize(
    ("place", "reason"),
    [((EgressRelief, "relieve"), "blocked_us"), ((HostLoad, "leave"), "timeout")],
    ids=["before", "meanwhile"],
)
async def test_a_bug_in_a_take_over_leaves_the_address_one_answer(
    autojump_clock, faults, deferred_start, place, reason
):
    async with open_world() as world:
        [domain] = world.add(1, refuses="a", how=REFUSALS["RCPT"])
        async with open_engine_of(world, Egress("a", weight=1e9), B) as engine:
            with failing(*place), trio.fail_after(10):
                text = f"known@{domain}"
                found = await answers_of(engine, [text], deferred_start=deferred_start)
            assert reasons(found) == {reason: 1}
            assert len(faults) == 1


async def test_an_egress_that_too_many_hosts_refuse_is_quarantined_and_tried_with_one_address(
    autojump_clock,
):
    async with open_world() as world:
        domains = world.add(60, refuses="a")
        async with open_engine_of(world, A, B) as engine:
            await answers_of(engine, mailboxes(domains), deferred_start=True)
            control = world.control
            assert control is not None
            assert control.quarantined == ["a"]
            struck = world.dialled["a"]
            await answers_of(engine, mailboxes(world.add(10, refuses="a")), deferred_start=True)
            assert world.dialled["a"] == struck  # not one connection more
            await trio.sleep(901)
            found = await answers_of(engine, mailboxes(world.add(10, refuses="a")))
            assert world.dialled["a"] == struck + 1
            assert control.released == []
            assert reasons(found)["blocked_us"] == 0
            await trio.sleep(901)
            await answers_of(engine, mailboxes(world.add(10)))
            assert control.released == ["a"]
            await answers_of(engine, mailboxes(world.add(20)))
            assert world.dialled["a"] > struck + 2


@pytest.mark.parametrize("rows", [(A,), (A, B)], ids=["one egress", "two"])
async def test_hosts_that_refuse_all_do_not_silence_a_machine(autojump_clock, caplog, rows):
    """A customer may own them: its last egress stays in use."""
    async with open_world() as world:
        domains = world.add(60, banner=LISTED)
        async with open_engine_of(world, *rows) as engine:
            found = await answers_of(engine, mailboxes(domains), deferred_start=True)
            assert reasons(found)["no_egress"] < 30  # of 240: those that waited at the first one
            assert world.control is not None
            assert len(world.control.quarantined) == len(rows) - 1
            found = await answers_of(engine, mailboxes(world.add(10)))
            assert set(reasons(found)) == {"accepted", "no_mailbox"}
        lines = [each for each in caplog.records if "no other can be used" in each.message]
        assert len(lines) == 1


@BOTH
@pytest.mark.parametrize("step", ["banner", "EHLO", "MAIL"])
@pytest.mark.parametrize("backup", [MailHost(default_known=UNKNOWN), MailHost(catch_all=True)])
async def test_no_backup_answers_for_a_primary_that_refuses_one_egress(
    autojump_clock, backup, step, deferred_start
):
    async with open_world() as world:
        domains = world.add(6, refuses="a", how=REFUSALS[step])
        for domain in domains:
            host = replace(backup, name="mx2.test")
            world.network.add(domain, host, mx=f"mx2.{domain}", preference=20)
        texts = mailboxes(domains, each=4)
        async with open_engine_of(world, Egress("a", weight=1e9), B) as engine:
            found = await answers_of(engine, texts, deferred_start=deferred_start)
            assert reasons(found) == {"accepted": 24, "no_mailbox": 24}
            assert world.dialled["a"] > 0


async def test_a_backup_answers_where_the_primary_refuses_every_egress(autojump_clock):
    async with open_world() as world:
        [domain] = world.add(1, banner=LISTED)
        world.network.add(domain, MailHost(), mx=f"mx2.{domain}", preference=20)
        async with open_engine_of(world, A, B) as engine:
            found = await answers_of(engine, mailboxes([domain]))
            assert reasons(found) == {"accepted": 2, "no_mailbox": 2}


async def test_an_operators_refusal_rests_the_egress_at_its_hosts_alone(autojump_clock):
    async with open_world() as world:
        google = world.add(30, mx="{}.aspmx.l.google.com", refuses="a")
        others = world.add(30)
        async with open_engine_of(world, A, B) as engine:
            found = await answers_of(engine, mailboxes(google + others), deferred_start=True)
            assert set(reasons(found)) == {"accepted", "no_mailbox"}
            assert world.control is not None
            assert world.control.quarantined == []
            assert world.control.answers["a", "accepted"] > 0
            assert world.control.answers["b", "accepted"] > world.control.answers["a", "accepted"]


async def test_where_every_egress_is_refused_at_most_three_ask_for_an_address(autojump_clock):
    rows = [Egress(name) for name in "abcde"]
    async with open_world() as world:
        [domain] = world.add(1, banner=LISTED)
        async with open_engine_of(world, *rows) as engine:
            [answer] = await answers_of(engine, [f"known@{domain}"], explain=True)
            assert answer.cause == ("blocked_us", "us")
            assert sorted(world.dialled.values()) == [1, 1, 1]
            assert answer.evidence is not None
            spoken = [line.text for line in answer.evidence.conversation]
            assert sum(LISTED[:12] in text for text in spoken) == 3
            assert len(answer.evidence.exchanges) == 3


@pytest.mark.parametrize("delay_s", [0.7, 0.9, 0.99])
async def test_a_take_over_does_not_extend_the_deadline(autojump_clock, delay_s):
    """A refusal at RCPT after four slow replies leaves too little time for another egress."""
    async with open_world() as world:
        refusing = MailHost(default_known=LISTED, latency_s=delay_s)
        [domain] = world.add(1, refuses="a", how=refusing, latency_s=delay_s)
        other = Egress("b", weight=1e-9)
        async with open_engine_of(world, A, other) as engine:
            [answer] = await answers_of(engine, [f"known@{domain}"])
            assert answer.cause.reason in ("blocked_us", "timeout")


@pytest.mark.parametrize("after_s", [0.01, 0.06, 0.11, 0.16, 0.21, 0.3, 0.4, 0.5])
async def test_a_caller_may_leave_at_any_moment_of_a_take_over(autojump_clock, after_s):
    async with open_world() as world:
        refusing = MailHost(default_known=LISTED, default_unknown=LISTED, latency_s=0.05)
        domains = world.add(8, refuses="a", how=refusing, latency_s=0.05)
        async with open_engine_of(world, A, B) as engine:
            with trio.move_on_after(after_s):
                async with open_answers(engine, mailboxes(domains), account="me") as answers:
                    async for _ in answers:
                        pass


@BOTH
@pytest.mark.parametrize("late_s", [0.0, 0.6])
async def test_an_egress_that_cannot_connect_is_no_fault_of_the_hosts(
    autojump_clock, late_s, deferred_start
):
    async def fail(_: str) -> None:
        await trio.sleep(late_s)
        raise EgressFailed("no proxy could be used: connection refused")

    async with open_world() as world:
        domains = world.add(20)
        world.dials["a"] = fail
        async with open_engine_of(world, A, B) as engine:
            found = await answers_of(engine, mailboxes(domains), deferred_start=deferred_start)
            assert set(reasons(found)) == {"accepted", "no_mailbox"}
            failed = world.dialled["a"]
            await answers_of(engine, mailboxes(world.add(10)), deferred_start=deferred_start)
            assert world.dialled["a"] == failed
            del world.dials["a"]
            await trio.sleep(10)
            await answers_of(engine, mailboxes(world.add(10)), deferred_start=deferred_start)
            await answers_of(engine, mailboxes(world.add(20)), deferred_start=deferred_start)
            assert world.dialled["a"] > failed + 1  # one address tried it, and others followed


@BOTH
async def test_an_egress_that_reaches_no_host_rests_while_another_one_does(
    autojump_clock, deferred_start
):
    """A proxy whose own network is gone: ten hosts show it, and no more addresses are lost."""

    async def hang(_: str) -> None:
        await trio.sleep_forever()

    async with open_world() as world:
        world.dials["a"] = hang
        async with open_engine_of(world, A, B) as engine:
            for _ in range(2):
                domains = world.add(20)
                found = await answers_of(engine, mailboxes(domains), deferred_start=deferred_start)
            found += await answers_of(
                engine, mailboxes(world.add(60)), deferred_start=deferred_start
            )
            lost = {a.verdict.mx_host for a in found if a.cause.reason in ("timeout", "host_down")}
            assert len(lost) <= 12


async def test_dead_hosts_are_no_fault_of_an_egress(autojump_clock):
    async with open_world() as world:
        dead = world.add(40, address=HostAddress.REFUSED)
        alive = world.add(10)
        async with open_engine_of(world, A, B) as engine:
            await answers_of(engine, mailboxes(alive + dead), deferred_start=True)
            found = await answers_of(engine, mailboxes(alive))
            assert set(reasons(found)) == {"accepted", "no_mailbox"}
            assert world.dialled["a"] > 10


async def test_without_a_way_out_an_address_is_unknown_through_our_fault(autojump_clock):
    async def fail(_: str) -> None:
        raise EgressFailed("this machine cannot use 192.0.2.1: Cannot assign requested address")

    async with open_world() as world:
        domains = world.add(5)
        world.dials = {"a": fail, "b": fail}
        async with open_engine_of(world, A, B) as engine:
            found = await answers_of(engine, mailboxes(domains), deferred_start=True)
            assert {answer.cause for answer in found} == {("no_egress", "us")}
            assert {answer.verdict.status for answer in found} == {"unknown"}


@BOTH
@pytest.mark.parametrize("seed", range(seeds(20)))
async def test_no_verdict_is_wrong_where_hosts_refuse_late_and_hang_up(
    autojump_clock, seed, deferred_start
):
    """Hosts that refuse the egress half-way, answer late, break off, and greet nobody twice."""
    random = Random(seed)
    async with open_world() as world:
        domains = []
        for _ in range(12):
            weather = tuple(
                (0.03, fault) for fault in (Late(1.2), Late(0.4), Close(), ResetConnection())
            )
            refused = random.choice([LISTED, "421 4.7.0 Try again later", LISTED])
            how = MailHost(
                replies={f"known{n}": refused for n in range(4) if random.random() < 0.5},
                default_unknown=random.choice([LISTED, MailHost().default_unknown]),
                latency_s=random.choice([0.01, 0.2]),
                weather=weather,
            )
            latency_s = random.choice([0.01, 0.2])
            domains += world.add(
                1, refuses=random.choice(["a", ""]), how=how, latency_s=latency_s, weather=weather
            )
        texts = mailboxes(domains, each=5)
        async with open_engine_of(world, A, B) as engine:
            for _ in range(2):
                found = await answers_of(engine, texts, deferred_start=deferred_start)
                for answer in found:
                    right = "deliverable" if answer.verdict.email[0] == "k" else "undeliverable"
                    assert answer.verdict.status in (right, "unknown")
                    if answer.cause.reason == "blocked_us" and answer.verdict.latency_ms <= 2000:
                        # The other egress was refused nothing, but condemns nobody on its own.
                        assert world.was_asked(answer.verdict.email)
