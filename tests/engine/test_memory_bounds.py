"""The tables of domains and hosts have bounds; an engine that has met them keeps nothing more."""

import gc
from collections import Counter

import trio

from mailprobe.bench.harness.engine_runs import verify_all
from mailprobe.bench.world.fake_network import open_fake_network
from mailprobe.bench.world.mail_host import MailHost
from mailprobe.engine import Engine
from mailprobe.engine.dns import single_flight
from mailprobe.engine.smtp import catchall, host_memory
from mailprobe.engine.smtp.host import hosts as mail_hosts
from mailprobe.engine.smtp.tolerance import hosts
from mailprobe.engine.stream import pipeline
from tests.engine.engine_runs import open_test_engine

BOUND = 5
BOUNDS = (
    (catchall, "DOMAINS_MAX"),
    (host_memory, "BACKOFFS_MAX"),
    (mail_hosts, "HOSTS_MAX"),
    (mail_hosts, "NAMES_MAX"),
    (hosts, "TOLERANCES_MAX"),
    (pipeline, "ORDERS_MAX"),
    (pipeline, "SNAPSHOTS_MAX"),
)
DOMAINS = 40
REST_S = 400.0  # connections are closed, and short memories end


def kept() -> Counter[str]:
    """The engines' objects by type, without those of the scripted network."""
    gc.collect()
    names = (f"{type(each).__module__}.{type(each).__qualname__}" for each in gc.get_objects())
    return Counter(
        name
        for name in names
        if name.startswith("mailprobe.engine.") and not name.startswith("mailprobe.bench.world.")
    )


async def meet(engine: Engine, domains: list[str]) -> None:
    await verify_all(engine, [f"known@{domain}" for domain in domains])
    await trio.sleep(REST_S)


async def test_new_domains_leave_nothing_once_the_tables_are_full(autojump_clock, monkeypatch):
    for module, name in BOUNDS:
        monkeypatch.setattr(module, name, BOUND)
    defaults = single_flight.SingleFlightCache.__init__.__kwdefaults__
    monkeypatch.setitem(defaults, "names_max", BOUND)
    of_others = kept()["mailprobe.engine.smtp.host.host.Host"]  # what earlier tests have left
    async with open_fake_network() as network:
        groups = [[f"d{n}.g{group}.test" for n in range(DOMAINS)] for group in range(2)]
        for domain in (*groups[0], *groups[1]):
            network.add(domain, MailHost())
        async with open_test_engine(network) as engine:
            await meet(engine, groups[0])
            before = kept()
            await meet(engine, groups[1])
            assert kept() - before == Counter()
            assert before["mailprobe.engine.smtp.host.host.Host"] == of_others + BOUND
