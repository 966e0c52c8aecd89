"""How mail hosts treat this service: their answers, and the refusals that blame us, by UTC day."""

from dataclasses import dataclass
from datetime import date, timedelta

from mailprobe.storage.commands import StoreCommand
from mailprobe.storage.lists.queues import QueueStore

KEPT_MAX = timedelta(days=400)


@dataclass(frozen=True, slots=True)
class ReputationDay:
    """What mail hosts answered on one UTC day, by number of addresses."""

    day: date
    answers: int
    refused: int  # of them: the host refused because of this machine


@dataclass(frozen=True, slots=True)
class CountReputation(StoreCommand[None]):
    counted: ReputationDay


@dataclass(frozen=True, slots=True)
class ReadReputation(StoreCommand[list[ReputationDay]]):
    first: date


class ReputationStore(QueueStore):
    """The part of the store that keeps the reputation."""

    async def count_reputation(self, counted: ReputationDay) -> None:
        """Add to the counts of a day; forget what is older than KEPT_MAX."""
        await self._execute(CountReputation(counted))

    async def reputation(self, first: date) -> list[ReputationDay]:
        """The days with answers from `first` on, in order."""
        return await self._execute(ReadReputation(first))
