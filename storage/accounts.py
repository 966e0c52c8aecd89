"""Accounts and their keys: the contract, and the SQL that both databases share."""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from uuid import uuid4

from msgspec import Struct
from msgspec.structs import fields

from . import audit
from .audit import Act, ActKind
from .base.columns import (
    ACCOUNT_COLUMNS,
    ACCOUNT_FIELDS,
    KEY_COLUMNS,
    account_of,
    column,
    instant,
    key_of,
    micros,
    origins_column,
)
from .commands import CreateKey, Raised
from .contract import (
    KEY_USE_EVERY,
    LISTED_MAX,
    WINDOW,
    KeyCreationTooFast,
    KeyLimitReached,
    at_most,
)
from .database import Database, JobMove, NotUnique, StorePart, encoded, read, write
from .idempotency import encrypting
from .list_jobs import lists
from .records import (
    SERVICE,
    Account,
    Actor,
    Answered,
    Caller,
    IdempotencyRecord,
    Key,
    KeyKind,
    Tier,
)
from .retention import JOBS_TIDIED_MAX, drop

# What the entries of a change are called, by the fields that they are about.
CHANGES: Mapping[ActKind, Sequence[str]] = {
    "plan_changed": ("tier", "subscription_status"),
    "caps_changed": ("soft_cap_micros", "hard_cap_micros"),
    "alerts_changed": ("alerts",),
}
CHANGEABLE = {field.name for field in fields(Account)} - {"id", "created_at"}
KEYS_NOTED_MAX = 500  # in one transaction: some milliseconds, so that no request waits long


class NewKey(Struct, frozen=True):
    """A key to store with its account, by its SHA-256."""

    kind: KeyKind
    sha256: str
    prefix: str


def create_account(db: Database, email: str, tier: Tier, *, by: Actor = SERVICE) -> Account:
    """Create an account with a new UUID and return it. E-mail addresses need not be unique."""
    account = Account(str(uuid4()), email, tier, db.now())
    places = ", ".join(f":{name}" for name in ACCOUNT_FIELDS)
    db.change(
        f"INSERT INTO accounts ({', '.join(ACCOUNT_FIELDS)}) VALUES ({places})",
        {name: column(getattr(account, name)) for name in ACCOUNT_FIELDS},
    )
    act = Act("account_created", changes={"tier": (None, tier)})
    audit.add_to(db, account.id, by, act)
    return account


def create_first_account(
    db: Database, email: str, tier: Tier, keys: Sequence[NewKey], *, by: Actor = SERVICE
) -> Account | None:
    """Create an account with these keys; None, and nothing is created, if there is an account."""
    db.lock_accounts()
    if db.all("SELECT 1 FROM accounts LIMIT 1", {}):
        return None
    account = create_account(db, email, tier, by=by)
    ((number,),) = db.all("SELECT number FROM accounts WHERE id = :id", {"id": account.id})
    for new in keys:
        key = Key(
            str(uuid4()), account.id, new.kind, None, new.prefix, account.created_at,
            made_by=by.kind,
        )  # fmt: skip
        insert_key(db, number, key, new.sha256, by)
    return account


def find_account(db: Database, account_id: str) -> Account | None:
    """Return the account, or None if there is none with this id."""
    rows = db.all(f"SELECT {ACCOUNT_COLUMNS} FROM accounts WHERE id = :id", {"id": account_id})
    return account_of(rows[0]) if rows else None


def list_accounts(db: Database) -> list[Account]:
    """Return all accounts, oldest first."""
    rows = db.all(f"SELECT {ACCOUNT_COLUMNS} FROM accounts ORDER BY number", {})
    return [account_of(row) for row in rows]


def account_of_customer(db: Database, customer_id: str) -> Account | None:
    """Return the account with this customer id of the billing provider, or None."""
    rows = db.all(
        f"SELECT {ACCOUNT_COLUMNS} FROM accounts WHERE customer_id = :id",
        {"id": customer_id},
    )
    return account_of(rows[0]) if rows else None


