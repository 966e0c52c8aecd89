"""A store method is a function of its transaction, in the module of its subject.

    def end_pause(db: Database, kind: PauseKind, name: str) -> bool: ...

    class PauseStore(StorePart):
        unpause = write(end_pause)

The method has the function's other arguments, its result, and its docstring, which is the contract. The
function may run again after its transaction was rolled back: so it changes nothing but the database.

Statements name their values `:name`. What a database needs more than the other, such as
locks of rows, is a piece of SQL of `Database` that is empty in the other.
"""

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property, wraps
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    NamedTuple,
    ParamSpec,
    Protocol,
    Self,
    TypeVar,
    TypeVarTuple,
)

from msgspec import Struct
from msgspec.structs import replace

from .contract import StoreBroken
from .list_records import ListClaim
from .records import Caller, Claim, JobState, Tier

if TYPE_CHECKING:  # it imports cryptography, which not every command line needs
    from .base.encryption import Cipher

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C", Claim, ListClaim)
Context = TypeVarTuple("Context")  # what an executor passes before the command: connection, clock
Row = tuple[Any, ...]
Values = Mapping[str, Any]
encoded = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


class NotUnique(Exception):
    """A statement would have stored a value twice that may be stored once."""


@dataclass(frozen=True)
class RowInsert:
    """An INSERT of rows. PostgreSQL gets them as an array of each column."""

    table: str
    columns: str  # each with its type in PostgreSQL, as in "number bigint, id text"
    ending: str = ""

    @property
    def _names(self) -> list[str]:
        return [column.split()[0] for column in self.columns.split(", ")]

    @cached_property
    def of_values(self) -> str:
        """The statement that takes one row."""
        places = ", ".join("?" for _ in self._names)
        return f"INSERT INTO {self.table} ({', '.join(self._names)}) VALUES ({places}){self.ending}"

    @cached_property
    def of_arrays(self) -> str:
        """The statement that takes all rows."""
        arrays = ", ".join(f"%s::{column.split()[1]}[]" for column in self.columns.split(", "))
        names = ", ".join(self._names)
        return f"INSERT INTO {self.table} ({names}) SELECT * FROM unnest({arrays}){self.ending}"


class JobMove(NamedTuple):
    """A job's account and receiver, and its state before and after; None: it is not stored."""

    account: int
    host: str
    before: JobState | None
    after: JobState | None


class RowWriter(Protocol):
    """Takes rows to insert: at once, or with other statements later."""

    def insert(self, into: RowInsert, rows: Sequence[Row]) -> None: ...


class Database(RowWriter, Protocol):
    """A transaction."""

    FOR_UPDATE: str  # the ending of a SELECT that locks its rows
    SKIP_LOCKED: str  # the same, without the rows that another transaction has locked

    def now(self) -> datetime:
        """Return the store's clock; call it only after the locks are acquired."""

    def all(self, statement: str, values: Values) -> list[Row]: ...
    def all_each(self, statement: str, values: Sequence[Values]) -> list[list[Row]]:
        """Run a statement with each of these values, in one round trip; return the rows of each."""

    def change(self, statement: str, values: Values) -> int:
        """Run a statement; return the number of rows that it changed. Raises NotUnique."""

    def change_each(self, statement: str, values: Sequence[Values]) -> None:
        """Run a statement with each of these values. Raises NotUnique."""

    def delete_some(self, table: str, which: str, values: Values, most: int) -> int:
        """Delete at most so many rows, none that another transaction has locked; return how many."""

    def records(self, name: str, columns: str) -> str:
        """SQL of a table with these columns: a value that is `encoded()`, by its name.

        Each column has its type in PostgreSQL, as in "number bigint, id text".
        """

    def among(self, name: str, kind: str) -> str:
        """SQL of a condition's end: it is in a list that is `encoded()`, by its name.

        `kind` is its type in PostgreSQL, which finds such rows by an index whatever its statistics.
        """

    def first_chunks_of(self, lists: str, which: str, order: str, limit: str) -> str:
        """SQL of a table of lists, by number, joined with the first `chunks` of each."""

    def need_list_day(self, day: int) -> None:
        """Let the lines of lists of this day, by its first instant, be stored."""

    def usage_spans(self) -> Sequence[tuple[int, int]]:
        """Return the spans of instants that hold all usage, newest first, each without its end.

        A statement reads one, with both instants in its text, so that it locks few partitions.
        """

    def lock_facts(self) -> None:
        """Let no other transaction write facts until this one has ended.

        So numbers are committed in their order, and a reader that continues behind the last
        one misses none.
        """

    def lock_uploads(self, account: int) -> None:
        """Let no other transaction add rows to lists of this account until this one has ended."""

    def lock_accounts(self) -> None:
        """Let no other transaction insert an account until this one has ended."""

    def count_jobs(self, moves: Sequence[JobMove]) -> None:
        """Count jobs that were added, changed or deleted; their rows are written already."""


class StoreCommand(Struct, Generic[R], frozen=True):
    """A call of a store that returns an R."""

    @classmethod
    def run_by(
        cls, function: Callable[[*Context, Self], R]
    ) -> tuple[type[Self], Callable[[*Context, Any], R]]:
        """Return an entry of an executor's table: this command, and the function that runs it."""
        return cls, function


Function = Callable[Concatenate[Database, P], R]


class Executor(Protocol):
    """Runs the transactions of a store. Everything raises StoreUnavailable within a second.

    A cancelled caller receives the result of a transaction that has begun.
    """

    async def write(self, function: Function[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the function in a transaction of its own; what it raises leaves no change."""
        ...

    async def read(self, function: Function[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run a function that changes nothing."""
        ...

    async def execute(self, command: StoreCommand[R]) -> R:
        """Run a command, each in one transaction unless its method says otherwise."""
        ...

    async def find_caller(self, sha256: str) -> Caller | None:
        """See `AccountStore.caller`: each request's first call."""
        ...

    async def apply_retention(self, retention_days: Mapping[Tier, int]) -> None:
        """See `Store.apply_retention`: many transactions, so that no request waits for one."""
        ...

    async def check(self) -> datetime:
        """See `Store.check`."""
        ...

    def lease_session(self) -> int:
        """See `LeaseStore.lease_session`; always the same if leases end only by themselves."""
        ...


class HasExecutor(Protocol):
    """What has such methods."""

    executor: Executor


Method = Callable[Concatenate[HasExecutor, P], Awaitable[R]]


def write(function: Function[P, R]) -> Method[P, R]:
    """Return a method that runs the function in a transaction of its own."""

    @wraps(function)
    async def method(store: HasExecutor, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return await store.executor.write(function, *args, **kwargs)

    return method


def read(function: Function[P, R]) -> Method[P, R]:
    """Return a method that runs the function, which changes nothing."""

    @wraps(function)
    async def method(store: HasExecutor, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return await store.executor.read(function, *args, **kwargs)

    return method


class StorePart:
    """The base of the parts of `Store`: has the executor, and encrypts what must be read again."""

    def __init__(self, executor: Executor, cipher: "Cipher") -> None:
        self.executor = executor
        self._execute = executor.execute
        self._cipher = cipher

    def _with_secret(self, claim: C, encrypted: bytes | None, context: str) -> C:
        """The claim with its secret, or marked if another key has encrypted it."""
        if encrypted is None:
            return claim
        try:
            secret = self._cipher.open(encrypted, context).decode()
        except StoreBroken:  # only this claim's secret; the others are readable
            return replace(claim, undecryptable=True)
        return replace(claim, secret=secret)
