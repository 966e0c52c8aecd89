"""Runs a command: the trio loop, signals and exit codes.

Ctrl-C and SIGTERM do the same: stop, keep what was written, exit 130. While trio
runs they cancel the main task, so that cleanup runs; outside of trio they raise
KeyboardInterrupt.
"""

import contextlib
import os
import signal
from collections.abc import Awaitable, Callable, Iterator
from typing import NoReturn, TypeVar

from ..errors import CommandError, Interrupted, telling_open_files
from ..interrupts import end_at_once

T = TypeVar("T")


def run(main: Callable[[], Awaitable[T]]) -> T:
    """Run `main` on trio and return its result. A signal raises KeyboardInterrupt.

    A second signal ends the process at once. The only exception of a group is raised
    without the group, so that callers can catch it by class.
    """
    import trio  # not needed by --help

    async def until_signal() -> T:
        with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            async with trio.open_nursery() as nursery:
                main_scope = trio.CancelScope()

                async def watch() -> None:
                    async for _ in signals:
                        if main_scope.cancel_called:
                            os._exit(Interrupted.exit_code)
                        main_scope.cancel()

                nursery.start_soon(watch)
                with main_scope:
                    result = await main()
                nursery.cancel_scope.cancel()
        if main_scope.cancel_called:
            raise KeyboardInterrupt
        return result

    try:
        with telling_open_files():
            return trio.run(until_signal)
    except BaseExceptionGroup as group:
        raise_foremost(group)


def raise_foremost(group: BaseExceptionGroup[BaseException]) -> NoReturn:
    """Raise the one exception that matters; the whole group if it may contain a bug."""
    leaves = list(_exits(group))
    if any(isinstance(leaf, KeyboardInterrupt) for leaf in leaves):
        raise KeyboardInterrupt from group
    expected = [leaf for leaf in leaves if isinstance(leaf, CommandError | BrokenPipeError)]
    if len(leaves) == 1 or len(expected) == len(leaves):
        raise leaves[0]
    raise group


def _exits(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for inner in group.exceptions:
        if isinstance(inner, BaseExceptionGroup):
            yield from _exits(inner)
        else:
            yield inner


@contextlib.contextmanager
def sigterm_as_sigint() -> Iterator[None]:
    """In the block, SIGTERM does the same as Ctrl-C."""
    before = signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def ending_at_once() -> Iterator[None]:
    """In the block, Ctrl-C and SIGTERM end the process at once: nothing needs cleanup yet.

    As an exception they could be lost in an import: see mailprobe.api.interrupts.
    """
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, end_at_once) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
