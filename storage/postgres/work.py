"""Work for the batch executor other than usage: single writes, reads and caller look-ups."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..callers import find_callers
from ..commands import FindCaller
from .database import PostgresDatabase
from .driver.server import TransactionConnection

Act = Callable[[TransactionConnection], object]
CALLERS_MAX = 500  # key hashes looked up with one query


@dataclass(frozen=True, slots=True)
class SingleWrites:
    """Each call in its own transaction. Not repeatable: a repetition would write twice."""

    group_max: int = 1
    repeatable: bool = False

    def __call__(
        self, db: TransactionConnection, asked: Sequence[Act], marker: object
    ) -> list[object]:
        (act,) = asked
        db.begin()
        value = act(db)
        db.commit()
        return [value]


@dataclass(frozen=True, slots=True)
class Reads:
    """Each statement sees the database as it is."""

    group_max: int = 1
    repeatable: bool = True

    def __call__(
        self, db: TransactionConnection, asked: Sequence[Act], marker: object
    ) -> list[object]:
        (act,) = asked
        return [act(db)]


@dataclass(frozen=True, slots=True)
class Callers:
    """Looks up the callers of key hashes, which is each request's first call."""

    group_max: int = CALLERS_MAX
    repeatable: bool = True

    def __call__(
        self, db: TransactionConnection, asked: Sequence[FindCaller], marker: object
    ) -> list[object]:
        hashes = [command.sha256 for command in asked]
        return list(find_callers(PostgresDatabase(db), hashes))
