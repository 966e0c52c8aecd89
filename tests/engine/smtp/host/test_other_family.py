"""An exchange with IPv4 and IPv6 addresses has failed only when neither connects (RFC 5321 5.1)."""

import socket
from contextlib import suppress
from dataclasses import replace
from random import Random

import pytest
import trio

from mailprobe.bench.world.fake_network import FakeNetwork, open_fake_network
from mailprobe.bench.world.host_description import HostAddress
from mailprobe.bench.world.mail_host import MailHost
from mailprobe.bench.world.zone import ZoneMode
from mailprobe.engine import EngineSettings, open_answers, open_engine
from mailprobe.engine.smtp.host.opening import addresses_in_turn
from mailprobe.engine.stream.answers import Answer
from tests.engine.engine_runs import open_checked_engine

FOUR, SIX = "11.0.0.9", "2a00::9"
REFUSING = MailHost(address=HostAddress.REFUSED)
UNREACHABLE = MailHost(address=HostAddress.UNREACHABLE)


def add_exchange(network: FakeNetwork, *, four: MailHost | None, six: MailHost | None) -> None:
    for address, host in ((FOUR, four), (SIX, six)):
        if host is not None:
            network.add("shop.test", host, mx="mx.test", address=address)


async def answer_of(
    network: FakeNetwork, text: str = "known1@shop.test", *, deferred_start: bool = False
) -> Answer:
    async with (
        open_checked_engine(network) as engine,
        open_answers(
            engine, [text], account="me", explain=True, deferred_start=deferred_start
        ) as answers,
    ):
        [answer] = [answer async for answer in answers]
    return answer


def dialled(network: FakeNetwork) -> list[str]:
    return [address for address, _ in network.dialled]


@pytest.mark.parametrize("deferred_start", [False, True])
@pytest.mark.parametrize("four", [REFUSING, UNREACHABLE])
async def test_ipv6_is_tried_where_ipv4_does_not_connect(autojump_clock, four, deferred_start):
    async with open_fake_network() as network:
        add_exchange(network, four=four, six=MailHost())
        answer = await answer_of(network, deferred_start=deferred_start)
        assert answer.verdict.status == "deliverable"
        assert dialled(network) == [FOUR, SIX]


async def test_ipv4_is_tried_where_ipv6_does_not_connect(autojump_clock):
    """The IPv4 address was not found at first."""
    async with open_fake_network() as network:
        add_exchange(network, four=MailHost(), six=REFUSING)
        network.zone.mode("mx.test", ZoneMode.SERVFAIL, "A", times=6)
        answer = await answer_of(network)
        assert answer.verdict.status == "deliverable"
        assert dialled(network) == [SIX, FOUR]


@pytest.mark.parametrize("six", [REFUSING, UNREACHABLE, None])
async def test_the_refusal_of_ipv4_is_the_cause_where_ipv6_is_no_help(autojump_clock, six):
    """A network of ours without IPv6 is not to blame for a host that is down."""
    async with open_fake_network() as network:
        add_exchange(network, four=REFUSING, six=six)
        answer = await answer_of(network)
        assert (answer.verdict.status, answer.verdict.failed_check) == ("unknown", "smtp")
        assert answer.evidence is not None
        assert answer.evidence.rule is not None
        assert answer.evidence.rule.startswith("connect.failed")
        assert (answer.evidence.reason, answer.evidence.blame) == ("host_down", "host")
        tried = [FOUR] if six is None else [FOUR, SIX]
        assert [each.address for each in answer.evidence.exchanges] == tried


async def test_the_next_exchange_is_tried_after_both_families(autojump_clock):
    async with open_fake_network() as network:
        add_exchange(network, four=REFUSING, six=REFUSING)
        network.add("shop.test", MailHost(), mx="mx2.test", address="11.0.0.10", preference=20)
        answer = await answer_of(network)
        assert answer.verdict.status == "deliverable"
        assert dialled(network) == [FOUR, SIX, "11.0.0.10"]


async def test_the_other_family_is_looked_up_only_where_the_first_fails(autojump_clock):
    async with open_fake_network() as network:
        add_exchange(network, four=MailHost(), six=MailHost())
        await answer_of(network, deferred_start=True)
        assert network.zone.queries["mx.test", "AAAA"] == 0
        assert dialled(network) == [FOUR]


async def test_a_resolver_silent_on_ipv6_does_not_hold_a_refusal_back(autojump_clock):
    async with open_fake_network() as network:
        add_exchange(network, four=REFUSING, six=MailHost())
        network.zone.mode("mx.test", ZoneMode.HANG, "AAAA")
        network.add("shop.test", MailHost(), mx="mx2.test", address="11.0.0.10", preference=20)
        answer = await answer_of(network)
        assert answer.verdict.status == "deliverable"
        assert answer.verdict.latency_ms <= 1500


async def test_cancelled_while_the_other_family_is_looked_up_nothing_is_left(autojump_clock):
    async with open_fake_network() as network:
        add_exchange(network, four=REFUSING, six=MailHost())
        network.zone.mode("mx.test", ZoneMode.HANG, "AAAA")
        async with open_checked_engine(network) as engine:
            with trio.move_on_after(0.2):
                async with open_answers(engine, ["known1@shop.test"], account="me") as answers:
                    [_ async for _ in answers]


def test_families_alternate_and_the_fewest_tried_are_one_of_each():
    four, six = ["11.0.0.1", "11.0.0.2", "11.0.0.3"], ["2a00::1", "2a00::2"]
    assert addresses_in_turn([*four, *six], 5) == [four[0], six[0], four[1], six[1], four[2]]
    assert addresses_in_turn([six[1], *four, six[0]], 1) == [six[1], four[0]]
    assert addresses_in_turn(four[1:], 1) == [four[1]]
    assert addresses_in_turn([four[2], four[0], four[1]], 2) == [four[2], four[0]]


async def test_over_sockets_the_second_address_follows_a_refusal():
    """Where this machine has no ::1, at another one of IPv4."""
    other = "::1" if has_ipv6() else "127.0.0.2"
    async with open_fake_network() as network, trio.open_nursery() as nursery:
        host = MailHost()
        [listener] = await trio.open_tcp_listeners(0, host=other)
        port = listener.socket.getsockname()[1]

        async def serve(stream: trio.SocketStream) -> None:
            with suppress(trio.BrokenResourceError):
                await host.serve(stream, Random(1))

        nursery.start_soon(trio.serve_listeners, serve, [listener])
        network.zone.mx("shop.test", (10, "mx.test"))
        network.zone.host("mx.test", "127.0.0.1", other)
        settings = replace(EngineSettings(), allow_private=True, smtp_port=port)
        async with (
            open_engine(settings, transport=network.transport) as engine,
            open_answers(engine, ["known1@shop.test"], account="me", explain=True) as answers,
        ):
            [answer] = [answer async for answer in answers]
        nursery.cancel_scope.cancel()
    assert answer.evidence is not None
    assert [each.address for each in answer.evidence.exchanges] == ["127.0.0.1", other]
    assert answer.verdict.status == "deliverable"


def has_ipv6() -> bool:
    with socket.socket(socket.AF_INET6) as probe:
        try:
            probe.bind(("::1", 0))
        except OSError:
            return False
    return True
