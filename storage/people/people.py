"""People of accounts: an e-mail address and a role each.

A person acts by a key of its own, which nobody knows: what the person makes belongs to that key, and
its end ends the person's sign-ins. It is made at the first sign-in and revoked with the person.
"""

import secrets
import string
from collections.abc import Sequence
from datetime import datetime
from typing import Literal
from uuid import uuid4

from msgspec import Struct

from .. import audit
from ..audit import Act
from ..base.columns import instant, micros
from ..database import Database, NotUnique, Row, StorePart, read, write
from ..list_jobs import lists
from ..records import SERVICE, Actor

Role = Literal["owner", "member", "viewer"]
PEOPLE_MAX = 100  # of an account: one page shows them

COLUMNS = (
    "people.id, accounts.id, people.address, people.role, people.invited_at, people.active_at,"
    " people.seen_at"
)
OF_ACCOUNT = "people JOIN accounts ON accounts.number = people.account"


LOWER = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)


class TooManyPeople(Exception):
    """The account has PEOPLE_MAX of them."""


class PersonExists(Exception):
    """The account has a person with this address."""


class LastOwner(Exception):
    """Without this person nobody could manage the account's people."""


class Person(Struct, frozen=True):
    """Who may sign in to an account."""

    id: str  # uuid
    account_id: str
    email: str  # as `folded()` gives it
    role: Role
    invited_at: datetime
    active_at: datetime | None = None  # the first sign-in; None: invited
    seen_at: datetime | None = None


def folded(email: str) -> str:
    """The address with its ASCII letters in lower case.

    Not by `str.lower()`: it makes of the Kelvin sign a k, which is in another mailbox's address.
    """
    return email.translate(LOWER)


def person_of(row: Row) -> Person:
    """Make a Person from a row of COLUMNS."""
    id, account_id, address, role, *instants = row
    invited_at, active_at, seen_at = (at and instant(at) for at in instants)
    return Person(id, account_id, address, role, invited_at, active_at, seen_at)


def invite_person(
    db: Database, account_id: str, email: str, role: Role, *, by: Actor = SERVICE
) -> Person:
    """Add a person who has not signed in yet.

    Raises PersonExists, TooManyPeople, and KeyError if there is no such account.
    """
    account = _locked(db, account_id)
    ((count,),) = db.all(
        "SELECT count(*) FROM people WHERE account = :account", {"account": account}
    )
    if count >= PEOPLE_MAX:
        raise TooManyPeople
    person = Person(str(uuid4()), account_id, folded(email), role, db.now())
    try:
        db.change(
            "INSERT INTO people (id, account, address, role, invited_at)"
            " VALUES (:id, :account, :address, :role, :now)",
            {
                "id": person.id, "account": account, "address": person.email, "role": role,
                "now": micros(person.invited_at),
            },
        )  # fmt: skip
    except NotUnique:
        raise PersonExists from None
    act = Act("person_invited", person.id, person.email, changes={"role": (None, role)})
    audit.add(db, account, by, act)
    return person


def list_people(db: Database, account_id: str) -> list[Person]:
    """Return the account's people, oldest first."""
    rows = db.all(
        f"SELECT {COLUMNS} FROM {OF_ACCOUNT} WHERE accounts.id = :id ORDER BY people.number",
        {"id": account_id},
    )
    return [person_of(row) for row in rows]


def people_with(db: Database, email: str) -> list[Person]:
    """Return the people with this address: at most one of each account, the last seen first."""
    rows = db.all(
        f"SELECT {COLUMNS} FROM {OF_ACCOUNT} WHERE people.address = :address"
        " ORDER BY coalesce(people.seen_at, 0) DESC, people.number",
        {"address": folded(email)},
    )
    return [person_of(row) for row in rows]


def has_active_owner(db: Database, account_id: str) -> bool:
    """Whether a person can manage the account's people: an owner who has signed in."""
    return any(_is_active_owner(each) for each in list_people(db, account_id))


