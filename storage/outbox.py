"""Messages that must arrive. A message that another transaction holds is skipped."""

from collections.abc import Sequence
from datetime import datetime, timedelta

from .base.columns import MESSAGE_COLUMNS, MESSAGE_FIELDS, message_of, micros
from .commands import EnqueueMessage
from .contract import LISTED_MAX, METER_REST_S, METER_SLOT_S, at_most
from .database import Database, StorePart, read, write
from .records import MessageKind, OutboxMessage

DUE = "kind = :kind AND due_at <= :now AND (lease_until IS NULL OR lease_until <= :now)"
CLAIMED = (
    "kind = :kind AND name = :name AND account = (SELECT number FROM accounts WHERE id = :account)"
    " AND fence = :fence"
)
ACCOUNT = "(SELECT id FROM accounts WHERE accounts.number = outbox.account)"
CLAIMED_FIELDS = ", ".join(
    ACCOUNT if name == "account_id" else f"outbox.{name}" for name in MESSAGE_FIELDS[1:]
)


def is_due(db: Database, kind: MessageKind) -> bool:
    """Return whether a claim would take any message."""
    values = {"kind": kind, "now": micros(db.now())}
    return bool(db.all(f"SELECT 1 FROM outbox WHERE {DUE} LIMIT 1", values))


def claim(db: Database, kind: MessageKind, *, limit: int, lease_s: float) -> list[OutboxMessage]:
    """Claim due messages for `lease_s`, those due longest first."""
    now = db.now()
    rows = db.all(
        "WITH due AS MATERIALIZED ("
        f"SELECT number FROM outbox WHERE {DUE} ORDER BY due_at, number"
        f" LIMIT :limit{db.SKIP_LOCKED})"
        " UPDATE outbox SET lease_until = :until, fence = fence + 1,"
        " first_tried_at = coalesce(first_tried_at, :now)"
        " FROM due WHERE outbox.number = due.number"
        f" RETURNING outbox.due_at, outbox.number, {CLAIMED_FIELDS}",
        {
            "kind": kind,
            "now": micros(now),
            "until": micros(now + timedelta(seconds=lease_s)),
            "limit": max(0, limit),
        },
    )
    return [message_of(row[2:]) for row in sorted(rows, key=lambda row: row[:2])]


def extend_message(db: Database, message: OutboxMessage, *, lease_s: float) -> bool:
    """Let the claim end `lease_s` from now; False if it has ended or another claim has the message."""
    now = db.now()
    return bool(
        db.change(
            f"UPDATE outbox SET lease_until = :until WHERE {CLAIMED} AND lease_until > :now",
            {
                **_claimed(message),
                "until": micros(now + timedelta(seconds=lease_s)),
                "now": micros(now),
            },
        )
    )


def check_sent(sent: bool, due_at: datetime | None) -> None:
    """Raise ValueError if a message is both sent and due again."""
    if sent and due_at is not None:
        raise ValueError("a message that was sent is not due again")


def message_attempted(
    db: Database,
    message: OutboxMessage,
    *,
    sent: bool,
    due_at: datetime | None,
    error: str | None = None,
) -> bool:
    """Record the result of sending: sent, due again at `due_at`, or given up (None).

    False, and nothing is changed, if a later claim has the message or this one has had
    its outcome. Raises ValueError for a message that is both sent and due again.
    """
    check_sent(sent, due_at)
    return bool(
        db.change(
            "UPDATE outbox SET tries = tries + 1, due_at = :due_at, sent_at = :sent_at, error = :error,"
            f" lease_until = NULL WHERE {CLAIMED} AND lease_until IS NOT NULL",
            {
                **_claimed(message),
                "due_at": due_at and micros(due_at),
                "sent_at": micros(db.now()) if sent else None,
                "error": error,
            },
        )
    )


def _claimed(message: OutboxMessage) -> dict[str, object]:
    return {
        "kind": message.kind,
        "name": message.name,
        "account": message.account_id,
        "fence": message.fence,
    }


