"""Sign-ins to the dashboard, and what ended before its time: sign-ins, challenges that were used.

A sign-in that is known to have ended is the only one that is refused: so cookies of an earlier
version, which kept no list of them, stay good.
"""

from datetime import datetime, timedelta

from msgspec import Struct

from .. import audit
from ..audit import Act
from ..base.columns import instant, micros
from ..callers import COLUMNS, OF_KEYS, caller_of, callers_of_keys
from ..database import Database, StorePart, read, write
from ..records import Actor, Caller
from . import people
from .people import Person

SIGN_INS_MAX = 100  # of an account; the oldest ends
SEEN_EVERY = timedelta(minutes=5)  # a sign-in in use is written so often
BROWSER_CHARACTERS_MAX = 200

ENDED = "INSERT INTO ended_sessions (id, until) VALUES (:id, :until) ON CONFLICT (id) DO NOTHING"


class NewSignIn(Struct, frozen=True):
    """A sign-in that begins."""

    id: str
    until: datetime  # its cookie is good no longer
    browser: str  # as it names itself


class KnownSignIn(Struct, frozen=True):
    """What a cookie opens."""

    caller: Caller
    person: Person | None  # None: by a provisioning key
    seen_at: datetime | None  # None: of an earlier version, which kept no list


class ListedSignIn(Struct, frozen=True):
    """A sign-in of an account."""

    id: str
    email: str | None  # the person's; None: by a provisioning key
    key_prefix: str
    began_at: datetime
    seen_at: datetime
    client: str | None  # the IP address from which it began
    browser: str


def begin_sign_in(db: Database, new: NewSignIn, account_id: str, key_id: str, by: Actor) -> None:
    """Record a sign-in by a provisioning key, before the browser gets its cookie."""
    ((account, key),) = db.all(
        "SELECT keys.account, keys.number FROM keys JOIN accounts ON accounts.number = keys.account"
        " WHERE keys.id = :key AND accounts.id = :account",
        {"key": key_id, "account": account_id},
    )
    _insert(db, new, account, key, by)


def begin_sign_in_of(db: Database, new: NewSignIn, person_id: str, by: Actor) -> Caller | None:
    """Record a sign-in of a person, and return what it acts by; None if there is no such person."""
    found = db.all(
        f"SELECT people.account, {people.COLUMNS} FROM {people.OF_ACCOUNT} WHERE people.id = :id"
        f" AND accounts.email <> ''{db.FOR_UPDATE}",
        {"id": person_id},
    )
    if not found:
        return None
    ((account, *row),) = found
    key = people.key_number(db, people.person_of(tuple(row)), account)
    db.change(
        "UPDATE people SET seen_at = :now, active_at = coalesce(active_at, :now) WHERE id = :id",
        {"id": person_id, "now": micros(db.now())},
    )
    # an invitation that was not used is good in any browser, and not needed any more
    db.change("DELETE FROM sign_in_links WHERE person = :id", {"id": person_id})
    _insert(db, new, account, key, by)
    return callers_of_keys(db, [key])[key]


def _insert(db: Database, new: NewSignIn, account: int, key: int, by: Actor) -> None:
    of_account = {"account": account}
    db.change(
        "INSERT INTO sign_ins (id, account, key, began_at, seen_at, until, client, browser)"
        " VALUES (:id, :account, :key, :now, :now, :until, :client, :browser)",
        {
            **of_account, "id": new.id, "key": key, "now": micros(db.now()),
            "until": micros(new.until), "client": by.address,
            "browser": new.browser[:BROWSER_CHARACTERS_MAX],
        },
    )  # fmt: skip
    surplus = db.all(
        "SELECT id, until FROM sign_ins WHERE account = :account"
        " ORDER BY began_at DESC, id LIMIT 1000 OFFSET :most",
        {**of_account, "most": SIGN_INS_MAX},
    )
    for id, until in surplus:
        db.change(ENDED, {"id": id, "until": until})
        db.change("DELETE FROM sign_ins WHERE id = :id", {"id": id})
    audit.add(db, account, by, Act("signed_in"))