def change_account(
    db: Database, /, account_id: str, *, by: Actor = SERVICE, **changes: object
) -> Account | None:
    """Set fields of Account by name and return the account; None if there is no such account.

    Raises TypeError for a name that is not a field, or one that never changes
    (`id`, `created_at`), ValueError for a `customer_id` that another account has.
    """
    check_changes(changes)
    which = {"account_id": account_id}
    found = db.all(
        f"SELECT number, {ACCOUNT_COLUMNS} FROM accounts WHERE id = :account_id{db.FOR_UPDATE}",
        which,
    )
    if not found:
        return None
    if changes:
        sets = ", ".join(f"{name} = :{name}" for name in changes)  # see check_changes()
        values = {name: column(value) for name, value in changes.items()}
        try:
            db.change(f"UPDATE accounts SET {sets} WHERE id = :account_id", {**values, **which})
        except NotUnique:
            raise ValueError("another account has this customer_id") from None
    ((number, *before),) = found
    audit.add(db, number, by, *_acts_of(account_of(tuple(before)), changes))
    return find_account(db, account_id)


def check_changes(changes: dict[str, object]) -> None:
    """Raise TypeError if a name is not a changeable field of Account."""
    fixed = changes.keys() - CHANGEABLE
    if fixed:
        raise TypeError(f"an account has no {', '.join(sorted(fixed))} to change")


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


def next_key_at(made: Sequence[datetime], keys_per_minute_max: int) -> datetime | None:
    """Return when the next key may be created; None if at once.

    `made` are the instants of the keys created within the last minute.
    """
    if len(made) < keys_per_minute_max:
        return None
    return sorted(made)[len(made) - keys_per_minute_max] + WINDOW


def _new_key(command: CreateKey, now: datetime) -> Key:
    """Return the key with a new UUID."""
    return Key(
        str(uuid4()), command.account_id, command.kind, command.label, command.prefix, now,
        origins=command.origins, rate_per_min=command.rate_per_min, made_by=command.by.kind,
    )  # fmt: skip


def insert_key(db: Database, account: int, key: Key, sha256: str, by: Actor) -> None:
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
            "sha256": sha256,
            "created_at": micros(key.created_at),
            "origins": origins_column(key.origins),
            "rate_per_min": key.rate_per_min,
            "made_by": key.made_by,
        },
    )
    audit.add(db, account, by, Act("key_created", key.id, key.label, key.prefix))


def list_keys(db: Database, account_id: str) -> list[Key]:
    """Return the account's active keys of all kinds but those of people, oldest first."""
    rows = db.all(
        f"SELECT {KEY_COLUMNS} FROM accounts JOIN keys ON keys.account = accounts.number"
        " WHERE accounts.id = :id AND revoked_at IS NULL AND kind <> 'person' ORDER BY keys.number",
        {"id": account_id},
    )
    return [key_of(row) for row in rows]


def is_form_origin(db: Database, origin: str) -> bool:
    """Whether an active publishable key, of whichever account, names this origin."""
    # An index has the origins of these keys alone: few, so reading them all takes microseconds.
    # replace() is in both databases, and takes no letter of the origin for a pattern.
    return bool(
        db.all(
            "SELECT 1 FROM keys WHERE origins IS NOT NULL AND revoked_at IS NULL"
            " AND replace(' ' || origins || ' ', ' ' || :origin || ' ', '') <> ' ' || origins || ' '"
            " LIMIT 1",
            {"origin": origin},
        )
    )


def revoke_key(db: Database, account_id: str | None, key_id: str, *, by: Actor = SERVICE) -> bool:
    """Revoke a key permanently; False if the account (None: any) has no such active key.

    Lists that run by it are paused.
    """
    of_account = " AND account = (SELECT number FROM accounts WHERE id = :account)"
    found = db.all(
        "SELECT account, label, prefix FROM keys WHERE id = :key AND revoked_at IS NULL"
        + (of_account if account_id is not None else "")
        + db.FOR_UPDATE,
        {"key": key_id, "account": account_id},
    )
    for account, label, prefix in found:
        db.change(
            "UPDATE keys SET revoked_at = :now WHERE id = :key",
            {"now": micros(db.now()), "key": key_id},
        )
        audit.add(db, account, by, Act("key_revoked", key_id, label, prefix))
    lists.pause_of_key(db, key_id)
    return bool(found)


def note_uses(db: Database, key_ids: Sequence[str]) -> None:
    """Write that the keys were used now, each at most once in KEY_USE_EVERY."""
    now = db.now()
    # An instant that a clock wrote which was ahead is corrected. In order, so that two
    # processes never wait for each other's rows.
    db.change_each(
        "UPDATE keys SET used_at = :now WHERE id = :id"
        " AND (used_at IS NULL OR used_at <= :before OR used_at > :now)",
        [
            {"id": id, "now": micros(now), "before": micros(now - KEY_USE_EVERY)}
            for id in sorted(key_ids)
        ],
    )


# Deletion, some rows in each transaction. The first one ends what runs: keys, lists and alerts. The
# account's counters, its rows of usage, its messages to the billing meter and its customer at the
# billing provider stay: they are money, and none of them has a name or an address.

