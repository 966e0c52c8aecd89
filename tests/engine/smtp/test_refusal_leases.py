"""An engine whose refusals are leased: what it sends, asks for, gives back and reports."""

from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import trio

from mailprobe.bench.world.fake_network import FakeNetwork, open_fake_network
from mailprobe.bench.world.mail_host import MailHost
from mailprobe.engine import Engine, open_answers
from mailprobe.engine.smtp.leases.ledger import (
    HostRecord,
    LeaseGrant,
    LeaseKeeper,
    NotedRefusals,
    RefusalReport,
)
from mailprobe.engine.smtp.leases.name_claims import CLAIM_S, ELSEWHERE_S
from mailprobe.engine.smtp.leases.refusal_leases import KEEP_S, LATER_S, LEASE_S, REPORT_S, TICK_S
from mailprobe.engine.smtp.tolerance.host import RETRY_S
from mailprobe.engine.smtp.tolerance.limits import HOUR_S
from tests.engine.engine_runs import open_test_engine, verify
from tests.engine.invariants import assert_whole

HOST = "mx.shop.test"
STAFF = ("annalee", "bobmore", "cyrusnow", "dorapeel", "evaquick")
Answer = Callable[[RefusalReport], LeaseGrant | None]


def granting(leased: int, **more: Any) -> Answer:
    """Each report gets so much."""
    record = more.pop("learned", HostRecord())
    elsewhere = more.pop("elsewhere", ())
    is_contested = more.pop("is_contested", False)
    elsewhere_names = more.pop("names_elsewhere", ())
    return lambda report: LeaseGrant(
        leased if report.is_wanted else 0, elsewhere, record, is_contested, elsewhere_names
    )


class Ledger:
    """A ledger whose answers a test decides. One call is under way at a time, and takes `call_s`."""

    def __init__(self, answer: Answer, call_s: float = 0.01) -> None:
        self.answer = answer
        self.call_s = call_s
        self.reports: list[tuple[float, str, RefusalReport]] = []
        self.keepers: dict[str, LeaseKeeper] = {}

    def open_for(self, egress: str, keeper: LeaseKeeper) -> None:
        self.keepers[egress] = keeper

    def wake(self) -> None:
        """It looks often enough."""

    async def run(self) -> None:
        while True:
            await trio.sleep(self.call_s)
            for keeper in self.keepers.values():
                for host in list(keeper.due()):
                    report, began = keeper.request(host), trio.current_time()
                    self.reports.append((began, host, report))
                    await trio.sleep(self.call_s)
                    grant = self.answer(report)
                    if grant is None:
                        keeper.failed(host)
                    else:
                        keeper.granted(host, grant, began)

    @property
    def last(self) -> RefusalReport:
        return self.reports[-1][2]


@asynccontextmanager
async def office(ledger: Ledger, host: MailHost) -> AsyncIterator[Engine]:
    async with open_fake_network() as network, trio.open_nursery() as nursery:
        network.add("shop.test", host)
        async with leased_engine(network, ledger) as engine:
            nursery.start_soon(ledger.run)
            yield engine
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def leased_engine(network: FakeNetwork, ledger: Ledger) -> AsyncIterator[Engine]:
    async with open_test_engine(network, refusals=ledger) as engine:
        yield engine
    assert_whole(engine)


def new_host(**more: Any) -> MailHost:
    return replace(MailHost(mailboxes=frozenset((*STAFF, "postmaster"))), **more)


def at_shop(*names: str) -> list[str]:
    return [f"{name}@shop.test" for name in names]


async def test_nothing_is_sent_before_the_first_grant_and_nothing_turned_away(
    autojump_clock: object,
):
    """The request overlaps the connect."""
    host, ledger = new_host(), Ledger(granting(4), call_s=1.0)
    async with office(ledger, host) as engine, trio.open_nursery() as nursery:

        async def look() -> None:
            await trio.sleep(1.9)
            assert host.record.sessions_seen == 1
            assert not host.record.recipients

        nursery.start_soon(look)
        (verdict,) = await verify(engine, *at_shop("annalee"))
        assert verdict.status == "deliverable"
        assert 2 <= trio.current_time() < 2.5
        first_at, name, report = ledger.reports[0]
        assert (first_at, name, report.held, report.is_wanted) == (1.0, HOST, 0, True)
        assert report.tolerance == 4


@pytest.mark.parametrize("deferred_start", [False, True])
async def test_where_the_store_has_nothing_left_nothing_is_sent(
    autojump_clock: object, deferred_start: bool
):
    """The host is not asked to prove that it judges either: its limit of an hour is used up."""
    refused = [NotedRefusals(60.0, "another", 9)]
    record = HostRecord(careful=True, tolerance=9, ceiling=9, hour=9)
    host = new_host()
    ledger = Ledger(granting(0, elsewhere=refused, learned=record))
    async with office(ledger, host) as engine:
        verdicts = await verify(
            engine, *at_shop("annalee", "nobody"), deferred_start=deferred_start
        )
        assert [verdict.status for verdict in verdicts] == ["unknown"] * 2
        assert not host.record.recipients


