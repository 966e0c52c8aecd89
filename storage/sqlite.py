"""The store in one SQLite file: the default.

Write-ahead log, synchronous=FULL; one writer thread with group commit, one
reader thread (sqlite_desk). Several processes may share the file: whoever writes
holds the lock from before the clock is read until the commit is on the disk.
"""

import json
import sqlite3
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import date, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

import trio

from storage import sqlite_metering as metering
from storage.calendar import kept_since
from storage.records import (
    Account,
    Answered,
    Caller,
    DayCount,
    Key,
    KeyKind,
    Ledger,
    Reservation,
    Tier,
    UsageRow,
)
from storage.sealing import Seal, key_beside
from storage.sqlite_desk import Reader, Writer
from storage.sqlite_file import prepare, trouble_told
from storage.sqlite_rows import (
    ACCOUNT_COLUMNS,
    ACCOUNT_FIELDS,
    KEY_COLUMNS,
    account_of,
    column,
    key_of,
    micros,
)
from storage.store import (
    SETTLED_KEPT,
    USAGE_ROWS_MAX,
    WINDOW,
    IdempotencyInProgress,
    IdempotencyKeyReused,
    KeyLimitReached,
    check_answer,
    check_changes,
    check_units,
)

R = TypeVar("R")
DB = sqlite3.Connection
TIDIED_MAX = 1000  # rows in one transaction of tidy(): some milliseconds, nobody waits long


@asynccontextmanager
async def open_sqlite(
    path: Path, *, secret_key: bytes | None, now: Callable[[], datetime]
) -> AsyncIterator["SqliteStore"]:
    """Make or check the file, and serve it; leaving the block answers those who still wait.

    Without a secret key the one in the file beside the database is used, or made.
    Raises StoreBroken, StoreUnavailable.
    """

    def make_ready() -> bytes:
        prepare(path)
        with trouble_told(path):
            return key_beside(path) if secret_key is None else secret_key

    seal = Seal(await trio.to_thread.run_sync(make_ready))
    with trouble_told(path):
        writer = Writer(path, now)
    try:
        reader = Reader(path, now)
        try:
            yield SqliteStore(writer, reader, seal)
        finally:
            await reader.close()
    finally:
        await writer.close()


class SqliteStore:
    """Everything that is remembered, in one file."""

    def __init__(self, writer: Writer, reader: Reader, seal: Seal) -> None:
        self._writer = writer
        self._reader = reader
        self._seal = seal

    # accounts and keys

    async def create_account(self, email: str, tier: Tier) -> Account:
        return await self._writer.ask(lambda db, now: _create_account(db, now, email, tier))

    async def account(self, account_id: str) -> Account | None:
        return await self._reader.ask(lambda db, now: _account(db, account_id))

    async def accounts(self) -> list[Account]:
        return await self._reader.ask(lambda db, now: _accounts(db))

    async def change_account(self, account_id: str, **changes: Any) -> Account | None:
        check_changes(changes)
        return await self._writer.ask(lambda db, now: _change_account(db, account_id, changes))

    async def create_key(
        self,
        account_id: str,
        kind: KeyKind,
        label: str | None,
        *,
        sha256: str,
        prefix: str,
        keys_max: int | None,
    ) -> Key:
        def act(db: DB, now: datetime) -> Key:
            key = Key(str(uuid4()), account_id, kind, label, prefix, now)
            _create_key(db, key, sha256, keys_max)
            return key

        return await self._writer.ask(act)

    async def keys(self, account_id: str) -> list[Key]:
        return await self._reader.ask(lambda db, now: _keys(db, account_id))

    async def revoke_key(self, account_id: str | None, key_id: str) -> bool:
        return await self._writer.ask(lambda db, now: _revoke_key(db, now, account_id, key_id))

    async def caller(self, sha256: str) -> Caller | None:
        return await self._reader.ask(lambda db, now: _caller(db, sha256))

    # metering

    async def reserve(
        self, caller: Caller, units: int, weigh: Callable[[Ledger], R | None], *, lease_s: float
    ) -> Reservation | R:
        check_units(units)
        return await self._writer.ask(
            lambda db, now: metering.reserve(db, now, caller, units, weigh, lease_s)
        )

    async def extend(self, reservation: Reservation, *, lease_s: float) -> None:
        await self._writer.ask(lambda db, now: metering.extend(db, now, reservation, lease_s))

    async def settle(
        self,
        reservation: Reservation,
        rows: Sequence[UsageRow],
        *,
        part: int = 0,
        ends: bool = True,
    ) -> None:
        await self._writer.ask(
            lambda db, now: metering.settle(db, now, reservation, rows, part, ends)
        )

    async def log_refusal(self, caller: Caller, row: UsageRow) -> None:
        await self._writer.ask(lambda db, now: metering.log_refusal(db, now, caller, row))

    async def ledger(self, caller: Caller) -> Ledger:
        return await self._reader.ask(lambda db, now: metering.ledger(db, now, caller))

    async def days(self, account_id: str, first: date, last: date) -> list[DayCount]:
        return await self._reader.ask(
            lambda db, now: metering.days(db, now, account_id, first, last)
        )

    async def usage(self, account_id: str, *, limit: int) -> list[UsageRow]:
        most = min(limit, USAGE_ROWS_MAX)
        return await self._reader.ask(lambda db, now: metering.usage(db, now, account_id, most))

    # idempotency

    async def begin_once(
        self, account_id: str, key: str, body_sha256: str, *, keep_s: float, lease_s: float
    ) -> Answered | None:
        def act(db: DB, now: datetime) -> bytes | None:
            lease_until = now + timedelta(seconds=lease_s)
            keep_until = now + timedelta(seconds=keep_s)
            return _begin_once(db, now, account_id, key, body_sha256, lease_until, keep_until)

        sealed = await self._writer.ask(act)
        if sealed is None:
            return None
        return _unpacked(self._seal.open(sealed, _place(account_id, key)))

    async def finish_once(self, account_id: str, key: str, answer: Answered | None) -> None:
        check_answer(answer)
        sealed = None
        if answer is not None:
            sealed = self._seal.close(_packed(answer), _place(account_id, key))
        await self._writer.ask(lambda db, now: _finish_once(db, account_id, key, sealed))

    # upkeep

    async def tidy(self, retention_days: dict[Tier, int]) -> None:
        now = await self.check()
        for statement, values in _tidying(now, retention_days):
            await self._drop(statement, values)
        await self._drop_settled(now)

    async def _drop(self, statement: str, values: dict[str, Any]) -> None:
        """Little by little, so that no request waits behind it."""
        dropped = TIDIED_MAX
        while dropped == TIDIED_MAX:
            dropped = await self._writer.ask(
                lambda db, now: db.execute(statement, {**values, "most": TIDIED_MAX}).rowcount
            )

    async def _drop_settled(self, now: datetime) -> None:
        """From the oldest number on, until a thousand in a row are too young."""
        after: tuple[int, int] | None = (0, -1)
        while after is not None:
            act = partial(_drop_settled, after=after, until=now - SETTLED_KEPT)
            after = await self._writer.ask(act)

    async def check(self) -> datetime:
        return await self._writer.ask(lambda db, now: now)


