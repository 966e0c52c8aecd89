"""Transactions of accounts and keys."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from uuid import uuid4

from mailprobe.storage import audit
from mailprobe.storage.audit import Act, ActKind
from mailprobe.storage.base.columns import (
    ACCOUNT_COLUMNS,
    ACCOUNT_FIELDS,
    KEY_COLUMNS,
    account_of,
    column,
    key_of,
    micros,
    origins_column,
)
from mailprobe.storage.commands import (
    ChangeAccount,
    CreateAccount,
    CreateFirstAccount,
    CreateKey,
    FindAccount,
    FindAccountOfCustomer,
    IsFormOrigin,
    ListAccounts,
    ListKeys,
    RevokeKey,
)
from mailprobe.storage.database import Database, NotUnique
from mailprobe.storage.list_jobs import lists
from mailprobe.storage.records import Account, Key

# What the entries of a change are called, by the fields that they are about.
CHANGES: Mapping[ActKind, Sequence[str]] = {
    "plan_changed": ("tier", "subscription_status"),
    "caps_changed": ("soft_cap_micros", "hard_cap_micros"),
    "alerts_changed": ("alerts",),
}


def create_account(db: Database, command: CreateAccount) -> Account:
    """Insert an account with a new UUID."""
    account = Account(str(uuid4()), command.email, command.tier, db.now())
    places = ", ".join(f":{name}" for name in ACCOUNT_FIELDS)
    db.change(
        f"INSERT INTO accounts ({', '.join(ACCOUNT_FIELDS)}) VALUES ({places})",
        {name: column(getattr(account, name)) for name in ACCOUNT_FIELDS},
    )
    act = Act("account_created", changes={"tier": (None, command.tier)})
    audit.add_to(db, account.id, command.by, act)
    return account


def create_first_account(db: Database, command: CreateFirstAccount) -> Account | None:
    """Insert an account with its keys; None if there is an account."""
    db.lock_accounts()
    if db.all("SELECT 1 FROM accounts LIMIT 1", {}):
        return None
    account = create_account(db, CreateAccount(command.email, command.tier, command.by))
    ((number,),) = db.all("SELECT number FROM accounts WHERE id = :id", {"id": account.id})
    for each in command.key_commands(account.id):
        insert_key(db, number, new_key(each, account.created_at), each)
    return account


def find_account(db: Database, command: FindAccount) -> Account | None:
    rows = db.all(
        f"SELECT {ACCOUNT_COLUMNS} FROM accounts WHERE id = :id", {"id": command.account_id}
    )
    return account_of(rows[0]) if rows else None


def list_accounts(db: Database, _: ListAccounts) -> list[Account]:
    rows = db.all(f"SELECT {ACCOUNT_COLUMNS} FROM accounts ORDER BY number", {})
    return [account_of(row) for row in rows]


def account_of_customer(db: Database, command: FindAccountOfCustomer) -> Account | None:
    rows = db.all(
        f"SELECT {ACCOUNT_COLUMNS} FROM accounts WHERE customer_id = :id",
        {"id": command.customer_id},
    )
    return account_of(rows[0]) if rows else None


def change_account(db: Database, command: ChangeAccount) -> Account | None:
    """Set the named fields; None if there is no such account. Raises ValueError for a taken customer_id."""
    which = {"account_id": command.account_id}
    found = db.all(
        f"SELECT number, {ACCOUNT_COLUMNS} FROM accounts WHERE id = :account_id{db.FOR_UPDATE}",
        which,
    )
    if not found:
        return None
    if command.changes:
        sets = ", ".join(f"{name} = :{name}" for name in command.changes)  # see check_changes()
        values = {name: column(value) for name, value in command.changes.items()}
        try:
            db.change(f"UPDATE accounts SET {sets} WHERE id = :account_id", {**values, **which})
        except NotUnique:
            raise ValueError("another account has this customer_id") from None
    ((number, *before),) = found
    audit.add(db, number, command.by, *_acts_of(account_of(tuple(before)), command.changes))
    return find_account(db, FindAccount(command.account_id))


def _acts_of(before: Account, changes: Mapping[str, object]) -> list[Act]:
    """The acts of a change of an account: one for each kind, with what is other than before."""
    acts = []
    for kind, names in CHANGES.items():
        changed = {
            name: (getattr(before, name), changes[name])
            for name in names
            if name in changes and changes[name] != getattr(before, name)
        }
        if changed:
            acts.append(Act(kind, changes=changed))
    return acts


def new_key(command: CreateKey, now: datetime) -> Key:
    """Return the key with a new UUID."""
    return Key(
        str(uuid4()), command.account_id, command.kind, command.label, command.prefix, now,
        origins=command.origins, rate_per_min=command.rate_per_min, made_by=command.by.kind,
    )  # fmt: skip


def creation_of(key: Key) -> Act:
    return Act("key_created", key.id, key.label, key.prefix)


def insert_key(db: Database, account: int, key: Key, command: CreateKey) -> None:
    """Insert a key of the account with this number. Raises NotUnique for a known hash."""
    db.change(
        "INSERT INTO keys (id, account, kind, label, prefix, sha256, created_at, origins,"
        " rate_per_min, made_by) VALUES (:id, :account, :kind, :label, :prefix, :sha256,"
        " :created_at, :origins, :rate_per_min, :made_by)",
        {
            "id": key.id,
            "account": account,
            "kind": key.kind,
            "label": key.label,
            "prefix": key.prefix,
            "sha256": command.sha256,
            "created_at": micros(key.created_at),
            "origins": origins_column(key.origins),
            "rate_per_min": key.rate_per_min,
            "made_by": key.made_by,
        },
    )
    audit.add(db, account, command.by, creation_of(key))


def list_keys(db: Database, command: ListKeys) -> list[Key]:
    """Return the account's active keys, oldest first."""
    rows = db.all(
        f"SELECT {KEY_COLUMNS} FROM accounts JOIN keys ON keys.account = accounts.number"
        " WHERE accounts.id = :id AND revoked_at IS NULL ORDER BY keys.number",
        {"id": command.account_id},
    )
    return [key_of(row) for row in rows]


def is_form_origin(db: Database, command: IsFormOrigin) -> bool:
    """Whether an active publishable key names this origin."""
    # An index has the origins of these keys alone: few, so reading them all takes microseconds.
    # replace() is in both databases, and takes no letter of the origin for a pattern.
    rows = db.all(
        "SELECT 1 FROM keys WHERE origins IS NOT NULL AND revoked_at IS NULL"
        " AND replace(' ' || origins || ' ', ' ' || :origin || ' ', '') <> ' ' || origins || ' '"
        " LIMIT 1",
        {"origin": command.origin},
    )
    return bool(rows)


def revoke_key(db: Database, command: RevokeKey) -> bool:
    """Revoke an active key, and pause its lists; False if the account has none with this id."""
    of_account = " AND account = (SELECT number FROM accounts WHERE id = :account)"
    found = db.all(
        "SELECT account, label, prefix FROM keys WHERE id = :key AND revoked_at IS NULL"
        + (of_account if command.account_id is not None else "")
        + db.FOR_UPDATE,
        {"key": command.key_id, "account": command.account_id},
    )
    for account, label, prefix in found:
        db.change(
            "UPDATE keys SET revoked_at = :now WHERE id = :key",
            {"now": micros(db.now()), "key": command.key_id},
        )
        act = Act("key_revoked", command.key_id, label, prefix)
        audit.add(db, account, command.by, act)
    lists.pause_of_key(db, command.key_id)
    return bool(found)