async def test_more_is_requested_when_the_lease_is_used_up(autojump_clock: object):
    host, ledger = new_host(latency_s=0.05), Ledger(granting(1))
    async with office(ledger, host) as engine:
        texts = at_shop("nobody", "noone", "nothing")
        verdicts = await verify(engine, *texts, account="one")
        assert [verdict.status for verdict in verdicts] == ["undeliverable"] * 3
        reported = [each for _, _, report in ledger.reports for each in report.refusals]
        assert [each.account for each in reported[:2]] == ["one", "one"]
        assert all(each.age_s < 1 for each in reported)


async def test_a_process_never_has_more_refused_than_it_leased(autojump_clock: object):
    host, left = new_host(latency_s=0.05), [5]
    record = HostRecord(careful=True, tolerance=64, ceiling=64)

    def answer(report: RefusalReport) -> LeaseGrant:
        held = report.held
        if report.is_wanted and not held and left[0]:
            left[0] -= 1
            held = 1
        return LeaseGrant(held if report.is_wanted else 0, (), record, False)

    async with office(Ledger(answer), host) as engine:
        await verify(engine, *at_shop(*(f"nobody{n}" for n in range(30))), account="one")
        assert sum(session.refusals for session in host.record.sessions) <= 5


async def test_more_is_requested_after_the_tolerance_has_grown(autojump_clock: object):
    host, ledger = (
        new_host(),
        Ledger(lambda report: LeaseGrant(report.tolerance, (), report.learned, False)),
    )
    refused = [NotedRefusals(60.0, "one", 4)]

    def answer(report: RefusalReport) -> LeaseGrant:
        return LeaseGrant(report.tolerance - 4, refused, HostRecord(), False)

    ledger.answer = answer
    async with office(ledger, host) as engine:
        (verdict,) = await verify(engine, *at_shop("nobody"), account="one")
        assert verdict.status == "undeliverable"
        assert [report.tolerance for _, _, report in ledger.reports][:2] == [4, 8]
        await trio.sleep(KEEP_S + REPORT_S)
        assert ledger.last.learned.tolerance == 8


@pytest.mark.parametrize("idle_s", [0.0, 4.0, 30.0])
async def test_requests_of_two_accounts_find_room_where_the_host_still_judges(
    autojump_clock: object, idle_s: float
):
    """Each has used up its half, the lease is returned, and all that was accepted was a control."""
    host = replace(MailHost(mailboxes=frozenset(STAFF)))
    ledger = Ledger(lambda report: LeaseGrant(report.tolerance, (), report.learned, False))
    batch = at_shop(*STAFF[:3], "nobody1", "nobody2", "nobody3")
    async with office(ledger, host) as engine:
        for account in ("one", "two", "one", "two", "one"):
            verdicts = await verify(engine, *batch, account=account)
            statuses = Counter(verdict.status for verdict in verdicts)
            assert statuses == {"deliverable": 3, "undeliverable": 3}
            await trio.sleep(idle_s)


async def test_an_unused_lease_is_returned(autojump_clock: object):
    host, ledger = new_host(), Ledger(granting(4))
    async with office(ledger, host) as engine:
        await verify(engine, *at_shop("annalee"))
        await trio.sleep(KEEP_S + 2 * REPORT_S)
        assert (ledger.last.held, ledger.last.is_wanted) == (0, False)
        calls = len(ledger.reports)
        await trio.sleep(20 * REPORT_S)
        assert len(ledger.reports) == calls
        await verify(engine, *at_shop("bobmore"))
        assert ledger.reports[calls][2].is_wanted


@pytest.mark.parametrize("patience_s", [0.0, 900.0])
@pytest.mark.parametrize("later_s", [*(number / 200 for number in range(8)), LATER_S / 2])
async def test_a_list_that_begins_as_a_lease_is_returned_does_not_wait(
    autojump_clock: object, later_s: float, patience_s: float
):
    """The store answers a return with nothing leased: that denies no row, nor asks for growth."""
    host, ledger = new_host(), Ledger(granting(4))
    async with office(ledger, host) as engine:
        await verify(engine, *at_shop("annalee"), account="one")
        await trio.sleep(KEEP_S + later_s)
        began = trio.current_time()
        texts = at_shop("bobmore", "cyrusnow")
        verdicts = await verify(
            engine, *texts, account="one", deferred_start=True, patience_s=patience_s
        )
        assert [verdict.status for verdict in verdicts] == ["deliverable"] * 2
        assert trio.current_time() - began < LATER_S / 2
        assert {report.tolerance for _, _, report in ledger.reports} == {4}


