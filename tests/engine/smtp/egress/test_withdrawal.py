"""What waits at a paused egress goes elsewhere; trials tell a dead egress from a dead host."""

import pytest
import trio

from mailprobe.bench.world.fake_network import Cable, open_cable
from mailprobe.bench.world.mail_host import HostAddress, MailHost
from mailprobe.engine import Engine
from mailprobe.engine.egress import Egress
from mailprobe.engine.net.tcp import EgressFailed
from mailprobe.engine.smtp.egress.trials import EgressTrials
from tests.engine.fault_places import failing
from tests.engine.smtp.egress.worlds import (
    A,
    B,
    answers_of,
    open_engine_of,
    open_world,
    reasons,
)

BOTH = pytest.mark.parametrize("deferred_start", [False, True], ids=["requests", "list"])
FAVOURED = Egress("a", weight=1e9)


def present_at(engine: Engine, egress: str) -> int:
    """Probes that wait or are under way at the hosts of an egress."""
    [hosts] = [hosts for hosts in engine.probing.egresses if hosts.name == egress]
    probed_hosts = hosts.hosts.values()
    return sum(probed.load.present for probed in probed_hosts)


@BOTH
async def test_addresses_that_wait_at_a_paused_egress_leave_by_another(
    autojump_clock, deferred_start
):
    """Slow hosts of one connection: most addresses wait when the egress is paused."""
    async with open_world() as world:
        domains = world.add(3, latency_s=0.15)
        texts = [f"known{n}@{domain}" for domain in domains for n in range(60)]
        async with open_engine_of(world, FAVOURED, B, host_connections=1) as engine:
            asked: list[int] = []
            async with trio.open_nursery() as nursery:

                async def pause() -> None:
                    assert world.control is not None
                    await trio.sleep(0.4)
                    world.control.pause("a")
                    await trio.sleep(0.4)  # for the batches under way
                    asked.append(world.dialled["a"])
                    asked.append(present_at(engine, "a"))

                nursery.start_soon(pause)
                found = await answers_of(engine, texts, deferred_start=deferred_start)
            assert asked == [world.dialled["a"], 0]
            if deferred_start:
                assert reasons(found) == {"accepted": 180}
            assert world.dialled["b"] > 0


async def test_addresses_at_the_only_egress_are_unknown_once_it_is_paused(autojump_clock):
    async with open_world() as world:
        [domain] = world.add(1, latency_s=0.15)
        texts = [f"known{n}@{domain}" for n in range(60)]
        async with open_engine_of(world, A) as engine:
            async with trio.open_nursery() as nursery:

                async def pause() -> None:
                    assert world.control is not None
                    await trio.sleep(1.0)
                    world.control.pause("a")

                nursery.start_soon(pause)
                began = trio.current_time()
                found = await answers_of(engine, texts, deferred_start=True)
            assert trio.current_time() - began < 3
            assert set(reasons(found)) == {"accepted", "no_egress"}


async def test_an_address_whose_host_failed_before_its_egress_was_paused_has_the_hosts_failure(
    autojump_clock,
):
    async with open_world() as world:
        [domain] = world.add(1, address=HostAddress.REFUSED)
        world.network.add(domain, MailHost(connect_s=0.9), mx=f"mx2.{domain}", preference=20)
        async with open_engine_of(world, A) as engine, trio.open_nursery() as nursery:

            async def pause() -> None:
                assert world.control is not None
                await trio.sleep(0.5)
                world.control.pause("a")

            nursery.start_soon(pause)
            [answer] = await answers_of(engine, [f"known@{domain}"])
            assert answer.cause == ("host_down", "host")


