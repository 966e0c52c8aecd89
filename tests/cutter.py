"""Cancels at any step: what is cut off must leave everything whole."""

import trio


class Cutter(trio.abc.Instrument):
    """Cancels a scope after so many steps of whatever tasks."""

    def __init__(self, steps: int, scope: trio.CancelScope) -> None:
        self.left = steps
        self._scope = scope

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        self.left -= 1
        if self.left == 0:
            self._scope.cancel()
