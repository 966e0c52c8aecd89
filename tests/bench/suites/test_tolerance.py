"""The simulation of the tolerance, in small: what the table of `bench tolerance` rests on."""

from random import Random

import pytest

from mailprobe.bench.market.client import MarketClient
from mailprobe.bench.market.hosts import HostAnswer, MarketHost, companies, make_host, one_host
from mailprobe.bench.market.policies import FIXED, NO_BUDGET, THESE, Ending, Policy
from mailprobe.bench.suites.tolerance import cases

ONE_HOST = "400 requests, one host, 5 % bad"


def test_these_rules_lose_nothing_at_a_host_that_takes_everything_and_a_fixed_budget_does() -> None:
    case = cases()[ONE_HOST]
    these, fixed = case(THESE), case(FIXED)
    assert (these.lost, these.wrong, these.hosts_that_ban) == (0, 0, 0)
    assert fixed.lost > 0.3 * fixed.asked


def test_a_list_bans_no_jail_where_requests_without_a_budget_do() -> None:
    for policy, bans in ((THESE, 0), (NO_BUDGET, 1)):
        market = one_host(100, 20, "fail2ban")
        client = MarketClient(policy)
        client.add_list(market.addresses, "one", 4 * 3600.0)
        client.run()
        assert market.hosts_that_ban == bans


def test_a_list_ends_within_its_patience() -> None:
    market = one_host(100, 20)
    client = MarketClient(THESE)
    client.add_list(market.addresses, "one", 4 * 3600.0)
    client.run()
    for row in client.rows:
        expected = Ending.DELIVERABLE if row.address.lives else Ending.UNDELIVERABLE
        assert row.said is expected
        assert row.said_at <= 3 * 3600.0


def test_the_neighbour_of_an_attacker_loses_nothing() -> None:
    outcome = cases()["neighbour of an attacker"](THESE)
    assert (outcome.asked, outcome.lost) == (180, 0)


@pytest.mark.parametrize("policy", [NO_BUDGET, FIXED, THESE], ids=lambda policy: policy.name)
def test_every_address_has_a_verdict_by_each_policy(policy: Policy) -> None:
    market = companies(40, 20, 0.3, seed=3)
    client = MarketClient(policy)
    client.add_list(market.addresses, "one", 4 * 3600.0 if policy.waits else 0.0)
    client.run()
    assert [row for row in client.rows if row.said is None] == []


def test_a_host_turns_after_its_number_of_refusals() -> None:
    host = MarketHost("mx.one.test", turns_after=3, turns_to=HostAnswer.REFUSED)
    session = host.open_session()
    answers = [session.answer(lives=lives, now=0.0) for lives in (False, False, True, False, True)]
    refused, accepted = HostAnswer.REFUSED, HostAnswer.ACCEPTED
    assert answers == [refused, refused, accepted, refused, refused]
    assert session.answer(lives=True, now=3601.0) is accepted


def test_a_hidden_jail_has_no_words_of_its_own() -> None:
    host = make_host(Random(1), "mx.one.test", "fail2ban")
    assert host.greeting == host.refusal == ""
    assert host.defence is not None
