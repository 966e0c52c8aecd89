"""The checks of a page are run when somebody looks, together, and seldom."""

from datetime import UTC, datetime

import trio
import trio.testing

from mailprobe.api.doctor.checks import CLOCK, Check
from mailprobe.api.doctor.latest import AGAIN_S, KEPT_S, Checked, MachineChecks

Clock = trio.testing.MockClock
AT = datetime(2026, 3, 14, tzinfo=UTC)


class Machine:
    """Counts how often it is examined; each time takes 5 s."""

    def __init__(self) -> None:
        self.examined = 0
        self.checks = MachineChecks(self.examine)

    async def examine(self) -> list[Check]:
        self.examined += 1
        await trio.sleep(5)
        return [CLOCK.ok("right"), CLOCK.failed("wrong", "an hour ahead")]

    async def look(self, anew: bool = False) -> Checked:
        return await self.checks.latest(lambda: AT, anew=anew)


async def test_many_who_look_share_the_checks_of_an_hour(autojump_clock: Clock) -> None:
    machine = Machine()
    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(machine.look)
    checked = await machine.look()
    assert (machine.examined, checked.failed, checked.at) == (1, 1, AT)
    await trio.sleep(KEPT_S)
    await machine.look()
    assert machine.examined == 2


async def test_checks_run_again_on_request_but_not_at_each_click(
    autojump_clock: Clock,
) -> None:
    machine = Machine()
    await machine.look()
    for _ in range(5):
        await machine.look(anew=True)
    assert machine.examined == 1
    await trio.sleep(AGAIN_S)
    await machine.look(anew=True)
    assert machine.examined == 2


async def test_a_look_that_is_given_up_leaves_the_next_one_to_run_the_checks(
    autojump_clock: Clock,
) -> None:
    machine = Machine()
    with trio.move_on_after(1):
        await machine.look()
    assert (await machine.look()).failed == 1
    assert machine.examined == 2
