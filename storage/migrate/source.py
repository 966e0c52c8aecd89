"""The SQLite database that is moved: read-only, in one snapshot, with no other process using it.

Its lock file stays locked meanwhile, so that no service starts on it and no other process writes.
"""

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from ..base.encryption import Cipher, key_path
from ..contract import StoreBroken
from ..database import Row
from ..sqlite.file import connect_to_read, unserved
from ..sqlite.secret_key import (
    OF_SETTING,
    check_key,
    encrypted_values,
    read_key_file,
    wrong_key_error,
)
from .tables import TablePlan

BATCH_ROWS = 20_000  # about 0.1 s of work, so that an interruption takes effect soon
BATCH_OCTETS = 8 * 1024 * 1024  # of texts and payloads; long ones reach it before BATCH_ROWS


@contextmanager
def open_source(path: Path) -> Iterator["MigrationSource"]:
    """Lock and open the source. Raises StoreBroken (DatabaseInUse if it is in use), StoreUnavailable."""
    if not path.is_file():
        raise StoreBroken(f"{path} is not there, or not a file")
    with unserved(path):
        db = connect_to_read(path)
        try:
            yield MigrationSource(path, db)
        finally:
            db.close()


class MigrationSource:
    def __init__(self, path: Path, db: sqlite3.Connection) -> None:
        self.path = path
        self._db = db
        db.execute("BEGIN")  # all later reads see one snapshot
        db.execute("SELECT 1 FROM accounts LIMIT 1").fetchone()

    @property
    def mark(self) -> list[int]:
        """Sizes (octets) and modification times (ns) of the files; any write to the database changes them."""
        marks = []
        for path in (self.path, self.path.with_name(f"{self.path.name}-wal")):
            with suppress(FileNotFoundError):
                status = path.stat()
                if status.st_size:  # a reader leaves an empty log behind
                    marks += [status.st_size, status.st_mtime_ns]
        return marks

    def columns(self) -> dict[str, list[str]]:
        """Return the column names by table."""
        tables = self._db.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        return {
            table: [row[1] for row in self._db.execute(f'PRAGMA table_info("{table}")')]
            for (table,) in tables
        }

    def rows(self, plan: TablePlan, after: Sequence[object]) -> tuple[list[Row], list[object]]:
        """Return the next rows after the key `after` and the last one's key; no rows at the end."""
        table = plan.table
        key = ", ".join(table.key)
        where = f" WHERE ({key}) > ({', '.join('?' * len(after))})" if after else ""
        found = self._db.execute(
            f"SELECT {key}, {', '.join(plan.columns)} FROM {table.name}"
            f"{where} ORDER BY {key} LIMIT {BATCH_ROWS}",
            tuple(after),
        )
        is_long = plan.table.has_texts or "bytea" in plan.types
        most = BATCH_OCTETS if is_long else None  # rows of other tables are short
        rows = _some(found, most)
        found.close()
        keys = len(table.key)
        last = list(rows[-1][:keys]) if rows else list(after)
        return [row[keys:] for row in rows], last

    def totals(self, plan: TablePlan) -> Row:
        row: Row = self._db.execute(plan.totals(of_source=True)).fetchone()
        return row

    def count(self, plan: TablePlan) -> int:
        (rows,) = self._db.execute(f"SELECT count(*) FROM {plan.table.name}").fetchone()
        return int(rows)

    # secrets

    def secret_key(self, given: bytes | None) -> bytes:
        """Return the key that decrypts this database: `given`, or else the one in the key file.

        Raises StoreBroken if the key is wrong or missing.
        """
        key = read_key_file(self.path) if given is None else given
        if key is None:  # it is never created: a new key decrypts nothing
            raise StoreBroken(
                f"{key_path(self.path)} is not there: set {OF_SETTING} as the service had it"
            )
        check_key(self._db, self.path, key, given=given is not None)
        cipher = Cipher(key)
        try:
            for newest in (False, True):
                for encrypted, context in encrypted_values(self._db, newest=newest):
                    cipher.open(encrypted, context)
        except StoreBroken:
            raise wrong_key_error(self.path, given=given is not None) from None
        return key


def _some(found: Iterable[Row], octets_max: int | None) -> list[Row]:
    if octets_max is None:
        return list(found)
    rows: list[Row] = []
    octets = 0
    for row in found:
        rows.append(row)
        octets += sum(len(value) for value in row if isinstance(value, str | bytes))
        if octets >= octets_max:
            break
    return rows