@BOTH
@pytest.mark.parametrize("is_closed", [False, True], ids=["silent", "closed"])
async def test_a_proxy_that_accepts_every_connection_and_leads_nowhere_rests(
    autojump_clock, deferred_start, is_closed
):
    ends: list[Cable] = []

    async def open_dead_end(_: str) -> Cable:
        client, server = open_cable()
        ends.append(server)
        if is_closed:
            await server.aclose()
        return client

    async with open_world() as world:
        domains = world.add(100)
        world.dials["a"] = open_dead_end
        async with open_engine_of(world, A, B) as engine:
            first = [f"known1@{domain}" for domain in domains[:40]]
            await answers_of(engine, first, deferred_start=deferred_start)
            texts = [f"known2@{domain}" for domain in domains]
            found = await answers_of(engine, texts, deferred_start=deferred_start)
            assert reasons(found) == {"accepted": 100}
            await trio.sleep(30)  # until what was left is closed


@BOTH
async def test_a_dead_host_does_not_prolong_the_rest_of_a_failed_egress(
    autojump_clock, deferred_start
):
    async def fail(_: str) -> None:
        raise EgressFailed("no proxy could be used: connection refused")

    async with open_world() as world:
        alive, dead = world.add(40), world.add(2, address=HostAddress.REFUSED)
        world.dials["a"] = fail
        async with open_engine_of(world, FAVOURED, B) as engine:
            await answers_of(engine, [f"known@{alive[0]}"], deferred_start=deferred_start)
            del world.dials["a"]
            await trio.sleep(6)
            for domain in dead:  # each is a trial, and neither egress reaches it
                await answers_of(engine, [f"known@{domain}"], deferred_start=deferred_start)
                await trio.sleep(1)
            failed = world.dialled["a"]
            await answers_of(engine, [f"known@{alive[1]}"], deferred_start=deferred_start)
            await answers_of(engine, [f"known@{alive[2]}"], deferred_start=deferred_start)
            assert world.dialled["a"] == failed + 2


async def test_a_trial_whose_host_another_egress_reaches_has_failed(autojump_clock):
    async def hang(_: str) -> None:
        await trio.sleep_forever()

    async def fail(_: str) -> None:
        raise EgressFailed("no proxy could be used: connection refused")

    async with open_world() as world:
        domains = world.add(10)
        world.dials["a"] = fail
        async with open_engine_of(world, FAVOURED, B) as engine:
            await answers_of(engine, [f"known@{domains[0]}"])
            world.dials["a"] = hang
            await trio.sleep(6)
            failed = world.dialled["a"]
            found = await answers_of(engine, [f"known@{domains[1]}"])
            assert world.dialled["a"] == failed + 1
            await trio.sleep(6)  # it rests for ten seconds by now
            found += await answers_of(engine, [f"known@{domain}" for domain in domains[2:6]])
            assert world.dialled["a"] == failed + 1
            await trio.sleep(6)
            found += await answers_of(engine, [f"known@{domain}" for domain in domains[6:]])
            assert world.dialled["a"] == failed + 2
            assert reasons(found) == {"accepted": 9}


async def test_a_bug_after_a_trial_was_passed_on_leaves_the_address_one_answer(
    autojump_clock, faults
):
    async def fail(_: str) -> None:
        raise EgressFailed("no proxy could be used: connection refused")

    async def refuse(_: str) -> None:
        raise OSError("connection refused")

    async with open_world() as world:
        domains = world.add(2)
        world.dials["a"] = fail
        async with open_engine_of(world, FAVOURED, B) as engine:
            await answers_of(engine, [f"known@{domains[0]}"])
            world.dials["a"] = refuse
            await trio.sleep(6)
            with failing(EgressTrials, "unreached"):
                found = await answers_of(engine, [f"known@{domains[1]}"])
            assert reasons(found) == {"accepted": 1}
            assert len(faults) == 1


async def test_a_trial_of_a_quarantined_egress_that_meets_a_dead_host_goes_on_at_another(
    autojump_clock,
):
    async with open_world() as world:
        alive, dead = world.add(4), world.add(2, address=HostAddress.REFUSED)
        async with open_engine_of(world, FAVOURED, B) as engine:
            assert world.control is not None
            world.control.quarantine("a", "refused")
            await trio.sleep(901)
            for domain in [*dead, alive[0]]:
                await answers_of(engine, [f"known@{domain}"])
                await trio.sleep(1)
            assert world.control.released == ["a"]
