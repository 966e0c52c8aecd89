"""Transactions of the outbox. A message that another transaction holds is skipped."""

from datetime import timedelta

from mailprobe.storage.base.columns import MESSAGE_COLUMNS, MESSAGE_FIELDS, message_of, micros
from mailprobe.storage.commands import ClaimMessages, ExtendMessage, ListMessages, MessageAttempted
from mailprobe.storage.database import Database
from mailprobe.storage.records import OutboxMessage

DUE = "kind = :kind AND due_at <= :now AND (lease_until IS NULL OR lease_until <= :now)"
CLAIMED = (
    "kind = :kind AND name = :name AND account = (SELECT number FROM accounts WHERE id = :account)"
    " AND fence = :fence"
)
ACCOUNT = "(SELECT id FROM accounts WHERE accounts.number = outbox.account)"
CLAIMED_FIELDS = ", ".join(
    ACCOUNT if name == "account_id" else f"outbox.{name}" for name in MESSAGE_FIELDS[1:]
)


def is_due(db: Database, command: ClaimMessages) -> bool:
    """Return whether a claim would take any message."""
    values = {"kind": command.kind, "now": micros(db.now())}
    return bool(db.all(f"SELECT 1 FROM outbox WHERE {DUE} LIMIT 1", values))


def claim(db: Database, command: ClaimMessages) -> list[OutboxMessage]:
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
            "kind": command.kind,
            "now": micros(now),
            "until": micros(now + timedelta(seconds=command.lease_s)),
            "limit": max(0, command.limit),
        },
    )
    return [message_of(row[2:]) for row in sorted(rows, key=lambda row: row[:2])]


def extend(db: Database, command: ExtendMessage) -> bool:
    """Let the claim end `lease_s` from now; False if it has ended."""
    now = db.now()
    extended = db.change(
        f"UPDATE outbox SET lease_until = :until WHERE {CLAIMED} AND lease_until > :now",
        {
            **_claimed(command.message),
            "until": micros(now + timedelta(seconds=command.lease_s)),
            "now": micros(now),
        },
    )
    return bool(extended)


def attempted(db: Database, command: MessageAttempted) -> bool:
    """Record the result of sending; False if the claim does not count."""
    changed = db.change(
        "UPDATE outbox SET tries = tries + 1, due_at = :due_at, sent_at = :sent_at, error = :error,"
        f" lease_until = NULL WHERE {CLAIMED} AND lease_until IS NOT NULL",
        {
            **_claimed(command.message),
            "due_at": command.due_at and micros(command.due_at),
            "sent_at": micros(db.now()) if command.sent else None,
            "error": command.error,
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


def list_messages(db: Database, command: ListMessages) -> list[OutboxMessage]:
    """Return messages newest first, at most LISTED_MAX."""
    of_account = ""
    if command.account_id is not None:
        of_account = " AND outbox.account = (SELECT number FROM accounts WHERE id = :account)"
    rows = db.all(
        f"SELECT {MESSAGE_COLUMNS} FROM outbox JOIN accounts ON accounts.number = outbox.account"
        f" WHERE kind = :kind{of_account} ORDER BY outbox.number DESC LIMIT :limit",
        {"kind": command.kind, "account": command.account_id, "limit": command.limit},
    )
    return [message_of(row) for row in rows]
