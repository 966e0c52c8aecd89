"""Hosts that ban who names unknown recipients, by their products' defaults, on virtual time.

Living addresses alone, one a domain, at one shared host of each kind; and a list in hours.

The engine's own random names are all that such a host refuses. By their defaults several
kinds ban a source after three or four of them. As a list, as one batch and as single requests
nobody is banned but once by a host that nothing shows, and no verdict is wrong; at hosts that
take so many refusals every mailbox is known.
"""

import random
from collections import Counter
from typing import Any

import pytest
import trio
import trio.testing

from mailprobe.bench.harness.confusion import HONEST
from mailprobe.bench.lab.defences import (
    GROUP_AWAY_S,
    LIVING_OF_ONE_HOST,
    ListShape,
    Providers,
    add_list,
)
from mailprobe.bench.lab.internet import LIVING, SENDER
from mailprobe.bench.lab.scenario import Scenario
from mailprobe.bench.lab.scenarios import build
from mailprobe.bench.suites.truths.hours import counts_of, verify_in_hours
from mailprobe.bench.world.defended_hosts import DEFENDED_HOSTS, defended_host
from mailprobe.bench.world.fake_network import open_fake_network
from mailprobe.bench.world.host_profiles import new_host
from mailprobe.bench.world.mail_host import MailHost
from mailprobe.engine import EngineSettings
from mailprobe.engine.settings import DOH_URLS
from tests.engine.engine_runs import open_test_engine
from tests.engine.invariants import assert_whole
from tests.simulation.differential.worlds import scheduled_in_order
from tests.simulation.test_sequences import ask_in_parts, ask_list

SINGLES_EVERY_S = 0.1
SETTLED_S = 30.0  # after which nothing of an engine is under way
# postscreen's first greeting takes 6 s: a request cannot wait so long, and leaves before it
# These take fewer refusals than a random name for each domain costs: what is left is unknown.
NARROW = frozenset({"fail2ban", "forcepoint", "kerio", "cisco", "trendmicro"})
HOURLY = frozenset({"kerio", "cisco"})  # random names of requests leave half of their hour
HIDDEN = frozenset({"fail2ban"})  # nothing shows it, so it bans once before its limit is known
NAMES = {  # of services, which are recognised by nothing else
    "forcepoint": "cust1.in.mailcontrol.com",
    "trendmicro": "shared.in.tmes.trendmicro.com",
}
CASES = [
    (kind, way)
    for kind in DEFENDED_HOSTS
    for way in ("list", "batch", "singly")
    if kind != "postscreen" or way == "list"
]


async def ask(host: MailHost, way: str, addresses: int, domains: int) -> tuple[Counter[str], float]:
    """The statuses of living addresses of domains that share this host, and the seconds."""
    names = random.Random(0).sample(sorted(LIVING), addresses)
    texts = [f"{name}@shop{number % domains:03}.test" for number, name in enumerate(names)]
    async with open_fake_network() as network:
        for text in texts:
            network.add(text.rpartition("@")[2], host, mx=host.name)
        settings = EngineSettings(mail_from=SENDER, doh_urls=DOH_URLS[:1])
        async with open_test_engine(network, settings, rng=random.Random(1)) as engine:
            began = trio.current_time()
            if way == "list":
                statuses = await ask_list(engine, texts)
            else:
                size = 1 if way == "singly" else len(texts)
                statuses = await ask_in_parts(engine, texts, size, SINGLES_EVERY_S, accounts=1)
            took_s = trio.current_time() - began
            await trio.sleep(SETTLED_S)
            assert_whole(engine)
    return Counter(statuses.values()), took_s


@pytest.mark.parametrize(("kind", "way"), CASES)
async def test_living_addresses_at_one_host_are_known_and_ban_nobody(
    autojump_clock: Any, kind: str, way: str
) -> None:
    changes = {"mailboxes": LIVING, "latency_s": GROUP_AWAY_S}
    host = defended_host(kind, NAMES.get(kind, "mx.shared.test"), **changes)
    statuses, _ = await ask(host, way, LIVING_OF_ONE_HOST, LIVING_OF_ONE_HOST)
    # and one of which the host has not yet seen the end
    assert host.record.connections_peak <= EngineSettings().host_connections + 1
    assert host.record.mistakes == []
    assert host.record.bans <= (kind in HIDDEN)
    is_narrow = kind in NARROW and not (way != "list" and kind in HOURLY)
    assert statuses["deliverable"] + statuses["unknown"] * is_narrow == LIVING_OF_ONE_HOST


async def test_real_addresses_go_before_random_ones_at_a_far_host(autojump_clock: Any) -> None:
    """One request for two addresses of each of 50 domains, whose host is 300 ms away."""
    host = new_host("postfix", "mx.far.test", mailboxes=LIVING, latency_s=0.3, connect_s=0.3)
    statuses, _ = await ask(host, "batch", 100, 50)
    assert statuses == {"deliverable": 100}


@pytest.mark.parametrize(
    ("way", "within_s"),
    [
        ("batch", 1.2 * 2.0),  # another verifier needs 2.0 s
        ("list", 1200.0),  # the aim of a list at a shared host (AIM_S), and the last growth
    ],
)
def test_a_healthy_shared_host_is_probed_within_its_allowance(way: str, within_s: float) -> None:
    """Two addresses of each of 200 domains at 20 ms."""
    host = new_host("postfix", "mx.near.test", mailboxes=LIVING, latency_s=0.02, connect_s=0.02)
    with scheduled_in_order():
        clock = trio.testing.MockClock(autojump_threshold=0)
        statuses, took_s = trio.run(ask, host, way, 400, 200, clock=clock)
    assert statuses == {"deliverable": 400}
    assert took_s <= within_s


def test_a_list_is_known_within_hours_bans_nobody_and_asks_few_random_names() -> None:
    """The hosts' hours pass in virtual time, so what waits for a host's budget is known too."""
    shape, rng = ListShape("small", 1_000, 250, 0.08), random.Random(2)
    scenario = Scenario(mail_from=SENDER)
    add_list(scenario, Providers.open(scenario, rng), rng, shape)
    reported, _ = verify_in_hours(scenario, scenario.groups[shape.name])
    truth = {text: truth for truth, texts in scenario.truth.items() for text in texts}
    assert [each for each in reported if each.status not in HONEST[truth[each.email]]] == []
    counts = counts_of(scenario).values()
    assert sum(found["bans"] for found in counts) == 0
    # One for each shape of a domain's addresses; gateways that refuse in words of their own are
    # asked for a second name.
    assert sum(found["random_names"] for found in counts) <= 1.5 * shape.domains
    assert [each for each in reported if each.status == "unknown"] == []


def test_a_second_random_name_without_room_is_sent_later_without_the_first() -> None:
    """The host's words are not known to speak of a user, so each domain costs two names of 24 an hour."""
    scenario = build("defences", 0)
    texts = scenario.groups["one-host-cisco"]
    reported, _ = verify_in_hours(scenario, texts)
    assert {each.status for each in reported} == {"deliverable"}
    assert {each.why for each in reported} == {"accepted"}
    assert counts_of(scenario)["one-host-cisco"]["random_names"] == 2 * len(texts)
