"""Messages that must arrive. A message that another transaction holds is skipped."""

from datetime import datetime, timedelta

from .base.columns import MESSAGE_COLUMNS, MESSAGE_FIELDS, message_of, micros
from .commands import EnqueueMessage
from .contract import LISTED_MAX, at_most
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
    extended = db.change(
        f"UPDATE outbox SET lease_until = :until WHERE {CLAIMED} AND lease_until > :now",
        {
            **_claimed(message),
            "until": micros(now + timedelta(seconds=lease_s)),
            "now": micros(now),
        },
    )
    return bool(extended)


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
    changed = db.change(
        "UPDATE outbox SET tries = tries + 1, due_at = :due_at, sent_at = :sent_at, error = :error,"
        f" lease_until = NULL WHERE {CLAIMED} AND lease_until IS NOT NULL",
        {
            **_claimed(message),
            "due_at": due_at and micros(due_at),
            "sent_at": micros(db.now()) if sent else None,
            "error": error,
        },
    )
    return bool(changed)


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
