"""What the operator of a service sees of it: its reputation with mail hosts, its accounts."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, timedelta

from mailprobe.storage.base.checks import at_most
from mailprobe.storage.base.columns import ACCOUNT_COLUMNS, account_of
from mailprobe.storage.contract import LISTED_MAX
from mailprobe.storage.database import Database
from mailprobe.storage.records import Account
from mailprobe.storage.store_part import StorePart
from mailprobe.storage.transaction import read, write

KEPT_MAX = timedelta(days=400)


@dataclass(frozen=True, slots=True)
class ReputationDay:
    """What one operator's mail hosts answered on one UTC day, by number of addresses."""

    day: date
    operator: str  # empty: of a version that did not tell them apart
    answers: int
    refused: int  # of them: the host refused because of this machine


def count_reputation(db: Database, counted: Sequence[ReputationDay]) -> None:
    """Add to the counts of days; forget what is older than KEPT_MAX."""
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
            for each in counted
        ],
    )
    for day in {each.day for each in counted}:
        oldest = day - KEPT_MAX
        db.change("DELETE FROM reputation WHERE day < :oldest", {"oldest": oldest.isoformat()})


def reputation(db: Database, first: date) -> list[ReputationDay]:
    """Return the days with answers from `first` on, in order, each by operator."""
    rows = db.all(
        "SELECT day, operator, answers, refused FROM reputation WHERE day >= :first"
        " ORDER BY day, operator",
        {"first": first.isoformat()},
    )
    return [ReputationDay(date.fromisoformat(day), *rest) for day, *rest in rows]


def first_account_id(db: Database) -> str | None:
    """Return the id of the account that was created first, deleted or not; it never changes."""
    rows = db.all("SELECT id FROM accounts ORDER BY number LIMIT 1", {})
    return rows[0][0] if rows else None


def find_accounts(db: Database, text: str = "", *, skip: int = 0, limit: int) -> list[Account]:
    """Return accounts that are not deleted, newest first, at most LISTED_MAX.

    With `text` those of this id, and those whose e-mail address contains it in whatever
    case: that reads all accounts.
    """
    # replace() is in both databases, and takes no letter of the text for a pattern.
    which = " AND (id = :text OR replace(lower(email), :text, '') <> lower(email))"
    rows = db.all(
        f"SELECT {ACCOUNT_COLUMNS} FROM accounts WHERE email <> ''{which if text else ''}"
        " ORDER BY number DESC LIMIT :limit OFFSET :skip",
        {"text": text.lower(), "limit": at_most(LISTED_MAX, limit), "skip": max(0, skip)},
    )
    return [account_of(row) for row in rows]


class OversightStore(StorePart):
    """The part of the store that the operator looks at."""

    count_reputation = write(count_reputation)
    reputation = read(reputation)
    first_account_id = read(first_account_id)
    find_accounts = read(find_accounts)
