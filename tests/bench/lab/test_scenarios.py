"""The lab's scenarios keep their word, without a socket; and the list belongs to the town."""

import csv
from collections import Counter
from random import Random

import dns.message
import dns.rcode
import pytest

from mailprobe.bench.lab import make_list
from mailprobe.bench.lab.internet import KNOWABLE
from mailprobe.bench.lab.scenario import Scenario, Truth
from mailprobe.bench.lab.scenarios import SCENARIOS, alabel, build
from mailprobe.bench.world.host_log import HostLogSession
from mailprobe.bench.world.mail_host import HostAddress
from mailprobe.bench.world.smtp_script import SmtpScript
from mailprobe.engine.address import NotAnAddress, parse
from mailprobe.engine.lists.lists import load_lists
from mailprobe.engine.verdict import Outcome

ROWS = list(csv.DictReader(make_list.LIST.read_text(encoding="utf-8").splitlines()))


@pytest.fixture(scope="module")
def fixture_domains():
    return build("default", 0)


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_scenario_is_the_same_for_the_same_seed(name):
    one, two = build(name, 7), build(name, 7)
    assert one.hosts == two.hosts
    assert one.addresses == two.addresses
    assert one.zone.names == two.zone.names


@pytest.mark.parametrize("name", SCENARIOS)
def test_no_address_is_said_to_be_two_things(name):
    addresses = build(name, 0).addresses
    assert max(Counter(a for known in addresses.values() for a in known).values()) == 1


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_address_of_a_host_is_loopback_and_has_its_exchange(name):
    scenario = build(name, 0)
    named = {a for known in scenario.zone.names.values() for a in known.addresses}
    assert named == set(scenario.hosts)
    assert all(address.startswith("127.") for address in named)


def test_the_lists_agree_with_the_fixture_domains(fixture_domains):
    """Disposable and blocked domains are those of layer 2 and no others."""
    lists = load_lists()
    for outcome, addresses in fixture_domains.addresses.items():
        for text in addresses:
            if outcome is Outcome.SYNTAX:
                with pytest.raises(NotAnAddress):
                    parse(text)
                continue
            signals = lists.signals(parse(text))
            assert signals.disposable == (outcome is Outcome.DISPOSABLE), text
            assert signals.smtp_blocked == (outcome is Outcome.SMTP_BLOCKED), text
    slips = [a for a in fixture_domains.addresses[Outcome.NO_MX] if not a.endswith(".test")]
    assert slips
    assert all(lists.signals(parse(text)).suggestion for text in slips)


def test_the_committed_list_is_what_the_script_makes():
    assert make_list.LIST.read_text(encoding="utf-8") == make_list.make()


def test_the_list_has_300_rows_of_every_outcome_in_their_shares(fixture_domains):
    reported = {
        text: outcome for outcome, known in fixture_domains.addresses.items() for text in known
    }
    assert len(ROWS) == 300
    shares = Counter(reported.get(row["email"]) for row in ROWS)
    # Not of one address.
    in_sequence = {
        Outcome.HOST_CHANGED,
        Outcome.HOST_BUDGET,
        Outcome.UNCONFIRMED,
        Outcome.NO_CONNECTION_FREE,
        Outcome.NO_EGRESS,
        Outcome.NOT_ASKED,
        Outcome.PAUSED,
        Outcome.BOUNCED,
    }
    assert set(Outcome) - in_sequence <= set(shares)
    assert 0.55 < shares[Outcome.DELIVERABLE] / len(ROWS) < 0.65
    assert shares[Outcome.TIMED_OUT] <= 12


def test_the_list_has_the_warts_of_a_real_one():
    emails = [row["email"].lower() for row in ROWS]
    assert len(emails) - len(set(emails)) >= 5
    assert any(not any(row.values()) for row in ROWS)
    assert all(any(not row[column] for row in ROWS) for column in make_list.COLUMNS)
    assert any("," in row["company"] for row in ROWS)
    assert any(not row["name"].isascii() for row in ROWS)


def test_every_domain_of_the_list_is_known_to_the_resolver(fixture_domains):
    """NXDOMAIN only where the town says so, never because a firm was forgotten."""
    known = set(fixture_domains.zone.names)
    for row in ROWS:
        try:
            address = parse(row["email"])
        except NotAnAddress:
            continue
        assert address.domain in known, row
        fixture_domains.zone.answer(dns.message.make_query(address.domain, "MX").to_wire())


