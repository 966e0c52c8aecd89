"""A transaction of either database, as the shared statements use it.

Statements name their values `:name`. What a database needs more than the other, such as
locks of rows, is a piece of SQL here that is empty in the other.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol

from .records import Caller

Row = tuple[Any, ...]
Values = Mapping[str, Any]


class NotUnique(Exception):
    """A statement would have stored a value twice that may be stored once."""


class Database(Protocol):
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

    def pairs(self, name: str) -> str:
        """SQL of a table (key, value): the fields of a value that is a JSON object of numbers."""

    def claims(self, name: str) -> str:
        """SQL of a table (number, id, place, fence): a value that is a JSON array of such objects."""

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

    def count_out(self, account: int, jobs: Sequence[tuple[str, str]]) -> None:
        """Take deleted jobs, each a state and a host, out of what counts an account's jobs."""

    def callers_of_keys(self, numbers: Sequence[int]) -> Mapping[int, Caller]: ...
