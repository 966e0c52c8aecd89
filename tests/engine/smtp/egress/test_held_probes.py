"""Addresses that no egress has addresses of the day for wait until there are more, or none."""

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from mailprobe.engine import Engine, open_answers
from mailprobe.engine.egress import Egress, Egresses
from mailprobe.engine.smtp.egress.held_probes import HeldProbes
from mailprobe.engine.smtp.egress.relief import EgressRelief
from mailprobe.engine.smtp.turn import Turn
from tests.engine.fault_places import failing
from tests.engine.smtp.egress.worlds import (
    A,
    B,
    Control,
    World,
    answers_of,
    open_engine_of,
    open_world,
    reasons,
)

BOTH = pytest.mark.parametrize("deferred_start", [False, True], ids=["requests", "list"])
NEVER_GOOGLE = Egress("b", never=frozenset({"google"}))


class Blocks(Control):
    """Grants what this process has set aside; a test adds more."""

    def __init__(self, egresses: Egresses) -> None:
        super().__init__(egresses)
        self.left = Counter(dict.fromkeys(("a", "b"), 0))
        self.is_used_up = False

    def reserve(self, egress: str, count: int) -> int:
        granted = min(count, self.left[egress])
        self.left[egress] -= granted
        return granted

    def awaits_more(self, egress: str) -> bool:
        return not self.is_used_up

    async def refill(self, times: int, every_s: float, count: int, egress: str = "a") -> None:
        for _ in range(times):
            await trio.sleep(every_s)
            self.left[egress] += count


@asynccontextmanager
async def open_blocks(
    world: World, *rows: Egress, **more: Any
) -> AsyncIterator[tuple[Engine, Blocks]]:
    async with open_engine_of(world, *rows, control=Blocks, **more) as engine:
        assert isinstance(world.control, Blocks)
        yield engine, world.control


def mailboxes(domains: list[str], each: int = 5) -> list[str]:
    return [f"known{number}@{domain}" for domain in domains for number in range(each)]


@BOTH
async def test_addresses_wait_for_the_next_block_of_the_day(autojump_clock, deferred_start):
    async with open_world() as world:
        texts = mailboxes(world.add(10))
        async with open_blocks(world, A) as (engine, control):
            control.left["a"] = 7
            async with trio.open_nursery() as nursery:
                nursery.start_soon(control.refill, 5, 0.3, 10)
                found = await answers_of(engine, texts, deferred_start=deferred_start)
            assert reasons(found) == {"accepted": 50}
            assert control.left["a"] == 7


async def test_a_request_waits_no_longer_than_its_deadline_and_a_list_does(autojump_clock):
    async with open_world() as world:
        texts = mailboxes(world.add(4))
        async with open_blocks(world, A) as (engine, control):
            found = await answers_of(engine, texts)
            assert {answer.cause for answer in found} == {("no_egress", "us")}
            assert world.dialled["a"] == 0
            async with trio.open_nursery() as nursery:
                nursery.start_soon(control.refill, 1, 600, 100)
                found = await answers_of(engine, texts, deferred_start=True)
            assert reasons(found) == {"accepted": 20}


@BOTH
async def test_addresses_do_not_wait_for_a_day_that_is_used_up(autojump_clock, deferred_start):
    async with open_world() as world:
        texts = mailboxes(world.add(4))
        async with open_blocks(world, A) as (engine, control):
            control.left["a"], control.is_used_up = 12, True
            began = trio.current_time()
            found = await answers_of(engine, texts, deferred_start=deferred_start)
            assert reasons(found) == {"accepted": 12, "no_egress": 8}
            assert trio.current_time() - began < 2


@BOTH
@pytest.mark.parametrize("is_used_up", [False, True], ids=["paused", "used up"])
async def test_waiting_ends_with_its_egress(autojump_clock, deferred_start, is_used_up):
    async with open_world() as world:
        texts = mailboxes(world.add(4))
        async with open_blocks(world, A) as (engine, control):
            async with trio.open_nursery() as nursery:

                async def stop() -> None:
                    await trio.sleep(1)
                    control.is_used_up = is_used_up
                    control.pause(*([] if is_used_up else ["a"]))

                nursery.start_soon(stop)
                began = trio.current_time()
                found = await answers_of(engine, texts, deferred_start=deferred_start)
            assert trio.current_time() - began < 2
            assert reasons(found) == {"no_egress": 20}


@BOTH
async def test_an_egress_with_addresses_does_not_wait_for_one_without(
    autojump_clock, deferred_start
):
    """And what only the awaited one may ask does not stop what others may."""
    async with open_world() as world:
        google = world.add(40, mx="{}.aspmx.l.google.com")
        texts = mailboxes(google + world.add(40), each=2)
        async with open_blocks(world, A, NEVER_GOOGLE) as (engine, control):
            control.left["b"] = 1000
            async with trio.open_nursery() as nursery:
                nursery.start_soon(control.refill, 1, 1, 1000)
                found = await answers_of(engine, texts, deferred_start=deferred_start)
            assert reasons(found) == {"accepted": 160}
            assert control.left["b"] == 1000 - 80


