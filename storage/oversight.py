"""What the operator of a service sees of it: its reputation with mail hosts, its accounts."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, timedelta

from mailprobe.storage.checks import at_most
from mailprobe.storage.commands import StoreCommand
from mailprobe.storage.contract import LISTED_MAX
from mailprobe.storage.records import Account
from mailprobe.storage.store_part import StorePart

KEPT_MAX = timedelta(days=400)


@dataclass(frozen=True, slots=True)
class ReputationDay:
    """What one operator's mail hosts answered on one UTC day, by number of addresses."""

    day: date
    operator: str  # empty: of a version that did not tell them apart
    answers: int
    refused: int  # of them: the host refused because of this machine


@dataclass(frozen=True, slots=True)
class CountReputation(StoreCommand[None]):
    counted: Sequence[ReputationDay]


@dataclass(frozen=True, slots=True)
class ReadReputation(StoreCommand[list[ReputationDay]]):
    first: date


@dataclass(frozen=True, slots=True)
class FindFirstAccount(StoreCommand[str | None]):
    pass


@dataclass(frozen=True, slots=True)
class FindAccounts(StoreCommand[list[Account]]):
    text: str
    skip: int
    limit: int


class OversightStore(StorePart):
    """The part of the store that the operator looks at."""

    async def count_reputation(self, counted: Sequence[ReputationDay]) -> None:
        """Add to the counts of days; forget what is older than KEPT_MAX."""
        await self._execute(CountReputation(tuple(counted)))

    async def reputation(self, first: date) -> list[ReputationDay]:
        """The days with answers from `first` on, in order, each by operator."""
        return await self._execute(ReadReputation(first))

    async def first_account_id(self) -> str | None:
        """The id of the account that was created first, deleted or not; it never changes."""
        return await self._execute(FindFirstAccount())

    async def find_accounts(self, text: str = "", *, skip: int = 0, limit: int) -> list[Account]:
        """Accounts that are not deleted, newest first, at most LISTED_MAX.

        With `text` those of this id, and those whose e-mail address contains it in whatever
        case: that reads all accounts.
        """
        most = at_most(LISTED_MAX, limit)
        return await self._execute(FindAccounts(text, max(0, skip), most))
