"""Several engines that share one store send each domain's random name once, on virtual time."""

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace

import pytest
import trio

from mailprobe.api.quota.refusal_leases import open_refusal_leases
from mailprobe.api.quota.shared_cache import StoredSharedCache, exchanging
from mailprobe.bench.world.fake_network import FakeNetwork, open_fake_network
from mailprobe.bench.world.mail_host import MailHost
from mailprobe.engine import Answer, Engine
from mailprobe.engine.smtp.leases.name_claims import CLAIM_S, ELSEWHERE_S
from mailprobe.engine.smtp.leases.refusal_leases import LEASE_S
from mailprobe.storage.tolerances import RefusalRequest
from tests.api.quota.test_refusal_leases import EGRESS, HOST, OFFICE, STAFF, STRICT, SharedStore
from tests.engine.engine_runs import open_test_engine
from tests.simulation.lists_with_patience import FEWEST_WAIT_S, ask_in_passes

HOSTS = {name: described for name, (described, _) in STRICT.items() if name in {"cisco", "kerio"}}
HOSTS["unknown software"] = OFFICE
ROWS = 12  # of each process


@asynccontextmanager
async def machine(network: FakeNetwork, store: SharedStore) -> AsyncIterator[Engine]:
    """An engine that leases refusals and shares what it learns, as services do."""
    facts = StoredSharedCache(store)
    async with (
        open_refusal_leases(store) as refusals,
        open_test_engine(
            network, refusals=refusals, exchange=facts, helo_name=EGRESS, mint=None
        ) as engine,
        exchanging(facts),
    ):
        yield engine


async def clean_together(
    network: FakeNetwork, store: SharedStore, processes: int, domains: int
) -> list[Answer]:
    """One list of living people, a part of it at each process."""
    answers: list[Answer] = []

    async def clean(engine: Engine, first: int) -> None:
        names = STAFF[first : first + ROWS]
        texts = [f"{name}@shop{n % domains}.test" for n, name in enumerate(names)]
        answers.extend(await ask_in_passes(engine, texts, "one"))

    async with AsyncExitStack() as stack:
        opened = [
            await stack.enter_async_context(machine(network, store)) for _ in range(processes)
        ]
        async with trio.open_nursery() as nursery:
            for number, engine in enumerate(opened):
                nursery.start_soon(clean, engine, number * ROWS)
    return answers


def random_names(host: MailHost) -> Counter[str]:
    """How many different ones the host was sent, by their domains."""
    unknown = [each for each in host.record.recipients if each.partition("@")[0] not in STAFF]
    return Counter(each.partition("@")[2] for each in unknown if not each.startswith("postmaster"))


@pytest.mark.parametrize("kind", HOSTS)
@pytest.mark.parametrize("processes", [2, 4])
async def test_each_domain_costs_a_strict_host_one_random_name(
    autojump_clock: object, kind: str, processes: int
):
    """Cisco's refusal names no mailbox: a second name, of another shape, decides."""
    host, store = replace(HOSTS[kind], latency_s=0.02), SharedStore()
    async with open_fake_network() as network:
        network.add("shop0.test", host, mx="mx.shop.test")
        answers = await clean_together(network, store, processes, domains=1)
    assert {answer.verdict.confidence for answer in answers} == {0.97}
    assert len(answers) == processes * ROWS
    assert random_names(host) == {"shop0.test": 2 if kind == "cisco" else 1}


async def test_processes_share_the_names_of_a_host_with_several_domains(autojump_clock: object):
    host, store = replace(HOSTS["kerio"], latency_s=0.02), SharedStore()
    async with open_fake_network() as network:
        for number in range(6):
            network.add(f"shop{number}.test", host, mx="mx.shop.test")
        answers = await clean_together(network, store, 4, domains=6)
    assert {answer.verdict.confidence for answer in answers} == {0.97}
    assert random_names(host) == {f"shop{number}.test": 1 for number in range(6)}


@pytest.mark.parametrize("patience_s", [0.0, CLAIM_S - 1.0])
async def test_a_list_of_little_patience_sends_a_name_of_its_own(
    autojump_clock: object, patience_s: float
):
    """It does not come back, so that the answer of another process would be too late for it."""
    host, store = replace(OFFICE, latency_s=0.02), SharedStore()
    async with open_fake_network() as network:
        network.add("shop.test", host)
        claim = {HOST: RefusalRequest(0, True, 4, names=["shop.test"])}
        await store.lease_refusals("other", claim, lease_s=LEASE_S)
        async with machine(network, store) as engine:
            texts = [f"{name}@shop.test" for name in STAFF[:ROWS]]
            answers = await ask_in_passes(engine, texts, "one", patience_s)
    assert {answer.verdict.confidence for answer in answers} == {0.97}


async def test_a_process_that_dies_with_a_claim_delays_the_others_for_seconds(
    autojump_clock: object,
):
    host, store = replace(OFFICE, latency_s=0.02), SharedStore()
    async with open_fake_network() as network:
        network.add("shop.test", host)
        claim = {HOST: RefusalRequest(0, True, 4, names=["shop.test"])}
        await store.lease_refusals("dead", claim, lease_s=LEASE_S)
        async with machine(network, store) as engine:
            texts = [f"{name}@shop.test" for name in STAFF[:ROWS]]
            answers = await ask_in_passes(engine, texts, "one")
            assert trio.current_time() < CLAIM_S + ELSEWHERE_S + FEWEST_WAIT_S
    assert {answer.verdict.confidence for answer in answers} == {0.97}
    assert random_names(host) == {"shop.test": 1}