def list_messages(
    db: Database, kind: MessageKind, *, account_id: str | None = None, limit: int
) -> list[OutboxMessage]:
    """Return messages newest first, at most LISTED_MAX; None stands for any account."""
    of_account = ""
    if account_id is not None:
        of_account = " AND outbox.account = (SELECT number FROM accounts WHERE id = :account)"
    rows = db.all(
        f"SELECT {MESSAGE_COLUMNS} FROM outbox JOIN accounts ON accounts.number = outbox.account"
        f" WHERE kind = :kind{of_account} ORDER BY outbox.number DESC LIMIT :limit",
        {"kind": kind, "account": account_id, "limit": at_most(LISTED_MAX, limit)},
    )
    return [message_of(row) for row in rows]


def enqueue(db: Database, now: datetime, those: Sequence[tuple[EnqueueMessage, int]]) -> list[bool]:
    """Insert messages of accounts, by number; for each whether it is new."""
    return [
        bool(
            db.change(
                "INSERT INTO outbox (kind, account, name, body, count, made_at, due_at)"
                " VALUES (:kind, :account, :name, :body, 0, :now, :due_at) ON CONFLICT DO NOTHING",
                {
                    "kind": each.kind, "account": account, "name": each.name, "body": each.body,
                    "now": micros(now), "due_at": micros(each.due_at),
                },
            )
        )
        for each, account in those
    ]  # fmt: skip


# Of an account's messages to the meter: that of a slot which is closed, as it was claimed.
CLOSED = "FROM outbox AS {0} WHERE {0}.kind = 'meter' AND {0}.account = metered.account AND {0}.fence > 0"


def raise_meters(metered: str) -> str:
    """SQL that adds to counts of the billing meter; `metered` is SQL of a table (account, count).

    Each goes to the account's first open slot from `:slot` on: itself, or the one after the last of
    its consecutive closed slots. After a clock was set back a day there are thousands: so that is
    one statement, not one per slot. Names compare as text: they have ten digits until the year 2286.
    If another transaction claims a message between the read and the write, its count is null, which
    the column forbids: the transaction is rolled back and repeated.
    """
    one, following, same = (CLOSED.format(name) for name in ("one", "following", "same"))
    after = f"CAST(one.name AS bigint) + {METER_SLOT_S}"
    return (
        "INSERT INTO outbox (kind, account, name, body, count, made_at, due_at)"
        " SELECT 'meter', account, CAST(slot AS text), :body, count, :now,"
        f" (slot + {METER_SLOT_S + METER_REST_S}) * 1000000"
        " FROM (SELECT metered.account AS account, metered.count AS count,"
        f" coalesce((SELECT {after} {one} AND one.name >= :name"
        f" AND NOT EXISTS (SELECT 1 {following} AND following.name = CAST({after} AS text))"
        f" AND EXISTS (SELECT 1 {same} AND same.name = :name)"
        " ORDER BY one.name LIMIT 1), CAST(:slot AS bigint)) AS slot"
        f" FROM {metered} AS metered) AS raised WHERE true"
        " ON CONFLICT (kind, account, name) DO UPDATE"
        " SET count = CASE WHEN outbox.fence = 0 THEN outbox.count + excluded.count END"
    )


def metering(now: datetime) -> dict[str, object]:
    """The values of `raise_meters`."""
    slot = int(now.timestamp()) // METER_SLOT_S * METER_SLOT_S
    return {"now": micros(now), "slot": slot, "name": str(slot), "body": b""}


class OutboxStore(StorePart):
    """The part of the store that keeps messages."""

    extend_message = write(extend_message)
    message_attempted = write(message_attempted)
    messages = read(list_messages)

    async def enqueue_message(
        self, kind: MessageKind, account_id: str, name: str, body: bytes, *, due_at: datetime
    ) -> bool:
        """Store a message; False if one of this kind, account and name is stored already.

        Raises KeyError if there is no such account.
        """
        return await self._execute(EnqueueMessage(account_id, kind, name, body, due_at))

    async def claim_messages(
        self, kind: MessageKind, *, limit: int, lease_s: float
    ) -> list[OutboxMessage]:
        """Claim due messages for `lease_s`, those due longest first. Like `claim_jobs`.

        `first_tried_at` is the instant of the first claim.
        """
        if not await self.executor.read(is_due, kind):
            return []  # before the write: an idle worker must not take the lock
        return await self.executor.write(claim, kind, limit=limit, lease_s=lease_s)
