"""Conversations about the newest answers of lists: kept for a day, those of a chunk together.

Limited for each account, in answers and octets, and in all; the oldest go first. What is packed is the
caller's format.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta

from msgspec import Struct

from ..base.columns import instant, micros
from ..database import Database, StorePart, read, write

CONVERSATIONS_KEPT = timedelta(hours=24)
ANSWERS_MAX = 20_000  # of an account
OCTETS_MAX = 50_000_000  # of an account; 20,000 answers have some 5 MB
ROWS_MAX = 20_000  # of all accounts: some 200 MB
TRIMMED_MAX = 1_000  # rows in one transaction
TABLE = "conversations"
SURPLUS = (  # of all accounts
    f"number <= (SELECT number FROM {TABLE} ORDER BY number DESC LIMIT 1 OFFSET :rows)"
)
OVER = (  # of an account: the first row that is too much, and those before it
    "account = :account AND number <= (SELECT max(number) FROM (SELECT number,"
    " sum(answers) OVER newest AS answers, sum(octets) OVER newest AS octets"
    f" FROM {TABLE} WHERE account = :account WINDOW newest AS (ORDER BY number DESC)) AS sums"
    " WHERE sums.answers > :answers_max OR sums.octets > :octets_max)"
)


class Conversations(Struct, frozen=True):
    """Those of some addresses of a chunk."""

    list_id: str
    place: int
    answers: int
    packed: bytes


def keep_conversations(db: Database, kept: Sequence[Conversations]) -> None:
    """Keep these for CONVERSATIONS_KEPT, or until the account has newer ones; not those of a list
    that is gone.
    """
    now = micros(db.now())
    accounts: set[int] = set()
    for each in kept:
        rows = db.all(
            f"INSERT INTO {TABLE} (account, list, place, at, answers, octets, packed)"
            " SELECT account, number, :place, :now, :answers, :octets, :packed FROM lists"
            " WHERE id = :id RETURNING account",
            {
                "id": each.list_id, "place": each.place, "now": now, "answers": each.answers,
                "octets": len(each.packed), "packed": each.packed,
            },
        )  # fmt: skip
        accounts.update(account for (account,) in rows)
    for account in sorted(accounts):
        bounds = {"account": account, "answers_max": ANSWERS_MAX, "octets_max": OCTETS_MAX}
        db.delete_some(TABLE, OVER, bounds, TRIMMED_MAX)


def conversations_at(db: Database, list_id: str, place: int) -> list[tuple[datetime, bytes]]:
    """Return what is kept of a chunk, the newest first, with when it was kept."""
    rows = db.all(
        f"SELECT at, packed FROM {TABLE} WHERE list = (SELECT number FROM lists WHERE id = :id)"
        " AND place = :place AND at > :since ORDER BY number DESC",
        {"id": list_id, "place": place, "since": micros(db.now() - CONVERSATIONS_KEPT)},
    )
    return [(instant(at), bytes(packed)) for at, packed in rows]


def drop_of_list(db: Database, number: int) -> bool:
    """Delete some of a list's; whether there may be more."""
    return db.delete_some(TABLE, "list = :list", {"list": number}, TRIMMED_MAX) == TRIMMED_MAX


class ConversationStore(StorePart):
    """The part of the store that keeps conversations."""

    keep_conversations = write(keep_conversations)
    conversations_at = read(conversations_at)
