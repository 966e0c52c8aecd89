"""Transactions of the reputation with mail hosts."""

from datetime import date

from mailprobe.storage.reputation import (
    KEPT_MAX,
    CountReputation,
    ReadReputation,
    ReputationDay,
)
from mailprobe.storage.sql.database import Database


def count(db: Database, command: CountReputation) -> None:
    """See ReputationStore.count_reputation."""
    counted = command.counted
    db.change(
        "INSERT INTO reputation (day, answers, refused) VALUES (:day, :answers, :refused)"
        " ON CONFLICT (day) DO UPDATE SET answers = reputation.answers + excluded.answers,"
        " refused = reputation.refused + excluded.refused",
        {
            "day": counted.day.isoformat(),
            "answers": counted.answers,
            "refused": counted.refused,
        },
    )
    oldest = counted.day - KEPT_MAX
    db.change("DELETE FROM reputation WHERE day < :oldest", {"oldest": oldest.isoformat()})


def read(db: Database, command: ReadReputation) -> list[ReputationDay]:
    """See ReputationStore.reputation."""
    rows = db.all(
        "SELECT day, answers, refused FROM reputation WHERE day >= :first ORDER BY day",
        {"first": command.first.isoformat()},
    )
    return [ReputationDay(date.fromisoformat(day), *counts) for day, *counts in rows]
