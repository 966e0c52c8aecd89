"""The reading end of a stream of answers."""

from collections import deque
from collections.abc import Callable

import msgspec
import trio

from ..evidence import Evidence
from ..reasons import VerdictCause, cause_by_result
from ..verdict import PASSING, Verdict


class Answer(msgspec.Struct, frozen=True, gc=False):
    """The verdict on one address, with the position that the address had in the input (from 0)."""

    position: int
    verdict: Verdict
    evidence: Evidence | None = None
    known_cause: VerdictCause | None = None
    retry_s: float | None = None  # after so many seconds its mail host may be asked again
    takes: int = 0  # refusals that the host takes in ten minutes, where that is why

    @property
    def cause(self) -> VerdictCause:
        """The cause, as far as the result's own fields show it."""
        return self.known_cause or cause_by_result(self.verdict)

    @property
    def is_passing(self) -> bool:
        """Whether time may give a better answer."""
        return self.retry_s is not None or self.cause.reason in PASSING


class Answers:
    """An async iterator over answers in completion order, for one reader.

    `on_consumed` is called each time that the reader has taken answers.
    """

    def __init__(self, on_consumed: Callable[[], None]) -> None:
        self.ready: deque[Answer] = deque()  # not read yet
        self.count = 0  # of all until now
        self._ended = False
        # A reader may be parked. This flag is faster to check than the parking lot.
        self._awaited = False
        self._arrived = trio.lowlevel.ParkingLot()
        self._on_consumed = on_consumed

    def __aiter__(self) -> "Answers":
        return self

    async def __anext__(self) -> Answer:
        await self._wait()
        if not self.ready:
            raise StopAsyncIteration
        answer = self.ready.popleft()
        self._on_consumed()
        return answer

    async def next_ready(self) -> list[Answer]:
        """Return all answers that are ready, at least one; an empty list at the end."""
        await self._wait()
        ready = list(self.ready)
        self.ready.clear()
        self._on_consumed()
        return ready

    async def _wait(self) -> None:
        await trio.lowlevel.checkpoint_if_cancelled()
        while not self.ready and not self._ended:
            self._awaited = True
            await self._arrived.park()

    def put(self, answer: Answer) -> None:
        self.ready.append(answer)
        self.count += 1
        if self._awaited:
            self._awaited = False
            self._arrived.unpark()

    def end(self) -> None:
        """No more answers follow. Those that are ready can still be read."""
        self._ended = True
        self._arrived.unpark_all()


async def in_order(answers: Answers, count: int) -> list[Verdict]:
    """Read the stream to its end; return the verdicts in the order of the `count` addresses."""
    verdicts: list[Verdict | None] = [None] * count
    async for answer in answers:
        verdicts[answer.position] = answer.verdict
    return [verdict for verdict in verdicts if verdict is not None]