def find_sign_in(db: Database, sign_in_id: str, account_id: str, key_id: str) -> KnownSignIn | None:
    """Return what the sign-in opens; None if it has ended, or its key or person is gone."""
    found = db.all(
        f"SELECT (SELECT seen_at FROM sign_ins WHERE id = :id), {COLUMNS} FROM {OF_KEYS}"
        " WHERE keys.id = :key AND accounts.id = :account AND keys.revoked_at IS NULL"
        " AND NOT EXISTS (SELECT 1 FROM ended_sessions WHERE id = :id)",
        {"id": sign_in_id, "account": account_id, "key": key_id},
    )
    if not found:
        return None
    seen_at, *row = found[0]
    caller, seen_at = caller_of(tuple(row)), seen_at and instant(seen_at)
    if caller.key.kind != "person":
        return KnownSignIn(caller, None, seen_at)
    rows = db.all(
        f"SELECT {people.COLUMNS} FROM {people.OF_ACCOUNT} JOIN keys ON keys.number = people.key"
        " WHERE keys.id = :key",
        {"key": key_id},
    )
    return KnownSignIn(caller, people.person_of(rows[0]), seen_at) if rows else None


def note_sign_in(db: Database, sign_in_id: str) -> None:
    """Write that this sign-in was used now, and its person seen."""
    values = {"id": sign_in_id, "now": micros(db.now())}
    db.change("UPDATE sign_ins SET seen_at = :now WHERE id = :id", values)
    db.change(
        "UPDATE people SET seen_at = :now WHERE key = (SELECT key FROM sign_ins WHERE id = :id)",
        values,
    )


def list_sign_ins(db: Database, account_id: str) -> list[ListedSignIn]:
    """Return the account's sign-ins, the last seen first; none of an earlier version."""
    rows = db.all(
        "SELECT sign_ins.id, people.address, keys.prefix, sign_ins.began_at, sign_ins.seen_at,"
        " sign_ins.client, sign_ins.browser FROM accounts"
        " JOIN sign_ins ON sign_ins.account = accounts.number"
        " JOIN keys ON keys.number = sign_ins.key AND keys.revoked_at IS NULL"
        " LEFT JOIN people ON people.key = keys.number"
        " WHERE accounts.id = :id AND sign_ins.until > :now"
        " ORDER BY sign_ins.seen_at DESC, sign_ins.id",
        {"id": account_id, "now": micros(db.now())},
    )
    return [
        ListedSignIn(id, email, prefix, instant(began), instant(seen), client, browser)
        for id, email, prefix, began, seen, client, browser in rows
    ]


def end_sign_in(db: Database, sign_in_id: str, until: datetime, account_id: str, by: Actor) -> None:
    """Remember that the sign-in has ended, until its cookie is valid no longer."""
    db.change("DELETE FROM sign_ins WHERE id = :id", {"id": sign_in_id})
    if db.change(ENDED, {"id": sign_in_id, "until": micros(until)}):
        audit.add_to(db, account_id, by, Act("signed_out"))


def end_listed_sign_in(db: Database, sign_in_id: str, account_id: str, by: Actor) -> bool:
    """End a sign-in of the account's list; False if it is not there."""
    found = db.all(
        "SELECT sign_ins.until, people.address FROM sign_ins"
        " JOIN accounts ON accounts.number = sign_ins.account"
        " LEFT JOIN people ON people.key = sign_ins.key"
        " WHERE sign_ins.id = :id AND accounts.id = :account",
        {"id": sign_in_id, "account": account_id},
    )
    if not found:
        return False
    ((until, email),) = found
    db.change("DELETE FROM sign_ins WHERE id = :id", {"id": sign_in_id})
    if db.change(ENDED, {"id": sign_in_id, "until": until}):
        audit.add_to(db, account_id, by, Act("signed_out", name=email))
    return True


def use_challenge(db: Database, challenge_id: str, until: datetime) -> bool:
    """Use a challenge that is good until then; False if it was used, in whatever process."""
    return bool(db.change(ENDED, {"id": f"challenge {challenge_id}", "until": micros(until)}))


class SignInStore(StorePart):
    """The part of the store that keeps sign-ins and used challenges, until their time."""

    begin_sign_in = write(begin_sign_in)
    begin_sign_in_of = write(begin_sign_in_of)
    find_sign_in = read(find_sign_in)
    note_sign_in = write(note_sign_in)
    listed_sign_ins = read(list_sign_ins)
    end_sign_in = write(end_sign_in)
    end_listed_sign_in = write(end_listed_sign_in)
    use_challenge = write(use_challenge)
