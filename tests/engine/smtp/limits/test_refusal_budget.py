"""How many recipients a host may be sent, by those that it refused before."""

import pytest
from mailprobe.engine.smtp.refusal_budget import (
    HOUR_S,
    SHARE_FROM,
    STEP_S,
    UNBOUNDED,
    RefusalAllowance,
    RefusalBudget,
)

from mailprobe.engine import open_answers
from mailprobe.engine.testing.fake_network import open_fake_network
from mailprobe.engine.testing.mail_host import MailHost
from tests.engine.engine_runs import open_checked_engine

HOUR, SHARE = 8, 0.5
STRICT = RefusalAllowance(session=2, hour=HOUR, share=SHARE)
UNKNOWN_SOFTWARE = "220 {name} ESMTP"


def budget_of(
    allowance: RefusalAllowance = STRICT, *, sent: int = 0, refused: int = 0
) -> RefusalBudget:
    budget = RefusalBudget(allowance, "other")
    for number in range(sent):
        budget.reserve(1)
        budget.answered(0.0, refused=number < refused)
    return budget


def test_a_host_without_limits_is_sent_any_number():
    budget = budget_of(RefusalAllowance(session=8), sent=1000, refused=1000)
    assert budget.left(0.0) == budget.left_to_tests(0.0) == UNBOUNDED
    assert not budget.exhausted(0.0)


@pytest.mark.parametrize("sent", range(25))
def test_the_remaining_budget_is_never_exceeded_whatever_the_replies(sent):
    """Against the definition: every further recipient may be refused."""

    def tolerates(refused: int, more: int) -> bool:
        by_share = sent + more <= SHARE_FROM or refused + more < SHARE * (sent + more)
        return refused + more <= HOUR and by_share

    for refused in range(sent + 1):
        left = budget_of(sent=sent, refused=refused).left(0.0)
        assert all(tolerates(refused, more) for more in range(1, left + 1))
        assert not tolerates(refused, left + 1)


def test_each_recipient_under_way_counts_as_refused_until_it_is_answered():
    budget = budget_of(sent=20)
    assert budget.left(0.0) == 8
    budget.reserve(8)
    assert budget.left(0.0) == 0
    assert not budget.exhausted(0.0)
    for _ in range(5):
        budget.answered(0.0, refused=False)
    budget.release(3)
    assert budget.left(0.0) == 8


def test_half_of_an_hour_is_kept_for_listed_addresses():
    assert budget_of(sent=40, refused=3).left_to_tests(0.0) == 1
    assert budget_of(sent=40, refused=4).left_to_tests(0.0) == 0
    assert budget_of(sent=40, refused=4).left(0.0) == 4


def test_a_refusal_is_forgotten_an_hour_later():
    budget = budget_of(sent=20, refused=8)
    assert budget.exhausted(HOUR_S - 1)
    assert not budget.exhausted(HOUR_S + STEP_S + 1)
    assert budget.left(HOUR_S + STEP_S + 1) == SHARE_FROM


# -- at a host ---------------------------------------------------------------------------------


def strict_host(**changes: object) -> MailHost:
    return MailHost(banner=UNKNOWN_SOFTWARE, latency_s=0.02, **changes)  # type: ignore[arg-type]


async def verified(engine, texts, **how):
    async with open_answers(engine, texts, account="me", **how) as answers:
        return {answer.verdict.email: answer async for answer in answers}


def refused_at(host: MailHost) -> list[int]:
    """How many recipients each session refused."""
    return [
        sum(reply.startswith("5") for replies in session.replies().values() for reply in replies)
        for session in host.record.sessions
    ]


@pytest.mark.parametrize("deferred_start", [False, True], ids=["request", "list"])
async def test_a_host_of_unknown_software_refuses_no_more_than_its_allowance(
    autojump_clock, deferred_start
):
    async with open_fake_network() as network:
        host = strict_host()
        network.add("shop.test", host)
        texts = [f"{'gone' if n % 3 == 2 else 'known'}{n}@shop.test" for n in range(60)]
        async with open_checked_engine(network) as engine:
            answers = await verified(engine, texts, deferred_start=deferred_start)
        assert max(refused_at(host)) <= 2
        assert sum(refused_at(host)) <= 8
        causes = {answer.cause for answer in answers.values()}
        assert {cause.reason for cause in causes} == {"accepted", "no_mailbox", "host_budget"}
        for email, answer in answers.items():
            true = "deliverable" if email.startswith("known") else "undeliverable"
            assert answer.verdict.status in (true, "unknown")
            if answer.cause.reason == "host_budget":
                assert answer.verdict.failed_check is None


async def test_an_hour_later_the_rest_is_verified(autojump_clock):
    async with open_fake_network() as network:
        host = strict_host()
        network.add("shop.test", host)
        texts = [f"{'gone' if n % 3 == 2 else 'known'}{n}@shop.test" for n in range(30)]
        async with open_checked_engine(network) as engine:
            left = texts
            for _ in range(3):
                answers = await verified(engine, left, deferred_start=True)
                left = [text for text in left if answers[text].cause.reason == "host_budget"]
                autojump_clock.jump(HOUR_S + STEP_S)
        assert left == []


@pytest.mark.parametrize("deferred_start", [False, True], ids=["request", "list"])
async def test_where_only_the_random_name_has_no_budget_the_mailbox_is_found(
    autojump_clock, deferred_start
):
    """Forty living addresses, one a domain, at one host."""
    async with open_fake_network() as network:
        host = strict_host()
        for number in range(40):
            network.add(f"d{number}.test", host, mx="mx.shared.test")
        texts = [f"known{n}@d{n}.test" for n in range(40)]
        async with open_checked_engine(network) as engine:
            answers = await verified(engine, texts, deferred_start=deferred_start)
        assert max(refused_at(host)) <= 2
        assert sum(refused_at(host)) <= 4
        found = [answer.verdict.confidence for answer in answers.values()]
        assert set(found) == {0.97, 0.9}
        assert {answer.verdict.status for answer in answers.values()} == {"deliverable"}


async def test_a_host_that_lacks_budget_is_not_connected_to(autojump_clock):
    async with open_fake_network() as network:
        host = strict_host()
        network.add("shop.test", host)
        async with open_checked_engine(network) as engine:
            await verified(engine, [f"gone{n}@shop.test" for n in range(20)])
            connections = len(host.record.sessions)
            answers = await verified(engine, ["known@shop.test"])
        assert answers["known@shop.test"].cause.reason == "host_budget"
        assert len(host.record.sessions) == connections