async def test_a_lease_in_use_is_extended_before_its_end(autojump_clock: object):
    host, ledger = (
        new_host(),
        Ledger(lambda report: LeaseGrant(report.held or 4, (), HostRecord(), False)),
    )
    async with office(ledger, host) as engine:
        for _ in range(50):
            await verify(engine, *at_shop("annalee"))
            await trio.sleep(KEEP_S / 2)
        at = [when for when, _, report in ledger.reports if report.is_wanted]
        assert max(b - a for a, b in pairwise(at)) < LEASE_S / 2


async def test_refusals_elsewhere_count_at_this_process(autojump_clock: object):
    """Also for the share of their account: one that refuses much here leaves half to the others."""
    attacker = [NotedRefusals(60.0, "attacker", 8)]
    record = HostRecord(tolerance=16)
    host = new_host()
    ledger = Ledger(granting(8, elsewhere=attacker, learned=record))
    async with office(ledger, host) as engine:
        (other,) = await verify(engine, *at_shop("nobody"), account="other")
        assert other.status == "undeliverable"
        ledger.answer = granting(7, elsewhere=attacker, learned=record)
        (spent,) = engine.probing.overview.spent_budgets()
        assert (spent.recent, spent.refused, spent.tolerance) == (9, 9, 16)


async def test_a_ban_that_another_process_saw_is_believed(autojump_clock: object):
    def answer(report: RefusalReport) -> LeaseGrant:
        age_s = 60 + trio.current_time()
        record = HostRecord(careful=True, tolerance=4, ceiling=4, ban_ages_s=(age_s,))
        return LeaseGrant(int(age_s > 600), (), record, False)

    host, ledger = new_host(), Ledger(answer)
    async with office(ledger, host) as engine:
        (verdict,) = await verify(engine, *at_shop("annalee"))
        assert verdict.status == "unknown"
        assert not host.record.recipients
        await trio.sleep(600)
        (verdict,) = await verify(engine, *at_shop("annalee"))
        assert verdict.status == "deliverable"


async def test_a_report_is_repeated_after_a_failed_call(autojump_clock: object):
    host, ledger = new_host(), Ledger(granting(8))
    async with office(ledger, host) as engine:
        await verify(engine, *at_shop("nobody"), account="one")
        ledger.answer = lambda report: None
        await trio.sleep(REPORT_S + TICK_S)
        reported = [report for _, _, report in ledger.reports if report.refusals]
        first = len(ledger.reports)
        ledger.answer = granting(8)
        await trio.sleep(2 * REPORT_S)
        again = [report for _, _, report in ledger.reports[first:] if report.refusals]
        assert reported
        assert again
        assert again[0].noted == reported[-1].noted  # so that the store counts none twice
        assert len(again[0].refusals) == len(reported[-1].refusals)


async def test_while_the_ledger_does_not_answer_nothing_is_sent_and_nothing_grows(
    autojump_clock: object,
):
    host, ledger = new_host(), Ledger(lambda report: None)
    async with office(ledger, host) as engine:
        verdicts = await verify(engine, *at_shop(*STAFF))
        assert {verdict.status for verdict in verdicts} == {"unknown"}
        assert not host.record.recipients
        assert all(report.tolerance == 4 for _, _, report in ledger.reports)
        ledger.answer = granting(4)
        await trio.sleep(2 * LATER_S)
        (verdict,) = await verify(engine, *at_shop("annalee"))
        assert verdict.status == "deliverable"


@pytest.mark.parametrize("is_contested", [True, False, None])
async def test_a_list_that_lacks_only_a_lease_comes_back_soon(
    autojump_clock: object, is_contested: bool | None
):
    """The window has room: others hold it, or the store is away (None). Neither takes minutes."""
    host, refused = new_host(), [NotedRefusals(60.0, "another")]
    ledger = Ledger(granting(3, elsewhere=refused))
    async with office(ledger, host) as engine:
        await verify(engine, *at_shop("nobody"), deferred_start=True, patience_s=HOUR_S)
        if is_contested is None:
            ledger.answer = lambda report: None
        else:
            ledger.answer = granting(0, elsewhere=refused, is_contested=is_contested)
        await trio.sleep(LEASE_S)
        texts = at_shop("annalee")
        async with open_answers(
            engine, texts, account="me", deferred_start=True, patience_s=HOUR_S
        ) as answers:
            (answer,) = [answer async for answer in answers]
        assert answer.cause.reason == "host_budget"
        assert answer.retry_s is not None
        assert answer.retry_s <= RETRY_S


