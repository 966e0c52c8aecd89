"""Lists pause when nothing answers this machine, and for no customer's list."""

import logging
from collections.abc import Sequence

import pytest
import trio

from mailprobe.api.quota.self_probe import is_greeted
from mailprobe.api.quota.self_protection import (
    ACCOUNTS_MAX,
    DOMAINS_MAX,
    OPERATORS_MIN,
    PROBE_EVERY_S,
    RESULTS_MIN,
    ProbeDomains,
    SelfProtection,
)
from mailprobe.bench.world.mail_host import MailHost
from mailprobe.engine import Answer
from mailprobe.engine.reasons import VerdictCause
from mailprobe.engine.verdict import Outcome, judge
from tests.api.service_fixture import RunningService, open_shop

REFUSED = VerdictCause("blocked_us", "us")
NO_RESOLVER = VerdictCause("resolver", "network")
SILENT = VerdictCause("timeout", "host")
ANSWERED = VerdictCause("no_mailbox", "address")


def answer(cause: VerdictCause, domain: str) -> Answer:
    verdict = judge(f"ann@{domain}", Outcome.CONVERSATION_FAILED, mx_host=f"mx.{domain}")
    return Answer(0, verdict, None, cause)


def row_of(cause: VerdictCause, *, domains: int = RESULTS_MIN, first: int = 0) -> list[Answer]:
    return [answer(cause, f"d{first + n % domains}.test") for n in range(RESULTS_MIN)]


class World:
    """What the probe finds, and what it was asked."""

    def __init__(self, *, greets: bool | None) -> None:
        self.greets = greets
        self.asked: list[list[str]] = []

    async def probe(self, domains: Sequence[str]) -> bool | None:
        await trio.lowlevel.checkpoint()
        self.asked.append(list(domains))
        return self.greets


Noted = list[tuple[str, list[Answer]]]


def of_one(cause: VerdictCause) -> Noted:
    return [("a", row_of(cause))]


