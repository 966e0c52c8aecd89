"""Reading the log of usage and the counters; writing them is each database's own."""

from datetime import date

from mailprobe.storage.base.columns import usage_row_of
from mailprobe.storage.commands import CountDays, ListUsage
from mailprobe.storage.database import Database, Row
from mailprobe.storage.records import DayCount, UsageRow

SHOWN = "at, operation, status, failed_check, units, billable, latency_ms"


def count_days(db: Database, command: CountDays) -> list[DayCount]:
    """Return the account's verifications per UTC day, oldest first."""
    rows = db.all(
        "SELECT day, days.billable, green, yellow, red FROM days JOIN accounts ON accounts.number = days.account"
        " WHERE accounts.id = :id AND day BETWEEN :first AND :last ORDER BY day",
        {"id": command.account_id, "first": str(command.first), "last": str(command.last)},
    )
    return [DayCount(date.fromisoformat(day), *counts) for day, *counts in rows]


def list_usage(db: Database, command: ListUsage) -> list[UsageRow]:
    """Return the account's rows and refusals, newest first."""
    found = db.all("SELECT number FROM accounts WHERE id = :id", {"id": command.account_id})
    if not found:
        return []
    values = {"account": found[0][0], "limit": command.limit}
    logged: list[Row] = []
    for first, end in db.usage_spans():
        if len(logged) < command.limit:
            logged += db.all(
                f"SELECT {SHOWN}, 1 FROM usage WHERE account = :account"
                f" AND at >= {first:d} AND at < {end:d}"
                " ORDER BY at DESC, number DESC LIMIT :limit",
                {**values, "limit": command.limit - len(logged)},
            )
    refused = db.all(
        f"SELECT {SHOWN}, times FROM refusals WHERE account = :account"
        " ORDER BY at DESC, minute DESC, place DESC LIMIT :limit",
        values,
    )
    rows = sorted([*logged, *refused], key=lambda row: int(row[0]), reverse=True)
    return [usage_row_of(row) for row in rows[: command.limit]]
