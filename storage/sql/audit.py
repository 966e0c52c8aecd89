"""Transactions of the audit log, and the entries that other transactions add to it."""

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from uuid import uuid4

from mailprobe.storage.audit.commands import ReadAudit, RecordFailedSignIn, RecordSignIn
from mailprobe.storage.audit.records import AUDIT_KEPT, ENTRIES_MAX, Act, ActKind, Entry
from mailprobe.storage.columns import instant, micros
from mailprobe.storage.records import Actor
from mailprobe.storage.sql.database import Database, Row

TABLE = "audit_entries"
DELETION: ActKind = "account_deleted"  # the entry that stays of a deleted account
COLUMNS = (
    "id, at, kind, subject, name, prefix, changes, actor, actor_key, actor_prefix, address, times,"
    " on_account"
)
INSERT = (
    f"INSERT INTO {TABLE} (account, {COLUMNS}) VALUES (:account, :id, :at, :kind, :subject, :name,"
    " :prefix, :changes, :actor, :actor_key, :actor_prefix, :address, 1, :on_account)"
)
TRIM = (
    f"DELETE FROM {TABLE} WHERE account = :account AND kind = :kind AND (at, number) <="
    f" (SELECT at, number FROM {TABLE} WHERE account = :account AND kind = :kind"
    " ORDER BY at DESC, number DESC LIMIT 1 OFFSET :most)"
)
COUNTED_IN = timedelta(minutes=1)  # failed sign-ins of one client share an entry for so long


def add(db: Database, account: int, by: Actor, *acts: Act) -> None:
    """Write the entries of acts that this transaction does to the account with this number."""
    add_each(db, [(account, by, act) for act in acts])


def add_to(db: Database, account_id: str, by: Actor, *acts: Act) -> None:
    """The same for the account with this id. Raises KeyError if there is none."""
    found = db.all("SELECT number FROM accounts WHERE id = :id", {"id": account_id})
    if not found:
        raise KeyError(account_id)
    ((account,),) = found
    add(db, account, by, *acts)


def add_each(db: Database, entries: Sequence[tuple[int, Actor, Act]]) -> None:
    """Write entries of several accounts. Of each kind an account keeps the newest ENTRIES_MAX."""
    if not entries:
        return
    rows = [row for account, by, act in entries for row in _rows(db, account, by, act)]
    db.change_each(INSERT, rows)
    kinds = sorted({(row["account"], row["kind"]) for row in rows})
    most = {"most": ENTRIES_MAX}
    db.change_each(TRIM, [{"account": account, "kind": kind, **most} for account, kind in kinds])


def _rows(db: Database, account: int, by: Actor, act: Act) -> list[dict[str, object]]:
    """The entry of the account, and that of the operator who did it to another account."""
    if by.operator_id is None:
        return [_row(db, account, by, act)]
    numbers = {
        id: number
        for number, id in db.all(
            "SELECT number, id FROM accounts WHERE number = :number OR id = :id",
            {"number": account, "id": by.operator_id},
        )
    }
    own = numbers.get(by.operator_id)
    if own == account:
        return [_row(db, account, by, act)]
    theirs = [_row(db, account, Actor(by.kind), act)]
    if own is None:  # the operator's account was deleted by another one
        return theirs
    (on_account,) = (id for id, number in numbers.items() if number == account)
    # without the name: it is personal, and must go with the other account
    return [*theirs, _row(db, own, by, replace(act, name=None), on_account)]


def _row(
    db: Database, account: int, by: Actor, act: Act, on_account: str | None = None
) -> dict[str, object]:
    return {
        "account": account,
        "on_account": on_account,
        "id": str(uuid4()),
        "at": micros(db.now()),
        "kind": act.kind,
        "subject": act.subject,
        "name": act.name,
        "prefix": act.prefix,
        "changes": json.dumps(act.changes),
        "actor": by.kind,
        "actor_key": by.key_id,
        "actor_prefix": by.key_prefix,
        "address": by.address,
    }


def record_sign_in(db: Database, command: RecordSignIn) -> None:
    """See AuditStore.record_sign_in."""
    add_to(db, command.account_id, command.by, Act("signed_in"))


def record_failed_sign_in(db: Database, command: RecordFailedSignIn) -> None:
    """See AuditStore.record_failed_sign_in."""
    keys = db.all(
        "SELECT account, id, prefix FROM keys WHERE sha256 = :sha256", {"sha256": command.sha256}
    )
    which, values = "id = :id", {"id": command.account_id}
    act = Act("sign_in_failed")
    if keys:
        ((number, key_id, prefix),) = keys
        which, values = "number = :number", {"number": number}
        act = Act("sign_in_failed", key_id, prefix=prefix)
    # locked, so that two of one minute cannot both begin an entry
    found = db.all(
        f"SELECT number FROM accounts WHERE {which} AND email <> ''{db.FOR_UPDATE}", values
    )
    if not found:
        return
    ((account,),) = found
    counted = db.change(
        f"UPDATE {TABLE} SET times = times + 1 WHERE account = :account AND kind = :kind"
        " AND at > :since AND coalesce(address, '') = :address AND coalesce(subject, '') = :subject",
        {
            "account": account,
            "kind": act.kind,
            "since": micros(db.now() - COUNTED_IN),
            "address": command.by.address or "",
            "subject": act.subject or "",
        },
    )
    if not counted:
        add(db, account, command.by, act)


def read(db: Database, command: ReadAudit) -> list[Entry]:
    """See AuditStore.audit."""
    only = command.only
    values: dict[str, object] = {"id": command.account_id, "gone": micros(db.now() - AUDIT_KEPT)}
    where = ["account = (SELECT number FROM accounts WHERE id = :id)", "at > :gone"]
    if only.kind is not None:
        where.append("kind = :kind")
        values["kind"] = only.kind
    if only.since is not None:
        where.append("at >= :since")
        values["since"] = micros(only.since)
    if only.until is not None:
        where.append("at < :until")
        values["until"] = micros(only.until)
    if command.before is not None:
        where.append(
            f"(at, number) < (SELECT at, number FROM {TABLE} WHERE id = :before"
            " AND account = (SELECT number FROM accounts WHERE id = :id))"
        )
        values["before"] = command.before
    rows = db.all(
        f"SELECT {COLUMNS} FROM {TABLE} WHERE {' AND '.join(where)}"
        " ORDER BY at DESC, number DESC LIMIT :limit",
        {**values, "limit": command.limit},
    )
    return [_entry(row) for row in rows]


def _entry(row: Row) -> Entry:
    id, at, kind, subject, name, prefix, changes, actor, key_id, key_prefix, address, *rest = row
    times, on_account = rest
    changed = {name: (before, after) for name, (before, after) in json.loads(changes).items()}
    act = Act(kind, subject, name, prefix, changed)
    by = Actor(actor, key_id, key_prefix, address)
    return Entry(id, instant(at), act, by, times, on_account)
