"""Counts what a piece of work does, where times would depend on the machine."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import trio

from mailprobe import engine


class Counts(trio.abc.Instrument):
    """Calls of the engine's functions in this thread, and returns from waiting for the kernel.

    How often they call trio and the standard library depends on how many replies came at once.
    """

    def __init__(self) -> None:
        self._folder = str(Path(engine.__file__).parent)
        self.calls = 0
        self.wakeups = 0

    def after_io_wait(self, timeout: float) -> None:
        self.wakeups += 1

    def _profile(self, frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(self._folder):
            self.calls += 1


@contextmanager
def counting() -> Iterator[Counts]:
    """Count as long as the block lasts, in a trio task. It costs time, so measure none beside it."""
    counts = Counts()
    trio.lowlevel.add_instrument(counts)
    sys.setprofile(counts._profile)
    try:
        yield counts
    finally:
        sys.setprofile(None)
        trio.lowlevel.remove_instrument(counts)
