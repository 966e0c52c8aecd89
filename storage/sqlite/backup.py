"""A backup of the database file: one SQLite file with the secret key in it.

It is read while the service writes (https://sqlite.org/backup.html), and is not a database of ours
until its key is taken out (`file.prepare`). Its last octets are its length and SHA-256
(`backup_trailer`); backups of before had none. Both directions write into an empty file of the
caller's, who renames it once it is on disk: whatever ends the process, the files that were there
stay as they were. Everything a list needs is in the database, and uploads last no longer than
their request, so that there are no other files to keep.
"""

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import datetime
from pathlib import Path

from msgspec import Struct

from ..contract import StoreBroken
from . import backup_trailer
from .backup_trailer import APPLICATION_ID, BACKUP_ID
from .file import (
    BACKUP,
    BROKEN,
    code_of,
    explain_error,
    has_table,
    make_folder,
    schema_state,
    unserved,
)
from .secret_key import (
    check_key,
    is_encrypted,
    missing_error,
    read_key_file,
)

# Two octets of the header (https://sqlite.org/fileformat2.html#file_format_version_numbers).
VERSIONS_AT = 18
ROLLBACK_JOURNAL = b"\x01\x01"
LOGS = ("-wal", "-shm", "-journal")  # what SQLite keeps beside a file, and takes for that file's


class Backup(Struct, frozen=True):
    """What a backup holds."""

    schema: int
    octets: int
    made_at: str  # ISO 8601
    has_key: bool
    was_checked: bool  # against its SHA-256; not a backup of an earlier version


def back_up(database: Path, target: Path, given_key: bytes | None, *, now: datetime) -> Backup:
    """Copy one state of the database, which may be in use, into an empty file, and check the copy.

    The key file's key goes into it, a given one (the setting) does not. Raises StoreBroken, also for
    a key that is missing or another database's, StoreUnavailable; the target is of no use then.
    """
    if not database.is_file():
        raise StoreBroken(f"{database} is not there, or not a file: there is nothing to back up")
    _check_ours(database, APPLICATION_ID)
    key = read_key_file(database) if given_key is None else None
    with explain_error(database):
        source = sqlite3.connect(f"{database.absolute().as_uri()}?mode=ro", uri=True)
    with closing(source):
        _copy(source, target)
    with explain_error(target):
        with target.open("r+b") as file:  # else SQLite would make a log beside the copy
            file.seek(VERSIONS_AT)
            file.write(ROLLBACK_JOURNAL)
        with _without_journal(target) as db:
            _check_key_of(db, database, key if given_key is None else given_key, given_key)
            db.execute(f"PRAGMA application_id = {BACKUP_ID}")
            db.execute(f"CREATE TABLE {BACKUP} (secret_key blob, made_at text NOT NULL)")
            db.execute(f"INSERT INTO {BACKUP} VALUES (?, ?)", [key, now.isoformat()])
        backup_trailer.append_trailer(target)
    return check_backup(target)


def check_backup(path: Path) -> Backup:
    """Read the whole backup and return what it holds. Raises StoreBroken, StoreUnavailable."""
    with explain_error(path):
        if is_marked := backup_trailer.is_marked(path):
            backup_trailer.check_trailer(path)  # before SQLite reads any of it
    _check_ours(path, APPLICATION_ID, BACKUP_ID)
    with explain_error(path), closing(_connect_to_file(path)) as db:
        if not has_table(db, BACKUP):
            raise StoreBroken(
                f"{path} is a database, not a backup: to use it, stop the service and put it in"
                " place with its key file"
            )
        (finding,) = db.execute("PRAGMA integrity_check(1)").fetchone()
        if finding != "ok":
            raise StoreBroken(f"{path} is damaged: {finding}".replace("\n", " "))
        ((key, made_at),) = db.execute(f"SELECT secret_key, made_at FROM {BACKUP}")
        if key is not None:
            _check_key_inside(db, path, bytes(key))
        (schema,) = db.execute("PRAGMA user_version").fetchone()
    return Backup(schema, path.stat().st_size, made_at, key is not None, is_marked)


