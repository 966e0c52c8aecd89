"""Every step of the probing core ends with its turn: nothing stays marked while tasks wait."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest
import trio

from mailprobe.engine import Engine
from tests.simulation.differential import worlds


class StepWatch(trio.abc.Instrument):
    """The tasks that went on to wait while something was marked."""

    def __init__(self, engine: Engine) -> None:
        self._turn = engine.probing.turn
        self.left_marked: set[str] = set()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        if self._turn.is_due:
            self.left_marked.add(task.name)


@contextmanager
def watched_steps() -> Iterator[list[StepWatch]]:
    """A watch for each engine that a world opens meanwhile."""
    watches: list[StepWatch] = []

    def watching(open_it: Any) -> Any:
        @asynccontextmanager
        async def open_watched(*args: Any, **options: Any) -> AsyncIterator[Engine]:
            async with open_it(*args, **options) as engine:
                watches.append(StepWatch(engine))
                trio.lowlevel.add_instrument(watches[-1])
                yield engine

        return open_watched

    with pytest.MonkeyPatch.context() as patch:
        for name in ("open_test_engine", "open_changing_engine"):
            patch.setattr(worlds, name, watching(getattr(worlds, name)))
        yield watches
