"""What the fleet knows, in an engine of several egresses: kept once, and the latest holds."""

from collections.abc import Sequence

import pytest
import trio

from mailprobe.bench.world.mail_host import MailHost
from mailprobe.engine import Answer
from mailprobe.engine.egress import Egress
from mailprobe.engine.shared_cache import Fact, FactKind, Listener, heed
from tests.engine.invariants import time_passing
from tests.engine.smtp.egress.worlds import A, B, World, answers_of, open_engine_of, open_world

SIX_HOURS = 6 * 3600.0
UNKNOWN = MailHost().default_unknown


class Exchange:
    """Facts as a test brings them."""

    def __init__(self) -> None:
        self.shared: list[Fact] = []
        self.listeners: dict[str, list[Listener]] = {}

    def share(self, fact: Fact) -> None:
        self.shared.append(fact)

    def listen(self, kinds: Sequence[FactKind], listener: Listener) -> None:
        for kind in kinds:
            self.listeners.setdefault(kind, []).append(listener)

    def bring(self, fact: Fact) -> bool:
        return any(heed(fact, listener) for listener in self.listeners[fact.kind])


def acceptance(domain: str, value: str, left_s: float = SIX_HOURS) -> Fact:
    return Fact("acceptance", f"mx.{domain} {domain}", value, left_s)


def refusal_elsewhere(egress: str, address: str, left_s: float = 60.0) -> Fact:
    """Another engine was refused at this address, twice."""
    value = '{"outcome": "CONVERSATION_FAILED", "rule": "blocked.listed", "failures": 2}'
    return Fact("backoff", f"{egress} address {address}", value, left_s)


def random_recipients(world: World) -> int:
    hosts = world.network.hosts.values()
    names = [name for host in hosts for name in host.record.recipients.elements()]
    return sum(not name.startswith(("known", "nobody")) for name in names)


async def test_facts_are_kept_once_for_all_egresses(autojump_clock):
    async with open_world() as world:
        domains = world.add(20, catch_all=True)
        exchange = Exchange()
        rows = [Egress(name) for name in "abcdefgh"]
        async with open_engine_of(world, *rows, exchange=exchange) as engine:
            assert {len(each) for each in exchange.listeners.values()} == {1}
            for domain in domains:
                assert exchange.bring(acceptance(domain, "all"))
            found = await answers_of(engine, [f"known@{domain}" for domain in domains])
            assert {answer.cause.reason for answer in found} == {"catch_all"}
            assert len(set(world.dialled.elements())) > 3
            assert random_recipients(world) == 0


@pytest.mark.parametrize("is_late", [False, True], ids=["in order", "the older one last"])
async def test_a_finding_that_arrives_late_does_not_undo_a_later_one(autojump_clock, is_late):
    """A process whose store was away writes what it found long ago."""
    async with open_world() as world:
        [domain] = world.add(1)
        exchange = Exchange()
        async with open_engine_of(world, A, B, exchange=exchange) as engine:
            facts = [acceptance(domain, "all", 5000), acceptance(domain, "not all", 6000)]
            for fact in reversed(facts) if is_late else facts:
                exchange.bring(fact)
            [answer] = await answers_of(engine, [f"known@{domain}"])
            assert answer.cause.reason == "accepted"
            assert not exchange.bring(acceptance(domain, "all", 4000))
            assert exchange.bring(acceptance(domain, "all", 7000))  # it turned again


@pytest.mark.parametrize("order", ["abc", "cba"])
async def test_a_catch_all_that_one_egress_refutes_is_none_for_the_others(autojump_clock, order):
    """The domain goes to another egress for a while, and comes back. The fleet is told."""
    async with open_world() as world:
        [domain] = world.add(1, catch_all=True, replies={"nobody": UNKNOWN})
        rows = [Egress(name, weight=1e9 if name == "a" else 1) for name in order]
        exchange = Exchange()
        async with open_engine_of(world, *rows, exchange=exchange) as engine:
            assert world.control is not None
            for name, egress, reason in (
                ("known1", "a", "catch_all"),
                ("nobody", "b", "no_mailbox"),
                ("known2", "a", "catch_all"),
            ):
                world.control.pause(*{"a", "b", "c"} - {egress})
                tests = random_recipients(world)
                [answer] = await answers_of(engine, [f"{name}@{domain}"])
                assert answer.cause.reason == reason
                await trio.sleep(5)
            assert random_recipients(world) == tests + 1  # it was tested again
        found = [fact.value for fact in exchange.shared if fact.kind == "acceptance"]
        assert found == ["all", "not all", "all"]


@pytest.mark.parametrize("at_s", [0.1, 0.3, 1.0, 2.0])
@pytest.mark.parametrize(
    "limits",
    [{}, {"session_recipients_max": 3}, {"commands_max": 8}, {"connections_max": 1}],
    ids=["none", "three recipients", "eight commands", "one connection"],
)
async def test_a_refusal_elsewhere_does_not_stop_a_host_that_serves_us(
    autojump_clock, limits, at_s
):
    """Its sessions end, and others are opened beside the last one, while that address rests."""
    async with time_passing(), open_world() as world:
        [domain] = world.add(1, latency_s=0.2, **limits)
        [address] = world.network.hosts
        exchange = Exchange()
        async with open_engine_of(world, A, exchange=exchange) as engine, trio.open_nursery() as n:
            found: list[Answer] = []

            async def ask() -> None:
                texts = [f"known{number}@{domain}" for number in range(100)]
                found.extend(await answers_of(engine, texts, deferred_start=True))

            n.start_soon(ask)
            await trio.sleep(at_s)
            is_believed = exchange.bring(refusal_elsewhere("a", address))
        assert is_believed <= (at_s < 1.0 or bool(limits))  # before a connection, or between two
        if not is_believed:
            assert {answer.cause.reason for answer in found} == {"accepted"}
