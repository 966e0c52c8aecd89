"""Moves everything from an SQLite database to a PostgreSQL one, with all services stopped.

`open_move()` checks both sides and refuses what cannot be moved, before any row is
written. `step()` moves a batch. A move that is killed at any point continues when it is
opened again, and no row is written twice. At the end both sides are compared.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from msgspec import Struct

from ..contract import DatabaseInUse, StoreBroken
from .source import MigrationSource, open_source
from .tables import TablePlan, planned
from .target import MigrationProgress, MigrationTarget, open_target

__all__ = ["DatabaseInUse", "Move", "Moved", "open_move"]


class Moved(Struct, frozen=True):
    """The totals of a moved table, equal on both sides."""

    table: str
    rows: int
    units: int | None  # None if the table has no such column


@contextmanager
def open_move(
    source: Path, url: str, secret_key: bytes | None, *, anew: bool = False
) -> Iterator["Move"]:
    """Start a move or continue one; `anew` first deletes what an unfinished one has written.

    `secret_key` None takes the one in the file beside the source. Raises StoreBroken for
    what cannot be moved (DatabaseInUse if either side is in use), and StoreUnavailable.
    """
    with open_source(source) as read:
        key = read.secret_key(secret_key)
        with open_target(url, key) as written:
            plans = planned(read.columns(), written.columns())
            record = written.record()
            if record and anew and not record.ended_at:
                written.empty()
                record = None
            if record is None:
                written.check_empty()
                record = MigrationProgress(str(source.absolute()), read.mark, {}, {})
                written.keep(record)
            elif record.mark != read.mark:
                raise StoreBroken(_changed(record, read, written))
            yield Move(read, written, plans, record, key)


def _changed(record: MigrationProgress, source: MigrationSource, target: MigrationTarget) -> str:
    if record.ended_at:
        return (
            f"{record.path} was moved to {target.name} at {record.ended_at}, and {source.path} is"
            " another or was changed since: what is in PostgreSQL is what counts"
        )
    return (
        f"{source.path} is not {record.path} as it was when this move began, of which"
        f" {target.name} has a part: put it back, or begin with --anew"
    )


class Move:
    """A move in progress: its tables and how far it has come."""

    def __init__(
        self,
        source: MigrationSource,
        target: MigrationTarget,
        plans: list[TablePlan],
        record: MigrationProgress,
        secret_key: bytes,
    ) -> None:
        self._source = source
        self._target = target
        self._plans = plans
        self._record = record
        self._left = list(plans)
        self.secret_key = secret_key
        self.ended_at = record.ended_at

    def count(self) -> int:
        """Count the source's rows in all tables."""
        return sum(self._source.count(plan) for plan in self._plans)

    @property
    def rows(self) -> dict[str, int]:
        """The number of rows moved so far, by table."""
        return dict(self._record.rows)

    def step(self) -> bool:
        """Move a batch of rows; False when there are no more. Raises StoreBroken, StoreUnavailable."""
        while self._left:
            plan = self._left[0]
            name = plan.table.name
            rows, last = self._source.rows(plan, self._record.after.get(name, ()))
            if rows:
                self._record.after[name] = last
                self._record.rows[name] = self._record.rows.get(name, 0) + len(rows)
                self._target.write(plan, rows, self._record)
                return True
            del self._left[0]
        return False

    @property
    def tables(self) -> list[str]:
        return [plan.table.name for plan in self._plans]

    def compare(self, table: str) -> Moved:
        """Compare rows, units and the sums of all numbers; raises StoreBroken if they differ."""
        plan = next(plan for plan in self._plans if plan.table.name == table)
        ours, theirs = self._source.totals(plan), self._target.totals(plan)
        if ours != theirs:
            raise StoreBroken(
                f"{table} differs: {ours[0]:,} rows were read, and {theirs[0]:,} are in"
                f" {self._target.name}; begin with --anew"
            )
        return Moved(table, *ours[:2])

    def end(self) -> None:
        """Release the target to services; call it once all tables are compared."""
        self._target.end(self._record)
        self.ended_at = self._record.ended_at
