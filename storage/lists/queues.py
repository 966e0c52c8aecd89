"""What waits in each queue of the store, for metrics."""

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from mailprobe.storage.commands import StoreCommand
from mailprobe.storage.store_part import StorePart

QueueName = Literal["lists", "jobs", "callbacks", "alert", "meter"]  # of lists, their chunks
COUNTED_MAX = 10_000  # rows that are read of a queue: some 10 ms; more are not counted


@dataclass(frozen=True, slots=True)
class QueueState:
    """What is due in a queue and not claimed; `oldest_s` is how long, of the first."""

    name: QueueName
    due: int
    oldest_s: float = 0.0
    last_sent_at: datetime | None = None  # of messages: the last that was sent


@dataclass(frozen=True, slots=True)
class ReadQueues(StoreCommand[list[QueueState]]):
    pass


class QueueStore(StorePart):
    """The part of the store that knows what waits."""

    async def queues(self) -> list[QueueState]:
        """Return the state of every queue, at most COUNTED_MAX rows of each."""
        return await self._execute(ReadQueues())