def check_key_for(backup: Path, database: Path, given_key: bytes | None) -> None:
    """Raise StoreBroken if the key that a start would use is not that of a backup that was checked.

    A start uses the given key (the setting), else the backup's own, else the file beside the database.
    Without any of them the backup is restored all the same.
    """
    with explain_error(backup), closing(_connect_to_file(backup)) as db:
        ((inside,),) = db.execute(f"SELECT secret_key FROM {BACKUP}")
        beside = None if inside is not None else read_key_file(database)
        if given_key is not None:
            check_key(db, database, given_key, given=True)
        elif beside is not None:
            check_key(db, database, beside, given=False)


@contextmanager
def replacing_database(database: Path) -> Iterator[None]:
    """Hold the database's lock while a backup is put in its place. Raises DatabaseInUse.

    The folder of the default database is created if there is none. Raises StoreBroken for another's.
    """
    with explain_error(database):
        make_folder(database)
    with unserved(database):
        yield


def copy_backup(backup: Path, target: Path) -> Backup:
    """Copy a backup octet by octet into an empty file, check the copy, and let SQLite write to it.

    Raises StoreBroken, StoreUnavailable.
    """
    with explain_error(target), backup.open("rb") as read, target.open("wb") as written:
        shutil.copyfileobj(read, written, backup_trailer.READ_OCTETS)
    held = check_backup(target)
    if held.was_checked:
        with explain_error(target):
            backup_trailer.remove_mark(target)
    return held


def finish_log(database: Path) -> None:
    """Move what is in the database's log into the database, so that no log is left beside it.

    SQLite would take the log for that of the file which replaces the database. Of a damaged
    database the log is removed. Raises StoreUnavailable.
    """
    logs = [database.with_name(f"{database.name}{ending}") for ending in LOGS]
    if database.exists():
        try:
            uri = f"{database.absolute().as_uri()}?mode=rw"
            with closing(sqlite3.connect(uri, uri=True, isolation_level=None)) as db:
                db.execute("SELECT count(*) FROM sqlite_master").fetchone()
                db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        except sqlite3.Error as error:
            if code_of(error) not in BROKEN:
                with explain_error(database):
                    raise
    with explain_error(database):
        for log in logs:
            log.unlink(missing_ok=True)


def is_there(database: Path) -> bool:
    """Whether there is a database, or what is left of one."""
    return any(
        database.with_name(f"{database.name}{ending}").exists() for ending in ("", ".key", "-wal")
    )


def _check_ours(path: Path, *owners: int) -> None:
    """Raise StoreBroken for another program's file, an empty one, and a newer schema."""
    if not path.stat().st_size or not schema_state(path, owners=owners).found:
        raise StoreBroken(f"{path} is not a database of this program")


def _check_key_of(
    db: sqlite3.Connection, database: Path, key: bytes | None, given_key: bytes | None
) -> None:
    """Raise StoreBroken for a copy whose secrets this key, the database's, does not open."""
    if key is not None:
        check_key(db, database, key, given=given_key is not None)
    elif is_encrypted(db):
        raise missing_error(database)


def _check_key_inside(db: sqlite3.Connection, path: Path, key: bytes) -> None:
    try:
        check_key(db, path, key, given=False)
    except (StoreBroken, ValueError):
        raise StoreBroken(
            f"{path} is damaged: the secret key in it is not its database's"
        ) from None


def _connect_to_file(path: Path) -> sqlite3.Connection:
    """Open a file that nothing writes: no lock, no log, also on a disk that is read-only."""
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)


def _copy(source: sqlite3.Connection, target: Path) -> None:
    """Copy all pages in one step: in several, each write of the service would begin it anew."""
    with explain_error(target), _without_journal(target) as db:
        source.backup(db)


@contextmanager
def _without_journal(target: Path) -> Iterator[sqlite3.Connection]:
    """Open the target to write: nothing beside it, and on disk only when the caller syncs it."""
    with closing(sqlite3.connect(target, isolation_level=None)) as db:
        db.execute("PRAGMA journal_mode = OFF")
        db.execute("PRAGMA synchronous = OFF")
        yield db
