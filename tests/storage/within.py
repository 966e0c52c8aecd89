"""A bound of time that holds on a busy machine too."""

from collections.abc import Awaitable, Callable

import trio

TURNS = 1_000  # of the event loop: what was due at the end is done in them


async def assert_within(seconds: float, act: Callable[[], Awaitable[object]]) -> None:
    """Run `act`, and fail if it still runs when the event loop has waited for `seconds`.

    By the order of the loop's events, not by the clock: a machine that stands still delays both.
    """
    ended = trio.Event()

    async def watch() -> None:
        with trio.move_on_after(seconds):
            await ended.wait()
        for _ in range(TURNS):
            if ended.is_set():
                return
            await trio.lowlevel.checkpoint()
        raise AssertionError(f"it still runs after {seconds} s")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch)
        await act()
        ended.set()
