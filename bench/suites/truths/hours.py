"""The lists of the scenario `defences` in virtual time, where the patience of a list can pass.

The engine, the passes of `clean` and the hosts live by one virtual clock and meet in
memory, so a run of many hours takes a minute. The same hosts ban by the same rules; what
sockets and processes cost is measured on real ones (defences).
"""

from functools import partial
from itertools import chain
from random import Random

import trio
from msgspec.structs import asdict
from trio.testing import MockClock

from mailprobe.api.cli.clean import PASSES_MAX
from mailprobe.api.cli.cleaning.addresses import DistinctAddresses
from mailprobe.api.cli.cleaning.passes import Passes, Recheck
from mailprobe.api.cli.source import OwnEngine
from mailprobe.api.listfile.journal import VERSION, Header, open_journal
from mailprobe.engine import EngineSettings, open_engine
from mailprobe.engine.settings import DOH_URLS

from ...harness.confusion import ReportedAddress
from ...lab.defence_counts import count_kinds
from ...lab.scenario import Scenario
from ...world.fake_network import open_fake_network

# `--recheck 10 --recheck-after 5m,1h --patience 4h`: the patience of a list job.
RECHECK = Recheck(passes=PASSES_MAX, after_s=(300.0, 3600.0), patience_s=4 * 3600.0)


def verify_in_hours(scenario: Scenario, texts: list[str]) -> tuple[list[ReportedAddress], float]:
    """One list with its passes; return the answers, and the hours that passed."""
    clock = partial(MockClock, autojump_threshold=0)
    return trio.run(_verify, scenario, texts, clock=clock())


def counts_of(scenario: Scenario) -> dict[str, dict[str, int]]:
    """What the hosts of each kind have counted."""
    listed = frozenset(text.lower() for text in chain(*scenario.truth.values()))
    counts = count_kinds(scenario.hosts, scenario.kinds, listed)
    return {kind: asdict(found) for kind, found in counts.items()}


async def _verify(scenario: Scenario, texts: list[str]) -> tuple[list[ReportedAddress], float]:
    addresses = DistinctAddresses()
    for text in texts:
        addresses.add(text)
    settings = EngineSettings(
        mail_from=scenario.mail_from, doh_urls=DOH_URLS[:1], allow_private=True
    )
    began = trio.current_time()
    async with open_fake_network() as network:
        network.zone = network.transport.zone = scenario.zone
        network.hosts.update(scenario.hosts)
        async with open_engine(
            settings,
            transport=network.transport,
            dial=network.dial,
            rng=Random(0),
            computed_s=lambda: 0.0,
        ) as engine:
            with open_journal(None, Header(VERSION, 1, "ab" * 32), resume=False) as journal:
                passes = Passes(addresses, journal, RECHECK, now=trio.current_time)
                await passes.run(OwnEngine(engine))
                last = {  # of the answers to an address the last one is the best
                    result.email: ReportedAddress(result.email, result.status, result.reason)
                    for _, result in journal.answers()
                }
    return list(last.values()), (trio.current_time() - began) / 3600
