"""Conversion between records and database columns, which have the same names in both databases.

An instant is microseconds since 1970, and a day is one of UTC.
"""

import json
from collections.abc import Sequence
from datetime import UTC, date, datetime, time, timedelta
from typing import Any

from msgspec.structs import fields

from ..list_records import StoredList
from ..records import (
    EPOCH,
    Account,
    Attempt,
    Job,
    Key,
    OutboxMessage,
    UsageRow,
    message_id,
)

ACCOUNT_FIELDS = tuple(field.name for field in fields(Account))
KEY_FIELDS = tuple(field.name for field in fields(Key))
JOB_FIELDS = tuple(field.name for field in fields(Job))
MESSAGE_FIELDS = tuple(field.name for field in fields(OutboxMessage))
LIST_FIELDS = tuple(field.name for field in fields(StoredList))


def _columns(table: str, names: tuple[str, ...]) -> str:
    """The SELECT list; `account_id` is read from the joined accounts row, a kind from the key."""
    elsewhere = {
        "account_id": "accounts.id",
        "is_test": is_test(table),
        "is_signed": f"{table}.secret IS NOT NULL",
        "ran_from": f"coalesce({table}.ran_from, 0)",
    }
    return ", ".join(elsewhere.get(name, f"{table}.{name}") for name in names)


def is_test(table: str) -> str:
    """SQL that tells whether a test key made a row of this table."""
    return f"(SELECT keys.kind = 'test' FROM keys WHERE keys.number = {table}.key)"


ACCOUNT_COLUMNS = _columns("accounts", ACCOUNT_FIELDS)
KEY_COLUMNS = _columns("keys", KEY_FIELDS)
JOB_COLUMNS = _columns("jobs", JOB_FIELDS)
MESSAGE_COLUMNS = _columns("outbox", MESSAGE_FIELDS[1:])  # its id is made from them
LIST_COLUMNS = _columns("lists", LIST_FIELDS)
INSTANTS = {
    "created_at",
    "revoked_at",
    "current_period_start",
    "current_period_end",
    "canceled_at",
    "cancel_at",
    "trial_start",
    "trial_end",
    "billing_cycle_anchor",
    "due_at",
    "ended_at",
    "made_at",
    "first_tried_at",
    "sent_at",
    "used_at",
    "recheck_at",
    "waits_until",
    "ran_at",
}
FLAGS = {
    "alerts", "cancel_at_period_end", "recheck", "is_test", "asks_hosts", "is_signed",
    "strict_clocks", "mails",
}  # fmt: skip

ColumnValues = tuple[Any, ...]


def micros(at: datetime) -> int:
    """Return the instant as microseconds since 1970 in UTC."""
    since = at - EPOCH
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


def instant(count: int) -> datetime:
    """Return the instant for so many microseconds since 1970, in UTC."""
    return EPOCH + timedelta(microseconds=count)


def day_of(at: datetime) -> date:
    """Return the UTC day of an instant."""
    return at.date() if at.tzinfo is UTC else at.astimezone(UTC).date()


def day_start(at: datetime) -> datetime:
    """Return the first instant of the instant's UTC day."""
    return midnight(day_of(at))


def midnight(day: date) -> datetime:
    """Return the first instant of a UTC day."""
    return datetime.combine(day, time(), UTC)


def kept_since(now: datetime, days: int) -> datetime:
    """Return the earliest instant within a retention of so many UTC days, today included."""
    return midnight(day_of(now) - timedelta(days=days - 1))


def column(value: object) -> object:
    """Return a field's value as a column stores it: an instant as microseconds."""
    return micros(value) if isinstance(value, datetime) else value


def account_of(row: ColumnValues) -> Account:
    """Make an Account from a row of ACCOUNT_COLUMNS."""
    return Account(*_values(ACCOUNT_FIELDS, row))


def origins_column(origins: Sequence[str]) -> str | None:
    """Return a key's origins as its column stores them: an origin has no space (RFC 6454)."""
    return " ".join(origins) or None


def key_of(row: ColumnValues) -> Key:
    """Make a Key from a row of KEY_COLUMNS."""
    return Key(*_values(KEY_FIELDS, row))


def job_of(row: ColumnValues) -> Job:
    """Make a Job from a row of JOB_COLUMNS."""
    return Job(*_values(JOB_FIELDS, row))


def list_of(row: ColumnValues) -> StoredList:
    """Make a StoredList from a row of LIST_COLUMNS."""
    return StoredList(*_values(LIST_FIELDS, row))


def attempt_of(row: ColumnValues) -> Attempt:
    """Make an Attempt from a row: number, at, took_ms, status, error."""
    number, at, took_ms, status, error = row
    return Attempt(number, instant(at), took_ms, status, error)


def message_of(row: ColumnValues) -> OutboxMessage:
    """Make an OutboxMessage from a row of MESSAGE_COLUMNS."""
    kind, account_id, name, *_ = row
    return OutboxMessage(message_id(kind, account_id, name), *_values(MESSAGE_FIELDS[1:], row))


def _values(names: tuple[str, ...], row: ColumnValues) -> list[Any]:
    read: list[Any] = []
    for name, value in zip(names, row, strict=True):
        if name == "origins":
            read.append(tuple((value or "").split()))
        elif name == "counts":
            read.append(json.loads(value))
        elif value is None:
            read.append(None)
        elif name in INSTANTS:
            read.append(instant(value))
        else:
            read.append(bool(value) if name in FLAGS else value)
    return read


def usage_row_of(row: ColumnValues) -> UsageRow:
    """Make a UsageRow from a row of its columns, in the order of its fields."""
    at, operation, status, failed_check, units, billable, latency_ms, times = row
    why = failed_check or None
    return UsageRow(instant(at), operation, status, why, units, bool(billable), latency_ms, times)


def usage_values(row: UsageRow) -> ColumnValues:
    """The columns of a row as it is logged, after its account and key."""
    return (
        micros(row.at), row.operation, row.status, row.failed_check, row.units, row.billable,
        row.latency_ms,
    )  # fmt: skip