async def test_every_mailbox_of_the_fixture_domains_is_answered_as_it_says(
    fixture_domains, autojump_clock
):
    """The outcomes that one reply decides: each is asked of its host, in memory."""
    first_digit = {
        Outcome.DELIVERABLE: "2",
        Outcome.CATCH_ALL: "2",
        Outcome.DELIVERABLE_UNTESTED: "2",
        Outcome.UNDELIVERABLE: "5",
        Outcome.REFUSED_BY_POLICY: "5",
        Outcome.TEMPORARY: "4",
    }
    for outcome, digit in first_digit.items():
        for text in fixture_domains.addresses[outcome]:
            local, _, domain = text.rpartition("@")
            *_, (_, exchange) = fixture_domains.zone.names[alabel(domain)].mx
            (address,) = fixture_domains.zone.names[exchange].addresses
            server = SmtpScript(fixture_domains.hosts[address], HostLogSession(1, 0.0))
            server.receive("EHLO probe.test", 0, together=False)
            server.receive("HELO probe.test", 0, together=False)
            server.receive("MAIL FROM:<>", 0, together=False)
            said = server.receive(f"RCPT TO:<{local}@{alabel(domain)}>", 0, together=False)
            assert said.text.startswith(digit), (text, said)


def test_the_internet_has_5000_addresses_and_each_is_one_thing():
    scenario = build("internet", 0)
    true = {text: truth for truth, known in scenario.truth.items() for text in known}
    reported = {text: outcome for outcome, known in scenario.addresses.items() for text in known}
    assert len(true) == len(reported) == 5_000
    assert true.keys() == reported.keys()
    honest = {
        Truth.EXISTS: {Outcome.DELIVERABLE, Outcome.DELIVERABLE_UNTESTED},
        Truth.ABSENT: {Outcome.UNDELIVERABLE},
        Truth.CATCH_ALL: {Outcome.CATCH_ALL},
        Truth.NO_MAIL: {Outcome.NO_MX},
    }
    for text, outcome in reported.items():
        assert outcome in honest[true[text]] or outcome not in KNOWABLE, text


def test_the_internet_is_made_in_its_shares():
    scenario = build("internet", 0)
    count = {outcome: len(known) / 5_000 for outcome, known in scenario.addresses.items()}
    assert 0.5 < count[Outcome.DELIVERABLE] < 0.65
    assert 0.08 < count[Outcome.CATCH_ALL] < 0.2
    assert 0.1 < count[Outcome.UNDELIVERABLE] < 0.2
    assert 0.02 < count[Outcome.TEMPORARY] < 0.06
    assert sum(count[outcome] for outcome in count if outcome not in KNOWABLE) < 0.25


async def test_the_internet_scenarios_hosts_answer_by_its_truth(autojump_clock):
    """The truth is the hosts' own: each address is asked of its domain's hosts, in memory."""
    scenario = build("internet", 0)
    for text in (*scenario.addresses[Outcome.DELIVERABLE], *scenario.addresses[Outcome.CATCH_ALL]):
        domain = text.partition("@")[2]
        replies = {first_reply(scenario, address, text) for address in hosts_of(scenario, domain)}
        assert {reply[0] for reply in replies} == {"2"}, (text, replies)
    for text in scenario.addresses[Outcome.UNDELIVERABLE]:
        domain = text.partition("@")[2]
        replies = {first_reply(scenario, address, text) for address in hosts_of(scenario, domain)}
        assert {reply[0] for reply in replies} == {"5"}, (text, replies)


def hosts_of(scenario: Scenario, domain: str) -> list[str]:
    """The addresses of the domain's exchanges whose hosts can be spoken to."""
    names = scenario.zone.names
    addresses = [a for _, mx in names[domain].mx for a in names[mx].addresses]
    shut = {"CONNECT"}
    return [
        address
        for address in addresses
        if scenario.hosts[address].address is HostAddress.OPEN
        and not shut & scenario.hosts[address].faults.keys()
    ]


def first_reply(scenario: Scenario, address: str, text: str) -> str:
    server = SmtpScript(scenario.hosts[address], HostLogSession(1, 0.0))
    server.secured()
    server.receive("EHLO probe.test", 0, together=False)
    server.receive("HELO probe.test", 0, together=False)
    null = scenario.hosts[address].named_sender_reply is not None
    server.receive(f"MAIL FROM:<{'' if null else 'probe@probe.test'}>", 0, together=False)
    return server.receive(f"RCPT TO:<{text}>", 0, together=False).text


def test_the_seed_decides_how_far_healthy_hosts_are():
    latencies = [
        [host.latency_s for host in SCENARIOS["hostile"](Random(seed)).hosts.values()]
        for seed in (1, 2)
    ]
    assert latencies[0] != latencies[1]
    assert max(latencies[0]) <= 0.1