def _create_account(db: DB, now: datetime, email: str, tier: Tier) -> Account:
    account = Account(str(uuid4()), email, tier, now)
    places = ", ".join("?" * len(ACCOUNT_FIELDS))
    db.execute(
        f"INSERT INTO accounts ({', '.join(ACCOUNT_FIELDS)}) VALUES ({places})",
        [column(getattr(account, name)) for name in ACCOUNT_FIELDS],
    )
    return account


def _account(db: DB, account_id: str) -> Account | None:
    row = db.execute(
        f"SELECT {ACCOUNT_COLUMNS} FROM accounts WHERE id = ?", (account_id,)
    ).fetchone()
    return row and account_of(row)


def _accounts(db: DB) -> list[Account]:
    rows = db.execute(f"SELECT {ACCOUNT_COLUMNS} FROM accounts ORDER BY number")
    return [account_of(row) for row in rows]


def _change_account(db: DB, account_id: str, changes: dict[str, Any]) -> Account | None:
    for name, value in changes.items():  # each is a field's name: check_changes()
        db.execute(f"UPDATE accounts SET {name} = ? WHERE id = ?", (column(value), account_id))
    return _account(db, account_id)


def _account_number(db: DB, account_id: str) -> int:
    row = db.execute("SELECT number FROM accounts WHERE id = ?", (account_id,)).fetchone()
    if row is None:
        raise KeyError(account_id)
    return int(row[0])


def _create_key(db: DB, key: Key, sha256: str, keys_max: int | None) -> None:
    account = _account_number(db, key.account_id)
    if key.kind == "standard" and keys_max is not None:
        (active,) = db.execute(
            "SELECT count(*) FROM keys"
            " WHERE account = ? AND kind = 'standard' AND revoked_at IS NULL",
            (account,),
        ).fetchone()
        if active >= keys_max:
            raise KeyLimitReached
    if db.execute("SELECT 1 FROM keys WHERE sha256 = ?", (sha256,)).fetchone():
        raise ValueError("a key with this hash is kept already")
    db.execute(
        "INSERT INTO keys (id, account, kind, label, prefix, sha256, created_at)"
        " VALUES (?, ?, ?, ?, ?, ?, ?)",
        (key.id, account, key.kind, key.label, key.prefix, sha256, micros(key.created_at)),
    )


def _keys(db: DB, account_id: str) -> list[Key]:
    rows = db.execute(
        f"SELECT {KEY_COLUMNS} FROM accounts JOIN keys ON keys.account = accounts.number"
        " WHERE accounts.id = ? AND revoked_at IS NULL ORDER BY keys.number",
        (account_id,),
    )
    return [key_of(row) for row in rows]


