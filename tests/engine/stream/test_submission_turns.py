"""Streams submit in turn, accounts in turn: one step in a turn of the event loop."""

from dataclasses import dataclass

import pytest
import trio
import trio.testing

from mailprobe.bench.world.fake_network import open_fake_network
from mailprobe.engine.stream.scheduler import SUBMIT_AT_ONCE_MAX
from mailprobe.engine.stream.submission_turns import (
    ACTIVE_S,
    BUSY_MAX,
    PAUSE_S_MAX,
    SubmissionTurns,
)
from tests.engine.engine_runs import open_test_engine
from tests.engine.stream.streams import collect


async def submit(turns: SubmissionTurns, account: str, log: list[str], steps: int = 1) -> None:
    """Submit so many steps, as a stream does."""
    with turns.of(account) as turn:
        for _ in range(steps):
            await turn.begin()
            log.append(account)
            await trio.lowlevel.checkpoint()
            turn.end()


async def count_turns_of_the_loop(log: list[str]) -> None:
    while True:
        log.append("|")
        await trio.lowlevel.checkpoint()


async def test_one_step_in_a_turn_of_the_loop():
    turns = SubmissionTurns(lambda: 0.0)
    log: list[str] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(count_turns_of_the_loop, log)
        async with trio.open_nursery() as streams:
            for _ in range(20):
                streams.start_soon(submit, turns, "busy", log)
        nursery.cancel_scope.cancel()
    steps = "".join(log).split("|")
    assert sum(step.count("busy") for step in steps) == 20
    assert max(step.count("busy") for step in steps) == 1


async def test_accounts_take_turns():
    turns = SubmissionTurns(lambda: 0.0)
    log: list[str] = []
    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(submit, turns, "busy", log)
        await trio.testing.wait_all_tasks_blocked()
    log.clear()
    async with trio.open_nursery() as nursery:
        with turns.of("holder") as turn:
            await turn.begin()
            for _ in range(20):
                nursery.start_soon(submit, turns, "busy", log)
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(submit, turns, "neighbour", log)
            await trio.testing.wait_all_tasks_blocked()
    assert log.index("neighbour") <= 1


async def test_a_stream_that_is_alone_waits_for_nobody():
    turns = SubmissionTurns(lambda: 0.0)
    with turns.of("alone") as turn, trio.testing.assert_no_checkpoints():
        for _ in range(3):
            await turn.begin()
            turn.end()


async def cancellable(scope: trio.CancelScope, turns: SubmissionTurns, log: list[str]) -> None:
    with scope:
        await submit(turns, "cancelled", log, 1_000_000)


@pytest.mark.parametrize("moment", ["waiting", "woken", "submitting"])
async def test_a_cancelled_stream_passes_its_turn_on(moment):
    turns, scope = SubmissionTurns(lambda: 0.0), trio.CancelScope()
    log: list[str] = []
    async with trio.open_nursery() as nursery:
        holder = turns.of("holder")
        await holder.begin()
        nursery.start_soon(cancellable, scope, turns, log)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(submit, turns, "next", log)
        await trio.testing.wait_all_tasks_blocked()
        if moment == "waiting":
            scope.cancel()
            await trio.testing.wait_all_tasks_blocked()
            holder.end()
        elif moment == "woken":
            holder.end()
            scope.cancel()
        else:
            holder.end()
            while "cancelled" not in log:
                await trio.lowlevel.checkpoint()
            scope.cancel()
    assert log.count("next") == 1
    with turns.of("later") as turn, trio.testing.assert_no_checkpoints():
        await turn.begin()  # the turn is free again


async def test_few_texts_do_not_wait_for_a_turn(autojump_clock):
    """A single request is answered while another stream has the turn."""
    async with open_fake_network() as network, open_test_engine(network) as engine:
        with engine.submission_turns.of("busy") as turn:
            await turn.begin()
            answers = await collect(engine, *["no address"] * SUBMIT_AT_ONCE_MAX, account="me")
            assert len(answers) == SUBMIT_AT_ONCE_MAX
            with trio.move_on_after(1) as waiting:
                await collect(engine, *["no address"] * (SUBMIT_AT_ONCE_MAX + 1), account="me")
            assert waiting.cancelled_caught
        assert len(await collect(engine, *["no address"] * 100, account="me")) == 100


# an account beside others


@dataclass
class Processor:
    """This thread's processor time, as a test has it."""

    computed_s: float = 0.0

    def __call__(self) -> float:
        return self.computed_s


@dataclass
class Computed:
    """A step that takes this thread's processor for so long."""

    processor: Processor
    took_s: float


async def step(turns: SubmissionTurns, account: str, computed: Computed | None = None) -> float:
    """Submit a step; return when it began."""
    with turns.of(account) as turn:
        await turn.begin()
        began = trio.current_time()
        if computed is not None:
            computed.processor.computed_s += computed.took_s
            await trio.sleep(computed.took_s)
    return began


async def test_steps_beside_another_account_leave_it_time(autojump_clock):
    turns = SubmissionTurns(processor := Processor())
    computed = Computed(processor, 0.014)
    turns.note_active("neighbour")
    first = await step(turns, "busy", computed)
    second = await step(turns, "busy", computed)
    assert second - first == pytest.approx(0.014 / BUSY_MAX)


async def test_steps_of_an_account_that_is_alone_follow_at_once(autojump_clock):
    turns = SubmissionTurns(processor := Processor())
    computed = Computed(processor, 0.014)
    first = await step(turns, "busy", computed)
    assert await step(turns, "busy", computed) - first == pytest.approx(0.014)
    turns.note_active("neighbour")
    await trio.sleep(2 * ACTIVE_S)
    first = await step(turns, "busy", computed)
    assert await step(turns, "busy") - first == pytest.approx(0.014)


async def test_a_pause_ends_however_busy_this_thread_is(autojump_clock):
    turns = SubmissionTurns(processor := Processor())
    turns.note_active("neighbour")
    first = await step(turns, "busy")
    processor.computed_s += 100
    assert await step(turns, "busy") - first == pytest.approx(PAUSE_S_MAX)


async def test_a_stream_that_is_cancelled_in_its_pause_passes_its_turn_on(autojump_clock):
    turns = SubmissionTurns(processor := Processor())
    turns.note_active("neighbour")
    began = await step(turns, "busy")
    processor.computed_s += 100
    with trio.move_on_after(PAUSE_S_MAX / 2):
        await step(turns, "busy")
    assert await step(turns, "neighbour") - began == pytest.approx(PAUSE_S_MAX)
