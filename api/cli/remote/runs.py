"""Parts of every way through a service: how long a run goes on while the service fails or refuses.

A way sends one list through a service. It ends at once for an answer that was not requested,
since a repeat would only cost more, and after a deadline if the service stalls or refuses.
"""

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Protocol

import trio
from msgspec import Struct

from mailprobe.engine.stream.answers import Answer

from ...errors import CommandError, print_error

TEXT_CHARACTERS_MAX = 5_000  # fifty texts, each character escaped, stay below a body's 2 MB
LISTED_CHARACTERS_MAX = 100  # of an address in a message

PASSING = {408, 500, 502, 503, 504}  # the service sends 503, proxies the others
CUSHION_S = 0.25  # after a Retry-After: clocks differ
RETRY_AFTER_S_MAX = 120.0  # no limit of the service needs a longer wait
NOTICE_WAIT_S = 5.0  # a pause this long is reported
PAUSE_S = 0.25  # after a failure, doubling
PAUSE_S_MAX = 15.0
TIMEOUT_S = 120.0  # how long a service may fail during a run
LIMITED_TIMEOUT_S = 900.0  # how long its rate limit may refuse us: others may use the key
FIRST_TIMEOUT_S = 5.0  # before its first response: the URL may be wrong


class ServiceRun(Protocol):
    """One list on its way through a service; `error` is why it stopped."""

    error: CommandError | None

    async def run(self) -> None:
        """Send the texts and pass their answers on, until all are there or `error` is set."""

    async def close(self, *, is_read: bool) -> None:
        """Tidy up at the service. `is_read`: the caller has not left before the last answer."""


@asynccontextmanager
async def running(
    run: ServiceRun, receive: trio.MemoryReceiveChannel[Answer]
) -> AsyncIterator[trio.MemoryReceiveChannel[Answer]]:
    """Run it beside the block; raise its error after every answer was read."""
    is_read = False
    try:
        async with receive, trio.open_nursery() as nursery:
            nursery.start_soon(run.run)
            yield receive
            nursery.cancel_scope.cancel()
        is_read = True
    finally:
        await run.close(is_read=is_read)
    if run.error is not None:
        raise run.error


class ServiceFailures(Struct):
    """The failures of a service since its last success."""

    count: int = 0
    since: float = math.inf
    has_responded: bool = False  # ever

    def clear(self) -> None:
        """Note a success."""
        self.count, self.since, self.has_responded = 0, math.inf, True

    def note_response(self) -> None:
        """Note that the service is there, whether or not it was a success."""
        self.has_responded = True

    def last_too_long(self) -> bool:
        """Note a failure; return whether the run must end."""
        now = trio.current_time()
        self.since = min(self.since, now)
        return now - self.since >= (TIMEOUT_S if self.has_responded else FIRST_TIMEOUT_S)

    def next_pause_s(self) -> float:
        """The pause before the next try: longer each time."""
        self.count += 1
        return min(PAUSE_S_MAX, PAUSE_S * 2.0 ** (self.count - 1))


class LimitNotice:
    """Reports the first long pause for the rate limit, so that it does not look like a hang."""

    def __init__(self) -> None:
        self._is_printed = False

    def print_once(self, wait_s: float) -> None:
        if not self._is_printed and NOTICE_WAIT_S <= wait_s < math.inf:
            self._is_printed = True
            print_error(
                f"the account's rate limit is reached; continuing in {math.ceil(wait_s)} s, "
                "and after each such pause"
            )
