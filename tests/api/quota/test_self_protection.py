"""Lists pause when nothing answers this machine, and for no customer's list."""

import logging
from collections.abc import Sequence

import pytest
import trio

from mailprobe.api.quota.self_probe import sees
from mailprobe.api.quota.self_protection import (
    DOMAINS_MAX,
    OPERATORS_MIN,
    PROBE_EVERY_S,
    RESULTS_MIN,
    ProbeDomains,
    SelfProtection,
)
from mailprobe.engine import Answer
from mailprobe.engine.reasons import VerdictCause
from mailprobe.engine.testing.mail_host import MailHost
from mailprobe.engine.verdict import Outcome, judge
from tests.api.service_fixture import RunningService, open_shop

REFUSED = VerdictCause("blocked_us", "us")
NO_RESOLVER = VerdictCause("resolver", "network")
SILENT = VerdictCause("timeout", "host")
ANSWERED = VerdictCause("no_mailbox", "address")


def answer(cause: VerdictCause, domain: str) -> Answer:
    verdict = judge(f"ann@{domain}", Outcome.CONVERSATION_FAILED, mx_host=f"mx.{domain}")
    return Answer(0, verdict, None, cause)


def row_of(cause: VerdictCause, *, domains: int = RESULTS_MIN) -> list[Answer]:
    return [answer(cause, f"d{n % domains}.test") for n in range(RESULTS_MIN)]


class World:
    """What the probe finds, and what it was asked."""

    def __init__(self, *, sees: bool) -> None:
        self.sees = sees
        self.asked: list[tuple[list[str], bool]] = []

    async def probe(self, domains: Sequence[str], must_answer: bool) -> bool:
        await trio.lowlevel.checkpoint()
        self.asked.append((list(domains), must_answer))
        return self.sees


@pytest.mark.parametrize(
    ("row", "must_answer"),
    [(row_of(REFUSED), True), (row_of(NO_RESOLVER), False), (row_of(SILENT), False)],
    ids=["every host refuses us", "all resolvers are dead", "port 25 is closed"],
)
async def test_a_row_of_failures_and_a_probe_without_an_answer_pause_the_lists(
    autojump_clock: object, caplog: pytest.LogCaptureFixture, row: list[Answer], must_answer: bool
) -> None:
    protection, world = SelfProtection(), World(sees=False)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(protection.watch, world.probe)
        with protection.seeing() as work:
            protection.note("a", row)
            await trio.sleep_forever()
        assert work.cancelled_caught
        await trio.sleep(PROBE_EVERY_S * 3 - 1)
        assert protection.blind
        assert {asked for _, asked in world.asked} == {must_answer}
        assert len(world.asked) == 3  # again and again
        world.sees = True
        await trio.sleep(PROBE_EVERY_S + 1)
        assert not protection.blind
        nursery.cancel_scope.cancel()
    lines = [each.getMessage() for each in caplog.records if each.name == "mailprobe.protection"]
    assert len(lines) == 2
    assert f"results={RESULTS_MIN}" in lines[0]


@pytest.mark.parametrize(
    "row",
    [
        row_of(REFUSED, domains=OPERATORS_MIN - 1),
        row_of(REFUSED)[1:],
        row_of(SILENT, domains=RESULTS_MIN - 1),  # a dead host counts once
        [*row_of(REFUSED)[1:], answer(ANSWERED, "d.test"), *row_of(REFUSED)[1:]],
        row_of(VerdictCause("no_connection_free", "us")),
        row_of(VerdictCause("no_mx", "address")),
    ],
)
async def test_a_short_row_or_one_at_few_operators_is_not_even_probed(
    autojump_clock: object, row: list[Answer]
) -> None:
    protection, world = SelfProtection(), World(sees=False)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(protection.watch, world.probe)
        protection.note("a", row)
        await trio.sleep(PROBE_EVERY_S)
        nursery.cancel_scope.cancel()
    assert (protection.blind, world.asked) == (False, [])


async def test_a_customers_dead_domains_pause_nothing_and_cost_a_probe_now_and_then(
    autojump_clock: object,
) -> None:
    protection, world = SelfProtection(), World(sees=True)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(protection.watch, world.probe)
        for _ in range(100):
            protection.note("a", row_of(SILENT))
            await trio.sleep(1)
            assert not protection.blind
        nursery.cancel_scope.cancel()
    assert 1 < len(world.asked) < 6


async def test_a_probe_asks_domains_that_others_know_to_answer(autojump_clock: object) -> None:
    """Whoever's hosts refuse us on purpose does not choose all that is asked."""
    protection, world = SelfProtection(), World(sees=True)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(protection.watch, world.probe)
        protection.note("friend", [answer(ANSWERED, "good.test")])
        protection.note("foe", row_of(REFUSED))
        await trio.sleep(1)
        nursery.cancel_scope.cancel()
    assert world.asked[0][0][0] == "good.test"


async def test_one_answer_to_a_request_ends_the_pause_at_once(autojump_clock: object) -> None:
    protection, world = SelfProtection(), World(sees=False)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(protection.watch, world.probe)
        protection.note("a", row_of(REFUSED))
        await trio.sleep(1)
        assert protection.blind
        protection.note("b", [answer(ANSWERED, "good.test")])
        assert not protection.blind
        nursery.cancel_scope.cancel()


def test_no_accounts_domains_are_all_that_are_remembered() -> None:
    domains = ProbeDomains()
    domains.add("friend", "good.test")
    for n in range(10 * DOMAINS_MAX):
        domains.add("foe", f"d{n}.test")
    assert "good.test" in domains.of_accounts()[:2]
    for n in range(10 * DOMAINS_MAX):
        domains.add(f"a{n}", f"d{n}.test")
    assert len(domains.of_accounts()) <= DOMAINS_MAX


async def test_requests_are_answered_while_blind_or_refused_uncounted(
    autojump_clock: object,
) -> None:
    for refuses, status in ((False, 200), (True, 503)):
        protection = SelfProtection(refuses=refuses)
        async with open_shop(protection=protection) as shop:
            protection.blind = True
            got = [await shop.verify("x@silent.test"), await shop.batch("x@silent.test")]
            assert [each.status for each in got] == [status, status]
            if refuses:
                assert {each.error for each in got} == {"probing_unavailable"}
                assert got[0].headers["retry-after"] == "30"
                assert (await shop.stream("x@silent.test")).error == "probing_unavailable"
            rows = await shop.rows()
            assert len(rows) == (0 if refuses else 2)


async def test_the_probe_sees_what_answers_and_nothing_else(
    autojump_clock: object, shop: RunningService, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    engine, dial = shop.service.quota.engine, shop.world.dial
    shop.world.add("refusing.test", MailHost(banner="554 5.7.1 your address is blocklisted"))
    cases: list[tuple[list[str], bool, list[str], bool]] = [
        (["friendly.test"], True, [], True),
        (["refusing.test", "silent.test", "none.test"], True, ["friendly.test"], False),
        (["refusing.test"], False, ["friendly.test"], True),  # it is not the network
        (["none.test"], False, ["none.test"], False),
    ]
    for domains, must_answer, providers, expected in cases:
        assert await sees(engine, dial, domains, must_answer, providers) is expected, domains
