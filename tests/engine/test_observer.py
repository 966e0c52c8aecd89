"""What a watcher is told: each step once, with its times, and never of whom."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest
import trio

from mailprobe.bench.world.fake_network import FakeEndpoint, open_fake_network
from mailprobe.bench.world.faults import Late
from mailprobe.bench.world.host_profiles import HOST_PROFILES, new_host
from mailprobe.bench.world.mail_host import MailHost
from mailprobe.bench.world.zone import ZoneMode
from mailprobe.engine import (
    EngineSettings,
    EngineStatistics,
    deciding_rules,
    in_order,
    open_answers,
)
from mailprobe.engine.egress import DEFAULT_NAME
from mailprobe.engine.smtp.operators import budget_labels
from mailprobe.engine.verdict import LADDER, Outcome
from tests.engine.engine_runs import open_test_engine, verify


@dataclass
class Diary:
    """A watcher that writes everything down: what, with what, and after how long."""

    entries: list[tuple[str, tuple[Any, ...]]] = field(default_factory=list)
    seconds: dict[str, list[float]] = field(default_factory=dict)

    def __getattr__(self, name: str) -> Any:
        def write(*said: Any, **named: Any) -> None:
            if said and isinstance(said[0], float):
                self.seconds.setdefault(name, []).append(trio.current_time() - said[0])
                said = said[1:]
            self.entries.append((name, (*said, *named.values())))

        return write

    def said(self, name: str) -> list[tuple[Any, ...]]:
        return [said for entry, said in self.entries if entry == name]

    @property
    def outcomes(self) -> Counter[tuple[Outcome, str]]:
        counted: Counter[tuple[Outcome, str]] = Counter()
        for outcome, rule, addresses, _ in self.said("answer_emitted"):
            counted[outcome, rule] += addresses
        return counted


async def test_an_answer_is_reported_with_the_operator_of_its_last_host(autojump_clock):
    diary = Diary()
    async with open_fake_network() as network:
        network.add("shop.test", MailHost(), mx="aspmx.l.google.com")
        network.add("other.test", MailHost())
        async with open_test_engine(network, observer=diary) as engine:
            await verify(engine, "ann@shop.test", "ann@other.test")
    assert {operator for *_, operator in diary.said("answer_emitted")} == {"google", "other"}


@pytest.mark.parametrize("deferred_start", [False, True], ids=["at once", "patient"])
async def test_every_address_is_reported_once_with_the_outcome_of_its_verdict(
    autojump_clock, deferred_start
):
    texts = [
        "no address", "ann@mailinator.com", "ann@nowhere.test", "ann@gmail.com",
        "known@shop.test", "known@shop.test", "nobody@shop.test", "known@silent.test",
    ]  # fmt: skip
    diary = Diary()
    async with open_fake_network() as network:
        network.add("shop.test", MailHost(mailboxes=frozenset({"known"})))
        network.add("gmail.com", MailHost())
        network.add("silent.test", new_host("silent"))
        async with open_test_engine(network, observer=diary) as engine:
            verdicts = await verify(engine, *texts, deferred_start=deferred_start)
    rungs = Counter((each.status, each.failed_check) for each in verdicts)
    reported: Counter[Any] = Counter()
    for (outcome, _), count in diary.outcomes.items():
        reported[LADDER[outcome].status, LADDER[outcome].failed_check] += count
    assert reported == rungs
    assert reported.total() == len(texts)
    assert len(diary.said("text_read")) == len(texts)
    assert len(diary.said("route_read")) == 5  # the twin goes with the other
    assert len(diary.said("probe_settled")) == 3


async def test_times_are_those_of_the_layers(autojump_clock):
    diary = Diary()
    async with open_fake_network() as network:
        for url in EngineSettings().doh_urls:
            network.transport.endpoints[url] = FakeEndpoint(delay_s=0.2)
        network.add("shop.test", new_host("silent"))
        async with open_test_engine(network, observer=diary) as engine:
            await verify(engine, "ann@shop.test")
    [route_s] = diary.seconds["route_read"]
    [probe_s] = diary.seconds["probe_settled"]
    assert diary.seconds["text_read"] == [0]
    assert route_s == pytest.approx(0.2, abs=0.05)
    assert probe_s == pytest.approx(1.2, abs=0.05)  # the exchange's address, and its silence
    assert diary.seconds["lookup_done"] == pytest.approx([0.2, 0.2], abs=0.05)


async def test_time_in_the_backlog_is_not_counted_to_a_layer(autojump_clock):
    diary = Diary()
    async with open_fake_network() as network:
        network.add("shop.test", MailHost(latency_s=0.4))
        async with open_test_engine(network, observer=diary) as engine:
            await verify(engine, *(f"a{n}@shop.test" for n in range(100)), deferred_start=True)
    assert len(diary.seconds["probe_settled"]) == 100
    assert max(diary.seconds["probe_settled"]) < 3.05
    assert max(diary.seconds["route_read"]) < 1


async def test_every_rule_that_decides_is_listed(autojump_clock):
    """Hosts of every character, each by itself; a rule that is not in the list would be no rule."""
    listed = set(deciding_rules())
    assert len(listed) == len(deciding_rules())
    seen: set[str] = set()
    for profile in HOST_PROFILES:
        diary = Diary()
        async with open_fake_network() as network:
            network.add("shop.test", new_host(profile))
            async with open_test_engine(network, observer=diary) as engine:
                await verify(engine, "known@shop.test", "nobody@shop.test", "ä@shop.test")
        seen |= {rule for _, rule in diary.outcomes}
    for mode in ZoneMode:
        diary = Diary()
        async with open_fake_network() as network:
            network.zone.mode("shop.test", mode)
            async with open_test_engine(network, observer=diary) as engine:
                await verify(engine, "ann@shop.test", "", "ann@mailinator.com", "ann@[192.0.2.1]")
        seen |= {rule for _, rule in diary.outcomes}
    assert seen <= listed
    assert {"syntax", "disposable", "no_mx", "resolver", "accepted", "clock.banner"} <= seen


async def test_reports_contain_no_address_domain_or_host(autojump_clock):
    """Words come from closed lists alone: rules, outcomes, and those of the protocol."""
    diary = Diary()
    async with open_fake_network() as network:
        network.add("shop.test", MailHost(mailboxes=frozenset({"known"})))
        network.zone.mode("broken.test", ZoneMode.SERVFAIL)
        async with open_test_engine(network, observer=diary) as engine:
            await verify(engine, "known@shop.test", "ann@broken.test", "ann@-.test", "\N{BELL}@x.y")
    words = {word for _, said in diary.entries for word in said if isinstance(word, str)}
    assert words <= {*deciding_rules(), "mx", "addresses", *budget_labels(), DEFAULT_NAME}


async def test_look_ups_are_certain_or_failed_and_not_made_twice(autojump_clock):
    diary = Diary()
    async with open_fake_network() as network:
        network.add("shop.test", MailHost())
        network.zone.mode("broken.test", ZoneMode.SERVFAIL)
        async with open_test_engine(network, observer=diary) as engine:
            await verify(engine, "a@shop.test", "a@broken.test")
            assert Counter(diary.said("lookup_done")) == {(True,): 2, (False,): 1}
            assert diary.said("recalled") == []
            await verify(engine, "b@shop.test")
    assert Counter(diary.said("lookup_done")) == {(True,): 2, (False,): 1}
    assert diary.said("recalled") == [("mx",), ("addresses",)]


async def test_a_reused_session_is_reported(autojump_clock):
    diary = Diary()
    async with open_fake_network() as network:
        network.add("shop.test", MailHost())
        async with open_test_engine(network, observer=diary) as engine:
            await verify(engine, "a@shop.test")
            assert (diary.said("connected"), diary.said("session_reused")) == ([(True,)], [])
            await trio.sleep(1)
            await verify(engine, "b@shop.test")
            assert (diary.said("connected"), diary.said("session_reused")) == ([(True,)], [()])
            await trio.sleep(10)
            await verify(engine, "c@shop.test")
            assert len(diary.said("connected")) == 2
            assert len(diary.said("session_reused")) == 1


async def test_a_lowered_connection_limit_is_reported(autojump_clock):
    diary = Diary()
    async with open_fake_network() as network:
        network.add("shop.test", new_host("no pipelining", latency_s=0.02, connections_max=1))
        async with open_test_engine(network, observer=diary) as engine:
            await verify(engine, *(f"a{n}@shop.test" for n in range(80)), deferred_start=True)
    assert diary.said("limit_lowered")


@pytest.mark.parametrize(
    ("host", "refused"),
    [
        (MailHost(banner="554 5.7.1 Your address is on our blocklist"), True),
        (new_host("refused"), False),
    ],
    ids=["refuses us", "cannot be reached"],
)
async def test_a_back_off_is_reported_once(autojump_clock, host, refused):
    diary = Diary()
    async with open_fake_network() as network:
        network.add("shop.test", host)
        async with open_test_engine(network, observer=diary) as engine:
            for number in range(4):
                await verify(engine, f"a{number}@shop.test")
                await trio.sleep(1.1)
            assert diary.said("host_backed_off") == [(refused,)]
            assert engine.probing.overview.statistics().hosts_backing_off == 1
            await trio.sleep(60)
            assert engine.probing.overview.statistics().hosts_backing_off == 0


async def test_a_statistics_counts_what_is_under_way(autojump_clock):
    async with open_fake_network() as network:
        network.add("shop.test", MailHost(faults={"CONNECT": Late(0.5)}))
        async with open_test_engine(network, observer=Diary(), probes_max=20) as engine:
            texts = [f"a{n}@shop.test" for n in range(30)]
            assert engine.probing.overview.statistics() == EngineStatistics(0, 0, 0, 0, 0, 0, 0)
            async with open_answers(engine, texts, account="me") as answers:
                await trio.sleep(0.3)
                statistics = engine.probing.overview.statistics()
                assert statistics.probes == statistics.probes_waiting == 20
                assert statistics.probes_in_flight == 10
                assert 1 <= statistics.connections <= 2
                assert (statistics.hosts, statistics.hosts_backing_off) == (1, 0)
                await in_order(answers, len(texts))
            await trio.sleep(30)
            assert engine.probing.overview.statistics() == EngineStatistics(0, 0, 0, 0, 1, 0, 0)