def of_two(cause: VerdictCause) -> Noted:
    """Half of a row is of each; their hosts are of other operators."""
    one, two = row_of(cause), row_of(cause, first=RESULTS_MIN)
    return [("a", one[: RESULTS_MIN // 2]), ("b", two[: RESULTS_MIN // 2])]


def of_two_at_one_place(cause: VerdictCause) -> Noted:
    """The second account's hosts are all one operator's."""
    return [("a", row_of(cause)), ("b", row_of(cause, domains=1))]


# The row, what the probe finds, and whether that makes the process blind.
ONE_REFUSED = row_of(REFUSED)[:1]
CONCLUSIONS: list[tuple[Noted, bool | None, bool]] = [
    *((of_one(cause), None, False) for cause in (REFUSED, NO_RESOLVER, SILENT)),
    *((of_one(cause), True, False) for cause in (REFUSED, NO_RESOLVER, SILENT)),
    *((of_one(cause), False, True) for cause in (REFUSED, NO_RESOLVER, SILENT)),
    *((of_two(cause), None, True) for cause in (REFUSED, NO_RESOLVER, SILENT)),
    *((of_two(cause), False, True) for cause in (REFUSED, NO_RESOLVER, SILENT)),
    (of_two(REFUSED), True, True),  # greeted, and refused at each mailbox
    (of_two(NO_RESOLVER), True, False),
    (of_two(SILENT), True, False),
    (of_two_at_one_place(REFUSED), True, False),
    (of_two_at_one_place(REFUSED), None, False),
    ([("a", row_of(REFUSED) * 10), ("b", row_of(REFUSED)[: RESULTS_MIN // 2 - 1])], None, False),
    ([(f"a{n}", [each]) for n, each in enumerate(row_of(REFUSED))], True, True),
    ([(f"a{n}", ONE_REFUSED) for n in range(2 * ACCOUNTS_MAX)], None, False),
]


@pytest.mark.parametrize(("noted", "greets", "is_blind"), CONCLUSIONS)
async def test_a_conclusion_needs_known_hosts_or_several_accounts_at_several_operators(
    autojump_clock: object, noted: Noted, greets: bool | None, is_blind: bool
) -> None:
    protection, world = SelfProtection(), World(greets=greets)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(protection.watch, world.probe)
        for account, answers in noted:
            protection.note(account, answers)
        await trio.sleep(PROBE_EVERY_S)
        assert protection.blind is is_blind
        nursery.cancel_scope.cancel()


async def test_a_blind_process_pauses_its_lists_until_it_is_greeted(
    autojump_clock: object, caplog: pytest.LogCaptureFixture
) -> None:
    protection, world = SelfProtection(), World(greets=False)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(protection.watch, world.probe)
        with protection.seeing() as work:
            protection.note("a", row_of(SILENT))
            await trio.sleep_forever()
        assert work.cancelled_caught
        await trio.sleep(PROBE_EVERY_S * 3 - 1)
        assert protection.blind
        assert len(world.asked) == 3  # again and again
        world.greets = True
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
    protection, world = SelfProtection(), World(greets=False)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(protection.watch, world.probe)
        protection.note("a", row)
        await trio.sleep(PROBE_EVERY_S)
        nursery.cancel_scope.cancel()
    assert (protection.blind, world.asked) == (False, [])


async def test_a_customers_dead_domains_pause_nothing_and_cost_a_probe_now_and_then(
    autojump_clock: object,
) -> None:
    protection, world = SelfProtection(), World(greets=True)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(protection.watch, world.probe)
        for _ in range(100):
            protection.note("a", row_of(SILENT))
            await trio.sleep(1)
            assert not protection.blind
        nursery.cancel_scope.cancel()
    assert 1 < len(world.asked) < 6


async def test_a_probe_greets_hosts_that_answered_several_accounts(autojump_clock: object) -> None:
    """One account's hosts alone are no witnesses: it may close them all."""
    for accounts, asked in ((["friend"], []), (["friend", "other"], ["other.test", "friend.test"])):
        protection, world = SelfProtection(), World(greets=True)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(protection.watch, world.probe)
            for account in accounts:
                protection.note(account, [answer(ANSWERED, f"{account}.test")])
            protection.note("foe", row_of(REFUSED))
            await trio.sleep(1)
            nursery.cancel_scope.cancel()
        assert world.asked == [asked]


async def test_while_blind_a_request_a_second_passes_and_others_before_the_last_one_again(
    autojump_clock: object,
) -> None:
    protection = SelfProtection(refuses=True)
    protection.blind = True
    passed: list[tuple[int, str]] = []
    for tenth in range(60):
        for account in ("foe", "friend") if tenth >= 30 else ("foe",):
            if protection.lets_pass("request", account):
                passed.append((tenth, account))
        await trio.sleep(0.1)
    assert [account for tenth, account in passed if tenth < 30] == ["foe"] * 2  # 0 s and 2 s
    later = [account for tenth, account in passed if tenth >= 30]
    assert later == ["friend", "foe", "friend"]


async def test_one_answer_to_a_request_ends_the_pause_at_once(autojump_clock: object) -> None:
    protection, world = SelfProtection(), World(greets=False)
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
            protection.lets_pass("request", "other")
            got = [await shop.verify("x@silent.test"), await shop.batch("x@silent.test")]
            assert [each.status for each in got] == [status, status]
            if refuses:
                assert {each.error for each in got} == {"probing_unavailable"}
                assert got[0].headers["retry-after"] == "30"
                assert (await shop.stream("x@silent.test")).error == "probing_unavailable"
            assert len(await shop.rows()) == (0 if refuses else 2)


async def test_one_accounts_refused_addresses_close_the_service_to_none(
    autojump_clock: object,
) -> None:
    """300 addresses at hosts that refuse this machine on purpose, at a fresh process without providers."""
    protection = SelfProtection(refuses=True)
    async with open_shop(protection=protection) as shop, trio.open_nursery() as nursery:
        engine = shop.service.quota.engine

        async def probe(domains: Sequence[str]) -> bool | None:
            return await is_greeted(engine, shop.world.dial, domains, ())

        nursery.start_soon(protection.watch, probe)
        await shop.change(tier="own")
        for n in range(60):
            shop.world.add(f"d{n}.test", MailHost(banner="554 5.7.1 client host blocked"))
        for n in range(30):
            emails = [f"known{n}@d{(10 * n + at) % 60}.test" for at in range(10)]
            assert (await shop.batch(*emails)).status == 200
        await trio.sleep(PROBE_EVERY_S)
        assert not protection.blind
        for _ in range(3):
            assert (await shop.verify("ann@friendly.test")).body["status"] == "deliverable"
        nursery.cancel_scope.cancel()


async def test_an_answer_to_a_request_that_passes_ends_the_blindness(
    autojump_clock: object,
) -> None:
    protection = SelfProtection(refuses=True)
    async with open_shop(protection=protection) as shop:
        protection.blind = True
        assert (await shop.verify("ann@silent.test")).status == 200
        await trio.sleep(2)
        assert protection.blind
        assert (await shop.verify("ann@friendly.test")).body["status"] == "deliverable"
        assert not protection.blind


async def test_the_probe_names_no_mailbox_and_is_greeted_or_not(
    autojump_clock: object, shop: RunningService, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    engine, dial = shop.service.quota.engine, shop.world.dial
    host = MailHost()
    shop.world.add("asked.test", host)
    shop.world.add("refusing.test", MailHost(banner="554 5.7.1 your address is blocklisted"))
    cases: list[tuple[list[str], list[str], bool | None]] = [
        (["asked.test"], [], True),
        (["refusing.test", "silent.test", "none.test"], ["asked.test"], True),
        (["refusing.test", "silent.test", "none.test"], [], False),
        ([], ["none.test"], False),
        ([], [], None),
    ]
    for domains, providers, expected in cases:
        assert await is_greeted(engine, dial, domains, providers) is expected, domains
