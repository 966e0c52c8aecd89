"""The scenario `defences`: its lists have the shares that they claim, and its counts are right."""

from collections import Counter
from random import Random
from typing import Any

import pytest
import trio

from mailprobe.bench.lab.defence_counts import count_kinds, most_within
from mailprobe.bench.lab.defences import ListShape, Providers, add_list
from mailprobe.bench.lab.scenario import Scenario, Truth
from mailprobe.bench.world.defended_hosts import defended_host
from mailprobe.bench.world.fake_network import open_fake_network
from tests.bench.world.test_mail_hosts import HELLO, MAIL, meet

SHAPE = ListShape("small", 800, 200, 0.05)


def test_a_list_has_the_shares_and_the_bad_addresses_that_it_claims() -> None:
    scenario, rng = Scenario(), Random(1)
    add_list(scenario, Providers.open(scenario, rng), rng, SHAPE)
    texts = scenario.groups["small"]
    domains = {text.rpartition("@")[2] for text in texts}
    kinds = Counter(domain.partition("-like")[0] for domain in domains)
    assert (len(set(texts)), len(domains)) == (800, 200)
    assert (kinds["google"], kinds["microsoft"]) == (50, 50)
    gateways = sum("cisco" in d or "forcepoint" in d or "trendmicro" in d for d in domains)
    assert gateways == 70
    absent = len(scenario.truth[Truth.ABSENT])
    accepted = len(scenario.truth[Truth.CATCH_ALL])
    assert 20 <= absent <= 40  # of 40 bad ones; the others are at gateways that accept all
    assert absent + accepted + len(scenario.truth[Truth.EXISTS]) == 800


@pytest.mark.parametrize(
    ("times", "most"), [([], 0), ([1.0], 1), ([0, 1, 2, 9, 10.5], 3), ([0, 3, 6, 9], 1)]
)
def test_the_most_within_a_span(times: list[float], most: int) -> None:
    assert most_within(times, 3) == most


async def test_the_lab_counts_as_its_hosts_do(autojump_clock: Any) -> None:
    host = defended_host("mdaemon", "mx.shop.test")
    listed = {"known.ann@shop.test", "gone@shop.test", "known.bob@other.test"}
    async with open_fake_network() as network:
        for mailboxes in (
            ["known.ann@shop.test", "random1@shop.test", "gone@shop.test"],
            ["random2@shop.test", "random3@other.test", "known.bob@other.test"],
            ["known.bob@other.test", "random4@other.test", "random5@other.test", "random6@other.test"],
        ):  # fmt: skip
            client = await meet(network, host)
            await client.reply()
            recipients = [f"RCPT TO:<{mailbox}>" for mailbox in mailboxes]
            await client.exchange(HELLO, MAIL, *recipients, "QUIT")
            await client.stream.aclose()
            await trio.sleep(1)
        address = network.address_of(host)
        assert address is not None
        counts = count_kinds(network.hosts, {address: "mdaemon"}, listed)["mdaemon"]
    assert (counts.hosts, counts.domains, counts.connections, counts.peak) == (1, 2, 3, 1)
    assert (counts.recipients, counts.random_names) == (10, 6)
    assert (counts.refused_session_max, counts.refused_hour_max, counts.bans) == (3, 7, 1)
