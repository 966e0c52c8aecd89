"""The secret key of an SQLite database: given, or in the file beside it, and compared with the database.

The database has a check value of its key (`storage.base.encryption`). One of before that has none: there the
newest secrets tell, and the first start that fits them keeps a check value.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

from ..base.encryption import (
    CHECK_NAME,
    KEY_OCTETS,
    Cipher,
    check_value,
    is_key_of,
    key_beside,
    key_path,
)
from ..contract import StoreBroken
from ..idempotency import idempotency_context
from ..jobs import job_context
from ..list_records import list_context
from .file import connect, explain_error, has_table

RECENT = 10_000  # the newest rows of a table, among which an encrypted one is looked for
OF_SETTING = "MAILPROBE_SECRET_KEY"
CHECK = "SELECT value FROM store_properties WHERE name = ?"
ENCRYPTED = (
    ("jobs", "SELECT id, '', secret FROM jobs WHERE secret IS NOT NULL{recent}"),
    ("lists", "SELECT id, '', secret FROM lists WHERE secret IS NOT NULL{recent}"),
    (
        "idempotency_records",
        "SELECT accounts.id, key, answer FROM idempotency_records"
        " JOIN accounts ON accounts.number = account WHERE answer IS NOT NULL{recent}",
    ),
)


def ready_key(path: Path, given: bytes | None) -> bytes:
    """The key to open a prepared database with, made for a new one; its check value is kept.

    Raises StoreBroken for another key than the database's, and for a key file that is missing.
    """
    with explain_error(path), closing(connect(path)) as db:
        key = _of_file(db, path) if given is None else given
        cipher = Cipher(key)
        if not _has_check(db):
            db.execute("BEGIN IMMEDIATE")  # the first of several processes keeps its value
            if not _has_check(db):
                check_key(db, path, key, given=given is not None)
                db.execute(
                    "INSERT OR REPLACE INTO store_properties VALUES (?, ?)",
                    [CHECK_NAME, check_value(cipher)],
                )
            db.execute("COMMIT")
        check_key(db, path, key, given=given is not None)
    return key


def read_key_file(database: Path) -> bytes | None:
    """The key in the file beside the database, None if there is no file. Raises StoreBroken."""
    path = key_path(database)
    key = None
    with explain_error(path), suppress(FileNotFoundError):
        key = path.read_bytes()
    if key is not None and len(key) != KEY_OCTETS:
        raise StoreBroken(f"{path} holds no secret key: {len(key)} octets, not {KEY_OCTETS}")
    return key


def check_key(db: sqlite3.Connection, path: Path, key: bytes, *, given: bool) -> None:
    """Raise StoreBroken unless this is the database's key, as far as the database tells.

    The message names where the key is from: the setting if it was `given`, or else the key file.
    """
    value = _check_of(db)
    if value == b"":  # a key was lost for good, and the operator begins with another
        return
    cipher = Cipher(key)
    fits = is_key_of(cipher, value) if value else _opens_newest(db, cipher)
    if not fits:
        raise wrong_key_error(path, given=given)


def is_encrypted(db: sqlite3.Connection) -> bool:
    """Whether the database has accounts, so that it is of no use without its key."""
    return has_table(db, "accounts") and bool(db.execute("SELECT 1 FROM accounts").fetchone())


def encrypted_values(db: sqlite3.Connection, *, newest: bool) -> Iterator[tuple[bytes, str]]:
    """Yield the newest encrypted value of each kind, or the oldest, with their contexts."""
    for table, query in ENCRYPTED:
        if not has_table(db, table):
            continue
        recent = f" AND {table}.number > (SELECT max(number) - {RECENT} FROM {table})"
        order = f"{recent} ORDER BY {table}.number DESC" if newest else f" ORDER BY {table}.number"
        for id, key, encrypted in db.execute(f"{query.format(recent=order)} LIMIT 1"):
            yield encrypted, _context(table, id, key)


def _context(table: str, id: str, key: str) -> str:
    if table == "jobs":
        return job_context(id)
    return list_context(id) if table == "lists" else idempotency_context(id, key)


def _of_file(db: sqlite3.Connection, path: Path) -> bytes:
    """The key in the file; it is made for a database without accounts."""
    is_used = is_encrypted(db)  # first: another process may make the key and an account meanwhile
    if not key_path(path).exists():
        if is_used:
            raise missing_error(path)
        db.execute("DELETE FROM store_properties WHERE name = ?", [CHECK_NAME])
    return key_beside(path)


def wrong_key_error(path: Path, *, given: bool) -> StoreBroken:
    """The error for a key that is not the database's: it names where the key is from."""
    if not given:
        where = str(key_path(path))
        hint = f"put the database's own back, or set {OF_SETTING} if that was set before"
    elif key_path(path).exists():
        where, hint = OF_SETTING, f"leave it unset to use {key_path(path)}"
    else:
        where, hint = OF_SETTING, "set it as the service had it"
    return StoreBroken(f"{where} is not the secret key that {path} was encrypted with: {hint}")


def missing_error(path: Path) -> StoreBroken:
    return StoreBroken(
        f"{path} has accounts, and {key_path(path).name}, the key of its secrets, is not beside it:"
        f" put it back, or set {OF_SETTING} if that was set before"
    )


def _has_check(db: sqlite3.Connection) -> bool:
    return bool(_check_of(db))


def _check_of(db: sqlite3.Connection) -> bytes | None:
    if not has_table(db, "store_properties"):
        return None
    found = db.execute(CHECK, [CHECK_NAME]).fetchone()
    return None if found is None else bytes(found[0])


def _opens_newest(db: sqlite3.Connection, cipher: Cipher) -> bool:
    """Whether the key opens any of the newest secrets, or there are none."""
    tried = False
    for encrypted, context in encrypted_values(db, newest=True):
        tried = True
        with suppress(StoreBroken):
            cipher.open(encrypted, context)
            return True
    return not tried