# Where an account's callbacks go, what was answered to it, and what it told of addresses; what hosts said.
OF_ACCOUNT = ("idempotency_records", "receivers", "bounces", "conversations")
DELETED_EMAIL = ""  # of an account that was deleted
# Its own entry has no name and no address; an operator's entries of other accounts have.
BUT_THE_DELETION = "account = :account AND (kind <> :kind OR on_account IS NOT NULL)"


def delete_some(db: Database, account_id: str, by: Actor) -> bool | None:
    """Delete some rows; True when nothing is left, None if there is no such account."""
    found = db.all(f"SELECT number FROM accounts WHERE id = :id{db.FOR_UPDATE}", {"id": account_id})
    if not found:
        return None
    ((account,),) = found
    _end_all(db, account)
    _record_deletion(db, account, account_id, by)
    steps: list[Callable[[], bool]] = [
        partial(_delete_jobs, db, account, "state IN ('pending', 'delivering')"),
        partial(_delete_jobs, db, account, "ended_at IS NOT NULL"),
        partial(_delete_lists, db, account),
        *(partial(drop, db, table=t, which="account = :account", account=account) for t in OF_ACCOUNT),
        partial(drop, db, table=audit.TABLE, which=BUT_THE_DELETION, account=account, kind=audit.DELETION),
    ]  # fmt: skip
    return not any(step() for step in steps)


def _end_all(db: Database, account: int) -> None:
    """Make the account nameless, its keys invalid, and end its lists."""
    values = {"account": account, "now": micros(db.now()), "email": DELETED_EMAIL}
    for statement in (
        "UPDATE accounts SET email = :email, alerts = :no, soft_cap_micros = NULL,"
        " hard_cap_micros = NULL WHERE number = :account",
        "UPDATE keys SET revoked_at = coalesce(revoked_at, :now), label = NULL, prefix = ''"
        " WHERE account = :account",
        "UPDATE lists SET state = 'cancelled', ended_at = :now WHERE account = :account"
        " AND ended_at IS NULL",
        "DELETE FROM outbox WHERE account = :account AND kind = 'alert'",
        "DELETE FROM sign_in_links WHERE address IN"
        " (SELECT address FROM people WHERE account = :account)",
        "DELETE FROM sign_ins WHERE account = :account",
        "DELETE FROM people WHERE account = :account",
        "DELETE FROM pauses WHERE kind = 'account'"
        " AND name = (SELECT id FROM accounts WHERE number = :account)",
    ):
        db.change(statement, {**values, "no": False})


def _record_deletion(db: Database, account: int, account_id: str, by: Actor) -> None:
    """Write the entry of the deletion, whose other steps and repetitions write none."""
    known = db.all(
        f"SELECT 1 FROM {audit.TABLE} WHERE account = :account AND kind = :kind"
        " AND on_account IS NULL LIMIT 1",
        {"account": account, "kind": audit.DELETION},
    )
    if not known:
        nameless = Actor(by.kind) if by.operator_id in (None, account_id) else by
        audit.add(db, account, nameless, Act(audit.DELETION))


def _delete_jobs(db: Database, account: int, which: str) -> bool:
    """Delete some jobs with their attempts; return whether there may be more."""
    rows = db.all(
        f"SELECT number, state, host FROM jobs WHERE account = :account AND {which}"
        f" ORDER BY number LIMIT :most{db.FOR_UPDATE}",
        {"account": account, "most": JOBS_TIDIED_MAX},
    )
    jobs = [{"job": number} for number, _, _ in rows]
    db.change_each("DELETE FROM job_attempts WHERE job = :job", jobs)
    db.change_each("DELETE FROM jobs WHERE number = :job", jobs)
    db.count_jobs([JobMove(account, host, state, None) for _, state, host in rows])
    return len(jobs) == JOBS_TIDIED_MAX


def _delete_lists(db: Database, account: int) -> bool:
    """Delete some chunks of a list; return whether there may be more."""
    found = lists.locked(db, "account = :account", {"account": account})
    for number in found:
        lists.delete_some(db, number)
    return bool(found)