def change_role(
    db: Database, account_id: str, person_id: str, role: Role, *, by: Actor = SERVICE
) -> bool:
    """Give a person another role; False if there is no such person. Raises LastOwner."""
    account, found = _found(db, account_id, person_id)
    if found is None:
        return False
    if found.role == role:
        return True
    if role != "owner":
        _check_another_owner(list_people(db, account_id), found)
    db.change("UPDATE people SET role = :role WHERE id = :id", {"role": role, "id": person_id})
    act = Act("role_changed", person_id, found.email, changes={"role": (found.role, role)})
    audit.add(db, account, by, act)
    return True


def remove_person(db: Database, account_id: str, person_id: str, *, by: Actor = SERVICE) -> bool:
    """Remove a person; False if there is no such person. Raises LastOwner.

    The person's sign-ins end, and lists that run by the person's key are paused.
    """
    account, found = _found(db, account_id, person_id)
    if found is None:
        return False
    _check_another_owner(list_people(db, account_id), found)
    which = {"id": person_id, "now": micros(db.now())}
    key = "(SELECT key FROM people WHERE id = :id)"
    db.change(f"DELETE FROM sign_ins WHERE key = {key}", which)
    keys = db.all(f"SELECT id FROM keys WHERE number = {key}", which)
    db.change(f"UPDATE keys SET revoked_at = :now WHERE number = {key}", which)
    for (key_id,) in keys:
        lists.pause_of_key(db, key_id)
    db.change("DELETE FROM sign_in_links WHERE person = :id", which)
    db.change("DELETE FROM people WHERE id = :id", which)
    audit.add(db, account, by, Act("person_removed", person_id, found.email))
    return True


def key_number(db: Database, person: Person, account: int) -> int:
    """Return the number of the active key that the person acts by; one is made where there is none."""
    which = {"id": person.id}
    found = db.all(
        "SELECT keys.number FROM people JOIN keys ON keys.number = people.key"
        " WHERE people.id = :id AND keys.revoked_at IS NULL",
        which,
    )
    if not found:
        key_id = str(uuid4())
        db.change(
            "INSERT INTO keys (id, account, kind, prefix, sha256, created_at)"
            " VALUES (:key, :account, 'person', '', :sha256, :now)",
            {
                "key": key_id, "account": account, "now": micros(db.now()),
                "sha256": secrets.token_hex(32),  # of no key that anybody knows
            },
        )  # fmt: skip
        found = db.all("SELECT number FROM keys WHERE id = :key", {"key": key_id})
        db.change(
            "UPDATE people SET key = (SELECT number FROM keys WHERE id = :key) WHERE id = :id",
            {"key": key_id, **which},
        )
    ((number,),) = found
    return int(number)


def _locked(db: Database, account_id: str) -> int:
    """The account's number, locked: two owners cannot remove one another at the same moment."""
    found = db.all(
        f"SELECT number FROM accounts WHERE id = :id AND email <> ''{db.FOR_UPDATE}",
        {"id": account_id},
    )
    if not found:
        raise KeyError(account_id)
    return int(found[0][0])


def _found(db: Database, account_id: str, person_id: str) -> tuple[int, Person | None]:
    account = _locked(db, account_id)
    people = list_people(db, account_id)
    return account, next((each for each in people if each.id == person_id), None)


def _is_active_owner(person: Person) -> bool:
    return person.role == "owner" and person.active_at is not None


def _check_another_owner(people: Sequence[Person], person: Person) -> None:
    """An owner who has never signed in may go: the address may be a wrong one."""
    others = (each for each in people if each.id != person.id)
    if _is_active_owner(person) and not any(map(_is_active_owner, others)):
        raise LastOwner


class PeopleStore(StorePart):
    """The part of the store that keeps the people of accounts."""

    invite_person = write(invite_person)
    people = read(list_people)
    people_with = read(people_with)
    has_active_owner = read(has_active_owner)
    change_role = write(change_role)
    remove_person = write(remove_person)
