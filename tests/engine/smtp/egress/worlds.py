"""Engines with several egresses, over a fake network in which hosts may refuse one of them."""

import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import trio

from mailprobe.bench.world.fake_network import FakeNetwork, open_fake_network
from mailprobe.bench.world.mail_host import MailHost
from mailprobe.engine import Answer, Engine, EngineSettings, open_answers, open_engine
from mailprobe.engine.egress import Egress, Egresses
from mailprobe.engine.net.dialer import Dial
from mailprobe.engine.shared_cache import SharedCache
from mailprobe.engine.smtp.connection_budget import ConnectionBudget
from mailprobe.engine.smtp.egress.control import LocalEgressControl
from mailprobe.engine.smtp.leases.ledger import RefusalLedger
from tests.engine.engine_runs import SETTLED_S
from tests.engine.invariants import assert_whole

NOON = datetime(2026, 7, 1, 12, tzinfo=UTC).timestamp()
LISTED = "554 5.7.1 Service unavailable; Client host blocked using zen.spamhaus.org"


class Control(LocalEgressControl):
    """Counts in memory by trio's clock, which begins at noon; a test may pause an egress."""

    def __init__(self, egresses: Egresses) -> None:
        began = trio.current_time()
        super().__init__(egresses, lambda: NOON + trio.current_time() - began)
        self.paused: set[str] = set()
        self.quarantined: list[str] = []
        self.released: list[str] = []
        self.answers: Counter[tuple[str, str]] = Counter()  # by egress and reason

    def pause(self, *egresses: str) -> None:
        """These, and no others, are paused from now on."""
        self.paused = set(egresses)
        self.listeners.notify()

    def state(self, egress: str) -> Any:
        return "paused" if egress in self.paused else super().state(egress)

    def answered(self, egress: str, operator: str, host: str, reason: str) -> None:
        self.answers[egress, reason] += 1

    def quarantine(self, egress: str, why: str) -> None:
        super().quarantine(egress, why)
        self.quarantined.append(egress)

    def release(self, egress: str) -> None:
        super().release(egress)
        self.released.append(egress)


@dataclass
class World:
    """A network as every egress sees it, and the hosts that treat one of them in another way."""

    network: FakeNetwork
    control: Control | None = None
    hosts: dict[str, FakeNetwork] = field(default_factory=dict)  # by egress
    # By egress: fails, waits, or connects to another end.
    dials: dict[str, Callable[[str], Awaitable[trio.abc.Stream | None]]] = field(
        default_factory=dict
    )
    dialled: Counter[str] = field(default_factory=Counter)  # by egress

    def add(
        self,
        count: int,
        *,
        mx: str = "mx.{}",
        refuses: str = "",
        how: MailHost | None = None,
        is_shared: bool = False,
        **host: Any,
    ) -> list[str]:
        """So many domains, each with a host of its own, which `refuses` an egress at its banner."""
        first = len(self.network.zone.names)
        domains = [f"shop{first + number}.test" for number in range(count)]
        shared = MailHost(**host)
        for domain in domains:
            one = shared if is_shared else MailHost(**host)
            address = self.network.add(domain, one, mx=mx.format(domain))
            if refuses:
                self.hosts[refuses].hosts[address] = how or MailHost(banner=LISTED)
        return domains

    @property
    def recipients(self) -> int:
        """How many the hosts were sent, by all egresses."""
        hosts = self.network.hosts.values()
        return sum(host.record.recipients.total() for host in hosts)

    def was_asked(self, mailbox: str) -> bool:
        """Whether a host that treats no egress in another way was sent this recipient."""
        return any(host.record.recipients[mailbox] for host in self.network.hosts.values())

    def dial_by(self, row: Egress) -> Dial:
        async def dial(address: str, port: int) -> trio.abc.Stream:
            self.dialled[row.name] += 1
            if row.name in self.dials:
                stream = await self.dials[row.name](address)
                if stream is not None:
                    return stream
            other = self.hosts.get(row.name)
            network = other if other and address in other.hosts else self.network
            return await network.dial(address, port)

        return dial


@asynccontextmanager
async def open_world() -> AsyncIterator[World]:
    async with open_fake_network() as network, open_fake_network() as other:
        yield World(network, hosts={"a": other})


@asynccontextmanager
async def open_engine_of(
    world: World,
    *rows: Egress,
    share: float = 0.5,
    permits: ConnectionBudget | None = None,
    control: type[Control] = Control,
    exchange: SharedCache | None = None,
    refusals: RefusalLedger | None = None,
    **settings: Any,
) -> AsyncIterator[Engine]:
    """An engine with these egresses; at its end nothing may be under way."""
    egresses = Egresses(rows, share)
    world.control = control(egresses)
    async with open_engine(
        EngineSettings(egresses=egresses, **settings),
        transport=world.network.transport,
        dial_by=world.dial_by,
        rng=random.Random(0),
        computed_s=lambda: 0.0,
        permits=permits,
        exchange=exchange,
        refusals=refusals,
        egress_control=world.control,
    ) as engine:
        yield engine
        await trio.sleep(SETTLED_S)
        assert_whole(engine)


async def answers_of(engine: Engine, texts: Sequence[str], **options: Any) -> list[Answer]:
    """All answers, by position; none may be later than its deadline."""
    async with open_answers(engine, texts, account="me", **options) as answers:
        found = [answer async for answer in answers]
    assert sorted(answer.position for answer in found) == list(range(len(texts)))
    assert all(answer.verdict.latency_ms <= 3050 for answer in found)
    return sorted(found, key=lambda answer: answer.position)


def reasons(answers: Sequence[Answer]) -> Counter[str]:
    return Counter(answer.cause.reason for answer in answers)


A, B = Egress("a"), Egress("b")
