"""The SQLite database that is moved: read-only, in one snapshot, with no other process using it.

Its lock file stays locked meanwhile, so that no service starts on it and no other process writes.
"""

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from mailprobe.storage.contract import StoreBroken
from mailprobe.storage.encrypted_columns import idempotency_context, job_context
from mailprobe.storage.encryption import KEY_OCTETS, Cipher, key_path
from mailprobe.storage.migrate.tables import TablePlan
from mailprobe.storage.sql.database import Row
from mailprobe.storage.sqlite.file import connect_to_read, unserved

BATCH_ROWS = 20_000  # about 0.1 s of work, so that an interruption takes effect soon
BATCH_OCTETS = 8 * 1024 * 1024  # of texts and payloads; long ones reach it before BATCH_ROWS
ENCRYPTED_JOBS = "SELECT id, secret FROM jobs WHERE secret IS NOT NULL ORDER BY number"
ENCRYPTED_IDEMPOTENCY = (
    "SELECT accounts.id, key, answer FROM idempotency_records JOIN accounts ON accounts.number = account"
    " WHERE answer IS NOT NULL ORDER BY idempotency_records.number"
)


@contextmanager
def open_source(path: Path) -> Iterator["MigrationSource"]:
    """Lock and open the source. Raises StoreBroken (DatabaseInUse if it is in use), StoreUnavailable."""
    if not path.is_file():
        raise StoreBroken(f"{path} is not there or no file")
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
        key = self._key_of_file() if given is None else given
        if key is None:
            raise StoreBroken(
                f"{key_path(self.path)} is not there: set MAILPROBE_SECRET_KEY as the service had it"
            )
        cipher = Cipher(key)
        try:
            for encrypted, bound_to in self._encrypted():
                cipher.open(encrypted, bound_to)
        except StoreBroken:
            where = str(key_path(self.path)) if given is None else "MAILPROBE_SECRET_KEY"
            raise StoreBroken(
                f"{where} is not the secret key that {self.path} was encrypted with{self._hint(given)}"
            ) from None
        return key

    def _key_of_file(self) -> bytes | None:
        """Read the key file; None if it is missing. It is never created: a new key decrypts nothing."""
        try:
            key = key_path(self.path).read_bytes()
        except FileNotFoundError:
            return None
        if len(key) != KEY_OCTETS:
            raise StoreBroken(f"{key_path(self.path)} holds no secret key")
        return key

    def _hint(self, given: bytes | None) -> str:
        if given is not None and key_path(self.path).exists():
            return f": leave it unset, and the one in {key_path(self.path)} is tried"
        return ": set MAILPROBE_SECRET_KEY as the service had it"

    def _encrypted(self) -> Iterator[tuple[bytes, str]]:
        """Yield the oldest and the newest encrypted value of each kind, with their contexts."""
        for order in ("", " DESC"):
            for id, secret in self._db.execute(f"{ENCRYPTED_JOBS}{order} LIMIT 1"):
                yield secret, job_context(id)
            for account_id, key, answer in self._db.execute(
                f"{ENCRYPTED_IDEMPOTENCY}{order} LIMIT 1"
            ):
                yield answer, idempotency_context(account_id, key)


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
