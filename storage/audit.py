"""The audit log: who did what to an account, when, and from where.

A method with `by` writes the entry of its act in the act's own transaction, and another one in the log
of an operator who did it to another account. Nothing changes an entry; it is deleted after AUDIT_KEPT,
with its account, or when its account has ENTRIES_MAX newer ones of its kind. An entry never has a
secret: keys are named by their id and their first characters.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Literal
from uuid import uuid4

from msgspec import Struct, field
from msgspec.structs import replace

from .base.columns import instant, micros
from .callers import number_of
from .contract import LISTED_MAX, at_most
from .database import Database, Row, StorePart, read, write
from .records import Actor

AUDIT_KEPT = timedelta(days=90)  # by then an address may be another person's
# Of an account and a kind, the newest: with each kind, 40 MB an account. The kinds are counted
# apart, so that no number of sign-ins or of changed caps removes the entry of a revoked key.
ENTRIES_MAX = 10_000

ActKind = Literal[
    "account_created", "account_deleted", "plan_changed", "caps_changed", "alerts_changed",
    "key_created", "key_revoked", "list_deleted", "lists_paused", "lists_unpaused",
    "egress_paused", "egress_resumed", "person_invited", "role_changed", "person_removed", "signed_in", "signed_out", "sign_in_failed",
]  # fmt: skip


class Act(Struct, frozen=True):
    """What was done. `changes` has the fields of Account that changed: before, and after."""

    kind: ActKind
    subject: str | None = None  # the id of the key, the list or the person, the name of the egress
    name: str | None = None  # the key's label, the list's name, the person's e-mail address
    prefix: str | None = None  # the key's first characters
    changes: Mapping[str, tuple[object, object]] = field(default_factory=dict)


class Entry(Struct, frozen=True):
    """An entry of an account's audit log."""

    id: str  # uuid
    at: datetime
    act: Act
    by: Actor
    times: int = 1  # failed sign-ins of one client within a minute share an entry
    on_account: str | None = None  # by its id: the other one that the operator did it to


class EntryFilter(Struct, frozen=True):
    """Which entries to read."""

    kind: ActKind | None = None
    since: datetime | None = None
    until: datetime | None = None  # and before it


EVERY_ENTRY = EntryFilter()
TABLE = "audit_entries"
DELETION: ActKind = "account_deleted"  # the entry that stays of a deleted account
COLUMNS = (
    "id, at, kind, subject, name, prefix, changes, actor, actor_key, actor_prefix, address, times,"
    " on_account, actor_person"
)
INSERT = (
    f"INSERT INTO {TABLE} (account, {COLUMNS}) VALUES (:account, :id, :at, :kind, :subject, :name,"
    " :prefix, :changes, :actor, :actor_key, :actor_prefix, :address, 1, :on_account,"
    " :actor_person)"
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
    add(db, number_of(db, account_id), by, *acts)


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
        "actor_person": by.person,
        "address": by.address,
    }


def record_failed_sign_in(db: Database, sha256: str, account_id: str | None, by: Actor) -> None:
    """Record a sign-in that was refused, with the key of this SHA-256.

    It is recorded for the key's account, which may be revoked or of another kind, else for
    the account that this browser has signed in to before; for a stranger nothing is recorded.
    Those of one client within a minute share an entry.
    """
    keys = db.all("SELECT account, id, prefix FROM keys WHERE sha256 = :sha256", {"sha256": sha256})
    which, values = "id = :id", {"id": account_id}
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
            "address": by.address or "",
            "subject": act.subject or "",
        },
    )
    if not counted:
        add(db, account, by, act)


def read_entries(
    db: Database,
    account_id: str,
    only: EntryFilter = EVERY_ENTRY,
    *,
    before: str | None = None,
    limit: int = LISTED_MAX,
) -> list[Entry]:
    """Return entries newest first, at most LISTED_MAX; with `before`, those older than this one.

    Empty for an unknown `before`: the older ones went with it.
    """
    since, until = (at and micros(at) for at in (only.since, only.until))
    account = "account = (SELECT number FROM accounts WHERE id = :id)"
    conditions = {
        "kind = :kind": only.kind,
        "at >= :since": since,
        "at < :until": until,
        f"(at, number) < (SELECT at, number FROM {TABLE} WHERE id = :before AND {account})": before,
    }
    asked = [words for words, value in conditions.items() if value is not None]
    rows = db.all(
        f"SELECT {COLUMNS} FROM {TABLE} WHERE {' AND '.join([account, 'at > :gone', *asked])}"
        " ORDER BY at DESC, number DESC LIMIT :limit",
        {
            "id": account_id, "gone": micros(db.now() - AUDIT_KEPT), "kind": only.kind,
            "since": since, "until": until, "before": before, "limit": at_most(LISTED_MAX, limit),
        },
    )  # fmt: skip
    return [_entry(row) for row in rows]


def _entry(row: Row) -> Entry:
    id, at, kind, subject, name, prefix, changes, actor, key_id, key_prefix, address, *rest = row
    times, on_account, person = rest
    changed = {name: (before, after) for name, (before, after) in json.loads(changes).items()}
    act = Act(kind, subject, name, prefix, changed)
    by = Actor(actor, key_id, key_prefix, address, person=person)
    return Entry(id, instant(at), act, by, times, on_account)


class AuditStore(StorePart):
    """The part of the store that keeps the audit log of each account."""

    record_failed_sign_in = write(record_failed_sign_in)
    audit = read(read_entries)