async def test_a_host_that_takes_much_gets_whole_batches_for_one_refusal(
    autojump_clock: object,
):
    """A lease of one never brings a healthy host to lock-step."""
    names = [f"{a}{b}{c}lee" for a in "abcdefgh" for b in "aeiou" for c in "klmnp"]
    host = replace(MailHost(latency_s=0.1), mailboxes=frozenset((*names, "postmaster")))
    record = HostRecord(tolerance=64, asked=1_000, refused=10)
    ledger = Ledger(granting(1, learned=record))
    async with office(ledger, host) as engine:
        began = trio.current_time()
        verdicts = await verify(engine, *at_shop(*names), deferred_start=True)
        assert {verdict.status for verdict in verdicts} == {"deliverable"}
        assert trio.current_time() - began < 0.1 * len(names) / 8


def names_sent(host: MailHost) -> int:
    """Random names: recipients that are nobody of the host's."""
    known = {*STAFF, "postmaster"}
    return sum(each.partition("@")[0] not in known for each in host.record.recipients)


async def test_the_first_call_names_the_domain_that_is_to_be_tested(autojump_clock: object):
    """So the random name of a host with one domain costs no call of its own."""
    host, ledger = new_host(), Ledger(granting(4))
    async with office(ledger, host) as engine:
        (verdict,) = await verify(engine, *at_shop("annalee"), deferred_start=True)
        assert (verdict.confidence, names_sent(host)) == (0.97, 1)
        assert list(ledger.reports[0][2].names) == ["shop.test"]
        await trio.sleep(KEEP_S + 2 * REPORT_S)
        assert not ledger.last.names  # given back with the lease
        assert sum(report.is_wanted for _, _, report in ledger.reports) == 1


async def list_answers(engine: Engine, *names: str) -> list[tuple[float, str, float | None]]:
    """Confidence, reason and wait of the answers to a list."""
    async with open_answers(
        engine, at_shop(*names), account="me", deferred_start=True, patience_s=HOUR_S
    ) as answers:
        found = [answer async for answer in answers]
    return [(each.verdict.confidence, each.cause.reason, each.retry_s) for each in found]


async def test_a_list_waits_for_the_name_that_another_process_sends(autojump_clock: object):
    """Each of its rows is told when to ask again, also those that are accepted later."""
    host, ledger = new_host(latency_s=0.05), Ledger(granting(4, names_elsewhere=["shop.test"]))
    async with office(ledger, host) as engine:
        waiting = (0.90, "untested", ELSEWHERE_S)
        assert await list_answers(engine, *STAFF) == [waiting] * len(STAFF)
        assert names_sent(host) == 0
        ledger.answer = granting(4)
        await trio.sleep(CLAIM_S)
        assert await list_answers(engine, *STAFF) == [(0.97, "accepted", None)] * len(STAFF)
        assert names_sent(host) == 1


async def test_a_request_does_not_wait_for_the_name_of_another_process(autojump_clock: object):
    host, ledger = new_host(), Ledger(granting(4, names_elsewhere=["shop.test"]))
    async with office(ledger, host) as engine:
        began = trio.current_time()
        (verdict,) = await verify(engine, *at_shop("annalee"))
        assert (verdict.confidence, names_sent(host)) == (0.97, 1)
        assert trio.current_time() - began < 1


async def test_while_the_ledger_does_not_answer_what_was_leased_is_sent(autojump_clock: object):
    """Also the random name of a domain that no call could claim."""
    host, ledger = new_host(), Ledger(granting(4))
    async with open_fake_network() as network, trio.open_nursery() as nursery:
        for domain in ("shop.test", "mill.test"):
            network.add(domain, host, mx=HOST)
        async with leased_engine(network, ledger) as engine:
            nursery.start_soon(ledger.run)
            for domain in ("shop.test", "mill.test"):
                (verdict,) = await verify(
                    engine, f"annalee@{domain}", deferred_start=True, patience_s=HOUR_S
                )
                assert verdict.confidence == 0.97
                ledger.answer = lambda report: None
            assert list(ledger.last.names) == ["shop.test", "mill.test"]
            assert names_sent(host) == 2
        nursery.cancel_scope.cancel()


async def test_a_long_list_at_a_slow_host_with_one_connection_is_known(autojump_clock: object):
    """Its first row waits for over a minute, and is looked up again while others wait there."""
    names = [f"person{number}" for number in range(250)]
    host = MailHost(
        mailboxes=frozenset(names), latency_s=0.3, connections_max=1, ehlo_lines=("{name}", "SIZE")
    )
    ledger = Ledger(lambda report: LeaseGrant(report.tolerance, (), report.learned, False))
    async with office(ledger, host) as engine:
        verdicts = await verify(engine, *at_shop(*names), deferred_start=True, patience_s=HOUR_S)
        assert {verdict.status for verdict in verdicts} == {"deliverable"}