def _revoke_key(db: DB, now: datetime, account_id: str | None, key_id: str) -> bool:
    revoked = db.execute(
        "UPDATE keys SET revoked_at = :now WHERE id = :key AND revoked_at IS NULL AND"
        " (:account IS NULL OR account = (SELECT number FROM accounts WHERE id = :account))",
        {"now": micros(now), "key": key_id, "account": account_id},
    )
    return bool(revoked.rowcount)


def _caller(db: DB, sha256: str) -> Caller | None:
    row = db.execute(
        f"SELECT {ACCOUNT_COLUMNS}, {KEY_COLUMNS}"
        " FROM keys JOIN accounts ON accounts.number = keys.account"
        " WHERE sha256 = ? AND revoked_at IS NULL",
        (sha256,),
    ).fetchone()
    if row is None:
        return None
    fields = len(ACCOUNT_FIELDS)
    return Caller(account_of(row[:fields]), key_of(row[fields:]))


def _begin_once(
    db: DB,
    now: datetime,
    account_id: str,
    key: str,
    body_sha256: str,
    lease_until: datetime,
    keep_until: datetime,
) -> bytes | None:
    account = _account_number(db, account_id)
    at = micros(now)
    standing = db.execute(
        "SELECT body_sha256, answer FROM onces WHERE account = ? AND key = ? AND keep_until > ?"
        " AND (answer IS NOT NULL OR lease_until > ?)",
        (account, key, at, at),
    ).fetchone()
    if standing is None:
        db.execute(
            "INSERT OR REPLACE INTO onces (account, key, body_sha256, lease_until, keep_until)"
            " VALUES (?, ?, ?, ?, ?)",
            (account, key, body_sha256, micros(lease_until), micros(keep_until)),
        )
        return None
    body_before, answer = standing
    if body_before != body_sha256:
        raise IdempotencyKeyReused
    if answer is None:
        raise IdempotencyInProgress
    return bytes(answer)


def _finish_once(db: DB, account_id: str, key: str, answer: bytes | None) -> None:
    which = (
        " WHERE account = (SELECT number FROM accounts WHERE id = ?) AND key = ? AND answer IS NULL"
    )
    if answer is None:
        db.execute(f"DELETE FROM onces{which}", (account_id, key))
    else:
        db.execute(f"UPDATE onces SET answer = ?{which}", (answer, account_id, key))


def _place(account_id: str, key: str) -> str:
    """What a sealed answer is bound to: it cannot be moved to another account or key."""
    return f"{account_id}\n{key}"


def _packed(answer: Answered) -> bytes:
    return json.dumps([answer.status, answer.headers]).encode() + b"\n" + answer.body


def _unpacked(octets: bytes) -> Answered:
    head, _, body = octets.partition(b"\n")
    status, headers = json.loads(head)
    return Answered(status, tuple((name, value) for name, value in headers), body)


def _tidying(now: datetime, retention_days: dict[Tier, int]) -> list[tuple[str, dict[str, Any]]]:
    """What is to go: each statement drops at most `:most` rows."""
    at = {"now": micros(now)}
    by_age: list[tuple[str, dict[str, Any]]] = [
        (
            "DELETE FROM windows WHERE (key, at) IN"
            " (SELECT key, at FROM windows WHERE at <= :ended LIMIT :most)",
            {"ended": micros(now - WINDOW)},
        ),
        (
            "DELETE FROM reservations WHERE number IN"
            " (SELECT number FROM reservations WHERE lease_until <= :now LIMIT :most)",
            at,
        ),
        (
            "DELETE FROM onces WHERE number IN (SELECT number FROM onces"
            " WHERE keep_until <= :now LIMIT :most)",
            at,
        ),
        (
            "DELETE FROM onces WHERE number IN (SELECT number FROM onces"
            " WHERE answer IS NULL AND lease_until <= :now LIMIT :most)",
            at,
        ),
    ]
    by_tier = [
        (statement, {"tier": tier, "since": micros(kept_since(now, days))})
        for tier, days in retention_days.items()
        for statement in (
            "DELETE FROM usage WHERE number IN (SELECT usage.number FROM accounts"
            " JOIN usage ON account = accounts.number WHERE tier = :tier AND at < :since"
            " LIMIT :most)",
            "DELETE FROM refusals WHERE (account, minute, key, failed_check, place) IN"
            " (SELECT account, minute, key, failed_check, place FROM accounts"
            " JOIN refusals ON account = accounts.number WHERE tier = :tier AND minute < :since"
            " LIMIT :most)",
        )
    ]
    return by_age + by_tier


def _drop_settled(
    db: DB, _: datetime, after: tuple[int, int], until: datetime
) -> tuple[int, int] | None:
    """The reservation and part to go on from; None where nothing was old enough."""
    parts = db.execute(
        "SELECT reservation, part, at FROM settlements WHERE (reservation, part) > (?, ?)"
        " ORDER BY reservation, part LIMIT ?",
        (*after, TIDIED_MAX),
    ).fetchall()
    old = [(number, part) for number, part, at in parts if at <= micros(until)]
    db.executemany("DELETE FROM settlements WHERE reservation = ? AND part = ?", old)
    return parts[-1][:2] if old else None
