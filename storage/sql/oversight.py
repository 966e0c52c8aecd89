"""Transactions of what the operator sees."""

from datetime import date

from mailprobe.storage.columns import ACCOUNT_COLUMNS, account_of
from mailprobe.storage.database import Database
from mailprobe.storage.oversight import (
    KEPT_MAX,
    CountReputation,
    FindAccounts,
    FindFirstAccount,
    ReadReputation,
    ReputationDay,
)
from mailprobe.storage.records import Account


def count(db: Database, command: CountReputation) -> None:
    """See OversightStore.count_reputation."""
    db.change_each(
        "INSERT INTO reputation (day, operator, answers, refused)"
        " VALUES (:day, :operator, :answers, :refused)"
        " ON CONFLICT (day, operator) DO UPDATE SET answers = reputation.answers + excluded.answers,"
        " refused = reputation.refused + excluded.refused",
        [
            {
                "day": each.day.isoformat(),
                "operator": each.operator,
                "answers": each.answers,
                "refused": each.refused,
            }
            for each in command.counted
        ],
    )
    for day in {each.day for each in command.counted}:
        oldest = day - KEPT_MAX
        db.change("DELETE FROM reputation WHERE day < :oldest", {"oldest": oldest.isoformat()})


def read(db: Database, command: ReadReputation) -> list[ReputationDay]:
    """See OversightStore.reputation."""
    rows = db.all(
        "SELECT day, operator, answers, refused FROM reputation WHERE day >= :first"
        " ORDER BY day, operator",
        {"first": command.first.isoformat()},
    )
    return [ReputationDay(date.fromisoformat(day), *rest) for day, *rest in rows]


def find_first_account(db: Database, _: FindFirstAccount) -> str | None:
    """See OversightStore.first_account_id."""
    rows = db.all("SELECT id FROM accounts ORDER BY number LIMIT 1", {})
    return rows[0][0] if rows else None


def find_accounts(db: Database, command: FindAccounts) -> list[Account]:
    """See OversightStore.find_accounts."""
    # replace() is in both databases, and takes no letter of the text for a pattern.
    which = " AND (id = :text OR replace(lower(email), :text, '') <> lower(email))"
    rows = db.all(
        f"SELECT {ACCOUNT_COLUMNS} FROM accounts WHERE email <> ''{which if command.text else ''}"
        " ORDER BY number DESC LIMIT :limit OFFSET :skip",
        {"text": command.text.lower(), "limit": command.limit, "skip": command.skip},
    )
    return [account_of(row) for row in rows]