@BOTH
async def test_an_address_that_one_egress_is_refused_waits_for_the_other(
    autojump_clock, deferred_start
):
    async with open_world() as world:
        texts = mailboxes(world.add(6, refuses="a"), each=1)
        async with open_blocks(world, A, B) as (engine, control):
            control.left["a"] = 1000
            async with trio.open_nursery() as nursery:
                nursery.start_soon(control.refill, 1, 1.5, 1000, "b")
                found = await answers_of(engine, texts, deferred_start=deferred_start)
            assert reasons(found) == {"accepted": 6}


@BOTH
@pytest.mark.parametrize(
    "place", [(Blocks, "reserve"), (Turn, "go_on")], ids=["chosen", "begun anew"]
)
async def test_an_address_that_waits_is_kept_if_a_bug_meets_it(
    autojump_clock, faults, deferred_start, place
):
    async with open_world() as world:
        [text] = mailboxes(world.add(1), each=1)
        async with open_blocks(world, A) as (engine, control), trio.open_nursery() as nursery:
            nursery.start_soon(control.refill, 2, 1, 1)
            with (
                failing(*place, when=lambda: control.left["a"] > 0 or place[0] is Turn),
                trio.fail_after(10),
            ):
                found = await answers_of(engine, [text], deferred_start=deferred_start)
            assert reasons(found) == {"accepted": 1}
            assert len(faults) == 1


async def test_an_address_that_a_bug_keeps_from_its_egress_is_answered_at_its_deadline(
    autojump_clock, faults
):
    async with open_world() as world:
        texts = mailboxes(world.add(1), each=2)
        async with open_blocks(world, A) as (engine, control):
            control.left["a"] = 1  # the other one follows when the host has room
            with failing(EgressRelief, "is_awaited"), trio.fail_after(10):
                found = await answers_of(engine, texts, deferred_start=True)
            assert reasons(found) == {"timeout": 2}
            assert len(faults) == 1


@BOTH
async def test_an_address_that_a_bug_keeps_from_the_next_egress_is_answered_at_its_deadline(
    autojump_clock, faults, deferred_start
):
    async with open_world() as world:
        texts = mailboxes(world.add(1, refuses="a"), each=1)
        async with open_blocks(world, A, B) as (engine, control):
            control.left["a"] = 1
            with failing(HeldProbes, "hold"), trio.fail_after(10):
                found = await answers_of(engine, texts, deferred_start=deferred_start)
            assert reasons(found) == {"timeout": 1}
            assert len(faults) == 1


@BOTH
@pytest.mark.parametrize("after_s", [0.0, 0.05, 0.5, 1.0, 1.05])
async def test_a_caller_may_leave_while_its_addresses_wait(autojump_clock, deferred_start, after_s):
    async with open_world() as world:
        texts = mailboxes(world.add(10))
        async with open_blocks(world, A) as (engine, control):
            control.left["a"] = 3
            with trio.move_on_after(after_s):
                async with open_answers(
                    engine, texts, account="me", deferred_start=deferred_start
                ) as answers:
                    async for _ in answers:
                        pass
            control.left["a"] = 3


@pytest.mark.parametrize(
    ("hosts", "probes_max"), [(1, 2000), (300, 20)], ids=["few connections", "few places"]
)
async def test_a_block_goes_to_as_many_addresses_as_there_is_room_for(
    autojump_clock, hosts, probes_max
):
    """Else the clocks of a list's addresses would run while they wait for a connection or a place."""
    async with open_world() as world:
        domains = world.add(hosts, latency_s=0.5, ehlo_lines=("mx.test",))
        texts = mailboxes(domains, each=300 // hosts)
        async with open_blocks(world, A, probes_max=probes_max) as (engine, control):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(control.refill, 2, 60, 200)
                found = await answers_of(engine, texts, deferred_start=True)
            assert reasons(found) == {"accepted": 300}


async def test_addresses_held_in_vain_are_not_tried_again_for_each_new_one(autojump_clock):
    """A list's thousands beside an egress that is usable, but may not ask these hosts."""
    async with open_world() as world:
        google = world.add(30, mx="{}.aspmx.l.google.com")
        async with open_blocks(world, A, NEVER_GOOGLE) as (engine, control):
            control.left["b"] = 1000
            asked = 0
            awaits_more = control.awaits_more

            def counted(egress: str) -> bool:
                nonlocal asked
                asked += 1
                return awaits_more(egress)

            control.awaits_more = counted  # type: ignore[method-assign]
            with trio.move_on_after(0.05):
                await answers_of(engine, mailboxes(google, each=20))
            assert asked < 10 * 600


async def test_addresses_whose_caller_has_gone_are_not_held_behind_those_that_wait(autojump_clock):
    """The database may be gone for hours, and lists come and go meanwhile."""
    async with open_world() as world:
        texts = mailboxes(world.add(100))
        async with open_blocks(world, A) as (engine, _):
            relief = engine.probing.relief
            assert relief is not None
            async with trio.open_nursery() as nursery:

                async def wait() -> None:
                    await answers_of(engine, texts, deferred_start=True)

                nursery.start_soon(wait)
                for _ in range(5):
                    with trio.move_on_after(0.5):
                        await answers_of(engine, texts, deferred_start=True)
                await trio.sleep(1.2)
                assert 0 < len(relief.held) <= len(texts)
                nursery.cancel_scope.cancel()
