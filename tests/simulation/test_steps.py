"""Every step of the probing core ends with its turn: nothing stays marked while tasks wait."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from mailprobe.engine import Engine
from tests.simulation.differential import worlds
from tests.simulation.differential.worlds import BUILDERS, run_world


class StepWatch(trio.abc.Instrument):
    """The tasks that went on to wait while something was marked."""

    def __init__(self, engine: Engine) -> None:
        self._turn = engine.probing.turn
        self.left_marked: set[str] = set()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        if self._turn.is_due:
            self.left_marked.add(task.name)


@pytest.mark.parametrize("kind", BUILDERS)
def test_no_task_waits_before_the_turn_of_its_step_is_run(kind, monkeypatch):
    watches: list[StepWatch] = []

    def watching(name: str) -> None:
        open_it = getattr(worlds, name)

        @asynccontextmanager
        async def open_watched(*args: Any, **options: Any) -> AsyncIterator[Engine]:
            async with open_it(*args, **options) as engine:
                watches.append(StepWatch(engine))
                trio.lowlevel.add_instrument(watches[-1])
                yield engine

        monkeypatch.setattr(worlds, name, open_watched)

    watching("open_test_engine")
    watching("open_changing_engine")
    run_world(kind, 200)
    assert [each.left_marked for each in watches] == [set()]