def create_keys(
    db: Database, now: datetime, those: Sequence[tuple[CreateKey, int]]
) -> list[Key | Raised]:
    """Insert keys of these accounts, by number, which are locked; return each, or what forbids it."""
    which = f"account {db.among('accounts', 'bigint')}"
    accounts = encoded(list({number for _, number in those}))
    values = {"accounts": accounts, "since": micros(now - WINDOW), "now": micros(now)}
    active: dict[tuple[int, KeyKind], int] = {
        (account, kind): count
        for account, kind, count in db.all(
            f"SELECT account, kind, count(*) FROM keys WHERE {which} AND revoked_at IS NULL"
            " GROUP BY account, kind",
            values,
        )
    }
    made: dict[tuple[int, KeyKind], list[datetime]] = {}
    for account, kind, at in db.all(
        f"SELECT account, kind, created_at FROM keys WHERE {which}"
        " AND created_at > :since AND created_at <= :now",
        values,
    ):
        made.setdefault((account, kind), []).append(instant(at))
    outcomes: list[Key | Raised] = []
    for command, account in those:
        of_kind = account, command.kind
        most, per_minute_max = command.keys_max, command.keys_per_minute_max
        if most is not None and active.get(of_kind, 0) >= most:
            outcomes.append(Raised(KeyLimitReached()))
        elif per_minute_max is not None and (
            at := next_key_at(made.get(of_kind, []), per_minute_max)
        ):
            outcomes.append(Raised(KeyCreationTooFast(now, at)))
        elif db.all("SELECT 1 FROM keys WHERE sha256 = :sha256", {"sha256": command.sha256}):
            outcomes.append(Raised(ValueError("a key with this hash is kept already")))
        else:
            key = _new_key(command, now)
            insert_key(db, account, key, command.sha256, command.by)
            outcomes.append(key)
            active[of_kind] = active.get(of_kind, 0) + 1
            made.setdefault(of_kind, []).append(now)
    return outcomes


class AccountStore(StorePart):
    """The part of the store that keeps accounts and their keys."""

    create_account = write(create_account)
    create_first_account = write(create_first_account)
    account = read(find_account)
    accounts = read(list_accounts)
    account_of_customer = read(account_of_customer)
    first_account_id = read(first_account_id)
    find_accounts = read(find_accounts)
    change_account = write(change_account)
    keys = read(list_keys)
    is_form_origin = read(is_form_origin)
    revoke_key = write(revoke_key)

    async def delete_account(self, account_id: str, *, by: Actor = SERVICE) -> bool:
        """Delete all that is personal of an account; False if there is no such account.

        Its e-mail address becomes empty, its keys are revoked, its jobs, lists, results, callbacks
        and alerts go; an outcome of a job or a list that runs changes nothing any more. What
        counts money stays. It takes many transactions, the first of which ends what runs: a call
        that was interrupted is repeated.
        """
        while not (gone := await self.executor.write(delete_some, account_id, by)):
            if gone is None:
                return False
        return True

    async def create_key(
        self,
        account_id: str,
        kind: KeyKind,
        label: str | None,
        *,
        sha256: str,
        prefix: str,
        keys_max: int | None,
        keys_per_minute_max: int | None = None,
        idempotency: IdempotencyRecord | None = None,
        answer: Callable[[Key], Answered] | None = None,
        origins: Sequence[str] = (),
        rate_per_min: int | None = None,
        by: Actor = SERVICE,
    ) -> Key:
        """Store a key by its SHA-256 (hex digits) and return it without its secret.

        `keys_max` limits the account's active keys of this kind, `keys_per_minute_max` those
        created within the last minute; None: no limit. Provisioning keys are not limited. A
        publishable key has `origins`, serialised as browsers do, and `rate_per_min`. With
        `idempotency`, the answer that `answer` makes from the key is stored in the same
        transaction: like `first` in `settle`. Raises KeyLimitReached,
        KeyCreationTooFast, KeyError if there is no such account, ValueError for a hash that
        is stored already.
        """
        if kind == "provisioning":
            keys_max = keys_per_minute_max = None
        stored = encrypting(self._cipher, idempotency, answer)
        return await self._execute(
            CreateKey(
                account_id, kind, label, sha256, prefix, keys_max, keys_per_minute_max,
                idempotency, stored, tuple(origins), rate_per_min, by,
            )
        )  # fmt: skip

    async def caller(self, sha256: str) -> Caller | None:
        """Return the key with this SHA-256 and its account; None for an unknown or a revoked key."""
        return await self.executor.find_caller(sha256)

    async def note_key_uses(self, key_ids: Sequence[str]) -> None:
        """Note that these keys were used now; a key is written at most once in KEY_USE_EVERY."""
        for begin in range(0, len(key_ids), KEYS_NOTED_MAX):
            await self.executor.write(note_uses, key_ids[begin : begin + KEYS_NOTED_MAX])
