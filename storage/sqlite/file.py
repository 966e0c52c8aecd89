"""The database file: created, checked, migrated and opened; never replaced.

A file that is not ours (another program's database, a newer version's, a damaged
one, a directory) is rejected with StoreBroken. A lock file beside the database
serialises processes that start together, and makes the writers of several processes
take turns.
"""

import errno
import fcntl
import os
import sqlite3
import struct
import time
from collections.abc import Callable, Container, Iterator
from contextlib import closing, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from mailprobe.release import version as program_version

from ..contract import (
    DEFAULT_FOLDER,
    NEWEST,
    VERSIONS,
    DatabaseInUse,
    SchemaState,
    StoreBroken,
    StoreFull,
    StoreUnavailable,
)
from . import backup_trailer
from .backup_trailer import APPLICATION_ID, BACKUP_ID

if TYPE_CHECKING:
    from sqlite_utils import Database

SCHEMA = Path(__file__).parents[1] / "schema" / "sqlite"
MIGRATING_S = 10.0  # how long a start waits for another process that migrates the file
OPENING_MS = 500  # how long a new connection waits while another recovers the log
# A file up to this size is checked whole at the start, in 0.2 s.
CHECKED_OCTETS_MAX = 64 * 1024 * 1024
LOG_OCTETS_MAX = 64 * 1024 * 1024  # a larger log is truncated to this
INDEX_OCTETS = 32 * 1024  # what the index of a log grows by (https://sqlite.org/walformat.html)
WRITER_CACHE_KIB = 8 * 1024  # the pages that a large transaction changes; beyond, they spill
READER_CACHE_KIB = 4 * 1024  # the system caches the file too: a miss costs a copy of 2 µs
RETRY_S = 0.001
# A shorter file has no database header, and SQLite takes some for empty databases.
HEADER_OCTETS = 100
RECOVERY_HINT = "put a backup in its place, or to begin anew remove"
# First octet and length (https://sqlite.org/fileformat2.html#lockbyte).
SHARED_LOCK = (0x4000_0002, 510)
FLOCK = "hhqqi4x"  # struct flock (fcntl(2)): kind, whence, start, length, process

BACKUP = "backup"  # a table of one row that only a backup has
# https://sqlite.org/rescode.html, primary codes: failures of the environment, not bugs of ours
BROKEN = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
UNAVAILABLE = {
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_PROTOCOL,
    sqlite3.SQLITE_READONLY,
}
# What to do about an error of the system, by its number, or of SQLite, by its code below 0.
HINTS = dict.fromkeys(
    (
        *(errno.EACCES, errno.EPERM, errno.EROFS),
        *(-sqlite3.SQLITE_PERM, -sqlite3.SQLITE_READONLY, -sqlite3.SQLITE_CANTOPEN),
    ),
    "; see that this user may read and write it, its key and its folder",
)


def code_of(error: BaseException) -> int:
    """Return SQLite's primary result code; 0 for any other error."""
    return (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF


def is_file_failure(error: BaseException) -> bool:
    """Return whether the database cannot be used, as opposed to one transaction being wrong."""
    return isinstance(error, OSError | StoreUnavailable) or code_of(error) in BROKEN | UNAVAILABLE


def as_unavailable(error: BaseException, path: Path) -> StoreUnavailable:
    """Return the error as StoreBroken if the file is damaged, StoreFull if the disk is full.

    Any other is a StoreUnavailable.
    """
    if isinstance(error, StoreUnavailable):
        return type(error)(*error.args)
    if code_of(error) in BROKEN:
        return StoreBroken(f"{path} is damaged or no database: {error}")
    return (StoreFull if _is_full(error, path) else StoreUnavailable)(
        f"{path} cannot be used: {_reason(error, path)}"
    )


def _reason(error: BaseException, path: Path) -> str:
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.strerror}: {error.filename}{HINTS.get(error.errno or 0, '')}"
    if code_of(error) == sqlite3.SQLITE_IOERR and _is_full(error, path):
        return f"{error}, because the disk is full"
    return f"{error}{HINTS.get(-code_of(error), '')}"


def _is_full(error: BaseException, path: Path) -> bool:
    if isinstance(error, OSError):
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    # If the index of the log cannot grow, SQLite has no word for that.
    return code_of(error) == sqlite3.SQLITE_FULL or (
        code_of(error) == sqlite3.SQLITE_IOERR and _has_full_disk(path)
    )


def _has_full_disk(path: Path) -> bool:
    try:
        disk = os.statvfs(path.parent)
    except OSError:
        return False
    return disk.f_bavail * disk.f_frsize < INDEX_OCTETS


@contextmanager
def explain_error(path: Path) -> Iterator[None]:
    """Raise errors of SQLite and the system as StoreBroken or StoreUnavailable; others pass."""
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        if not is_file_failure(error):
            raise
        raise as_unavailable(error, path) from error


def inode_of(path: Path) -> tuple[int, int]:
    """Return device and inode, which identify the file; raises OSError if there is none."""
    status = os.stat(path)
    return status.st_dev, status.st_ino


class WriterQueue:
    """A lock file: at a time one writer of all processes waits for the database's lock.

    SQLite's lock has no queue: a process that releases it can take it again before
    another looks. Each writer holds this file lock while it waits, so the last holder
    must queue here.
    """

    def __init__(self, database: Path) -> None:
        path = database.with_name(f"{database.name}.lock")
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def try_enter(self) -> bool:
        """Acquire the file lock; False if another process has it."""
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def enter(self) -> None:
        """Acquire the file lock; raises StoreUnavailable after MIGRATING_S."""
        end = time.monotonic() + MIGRATING_S
        while not self.try_enter():
            if time.monotonic() > end:
                raise StoreUnavailable("another process holds the database's lock file")
            time.sleep(RETRY_S)

    def release(self) -> None:
        """Release the file lock."""
        fcntl.flock(self._file, fcntl.LOCK_UN)

    def close(self) -> None:
        """Close the lock file, which releases the lock."""
        os.close(self._file)


def make_folder(path: Path) -> None:
    """Create the folder of the default database; raise StoreBroken if that of another is missing.

    A path that was mistyped must not begin an empty database beside the one that was meant.
    """
    if path.parent.is_dir():
        return
    if path.parent != DEFAULT_FOLDER:
        raise StoreBroken(
            f"MAILPROBE_DATABASE is {path}, and its folder {path.parent} does not exist; create it"
        )
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)


def prepare(path: Path) -> None:
    """Ensure that the file is a database of ours, of this version: checked, created, or migrated.

    Safe for several processes at once. Raises StoreBroken, StoreUnavailable.
    """
    with explain_error(path):
        if path.is_dir():
            raise StoreBroken(f"{path} is a directory, not a database file")
        make_folder(path)
        with closing(WriterQueue(path)) as lock:
            lock.enter()
            _make(path)
            if backup_trailer.is_marked(path):
                _accept_backup(path)
            with closing(_connect(path)) as db:
                _check_owner(db, path)
                _extract_key(db, path)
                lock.release()  # the check takes a while, and other processes may write meanwhile
                _check_whole(db, path)
                lock.enter()
                _migrate(db)


def create_tables(db: sqlite3.Connection) -> None:
    """Execute all scripts on an empty database in memory."""
    for script in scripts_of_schema():
        for statement in _statements(script.read_text("utf-8")):
            db.execute(statement)


def connect(path: Path, cache_kib: int = WRITER_CACHE_KIB) -> sqlite3.Connection:
    """Open a prepared database for writing. It never creates one; the caller closes it.

    Raises StoreBroken for another database, StoreUnavailable, sqlite3.Error.
    """
    db = _connect(path)
    try:
        if _owner(db) != APPLICATION_ID or _version(db) != len(scripts_of_schema()):
            raise StoreBroken(f"{path} is not the database that was opened at the start")
        db.execute("PRAGMA synchronous = FULL")
        db.execute(f"PRAGMA journal_size_limit = {LOG_OCTETS_MAX}")
        db.execute(f"PRAGMA cache_size = -{cache_kib}")
    except BaseException:
        db.close()
        raise
    return db


def connect_to_read(path: Path) -> sqlite3.Connection:
    """Open a database of ours, of this version and undamaged, for reading only.

    Raises StoreBroken, StoreUnavailable.
    """
    if not path.is_file():
        raise StoreBroken(f"{path} is not there, or not a file")
    with explain_error(path):
        db = sqlite3.connect(
            f"{path.absolute().as_uri()}?mode=ro",
            uri=True,
            isolation_level=None,
            check_same_thread=False,
        )
        try:
            _check_owner(db, path)
            if _owner(db) != APPLICATION_ID:
                raise StoreBroken(f"{path} is empty")
            if has_table(db, BACKUP):
                raise _backup_error(path)
            if _version(db) < len(scripts_of_schema()):
                raise StoreBroken(
                    f"{path} was written by an older version of this program: start the service"
                    " on it once, which brings it up to date, and stop it"
                )
            _check_whole(db, path)
        except BaseException:
            db.close()
            raise
    return db


def holder_of(path: Path) -> int | None:
    """Return the id of a process that has the database open; 0 for another machine or container.

    A process that has read from it holds SQLite's shared lock until it closes. This
    process's own locks are not seen, and this call releases them: call it before the file
    is opened. None if no process has it open. Raises OSError.
    """
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        asked = struct.pack(FLOCK, fcntl.F_WRLCK, os.SEEK_SET, *SHARED_LOCK, 0)
        kind, _, _, _, pid = struct.unpack(FLOCK, fcntl.fcntl(file, fcntl.F_GETLK, asked))
    finally:
        os.close(file)
    return None if kind == fcntl.F_UNLCK else max(0, pid)


@contextmanager
def unserved(path: Path) -> Iterator[None]:
    """In the block no other process has the database open, and no service starts on it.

    Raises DatabaseInUse, StoreUnavailable.
    """
    with explain_error(path):
        lock = WriterQueue(path)
    with closing(lock):
        is_ours = lock.try_enter()
        with explain_error(path):
            holder = holder_of(path) if path.exists() else None
        if holder is not None:
            who = f"process {holder}" if holder else "a process elsewhere"
            raise DatabaseInUse(f"{path} is being served by {who}: stop it first")
        if not is_ours:  # by one that has not opened it yet
            raise DatabaseInUse(f"{path} is in use: stop the service, or the other command, first")
        yield


def _connect(path: Path) -> sqlite3.Connection:
    if not os.access(path, os.W_OK):  # SQLite would open it, and fail only at the first write
        raise StoreUnavailable(
            f"{path} may not be written: let this user write to it"
            if path.exists()
            else f"{path} is not there"
        )
    return sqlite3.connect(
        f"{path.absolute().as_uri()}?mode=rw",
        uri=True,
        timeout=OPENING_MS / 1000,
        isolation_level=None,  # we begin and end transactions ourselves
        check_same_thread=False,  # one thread at a time, not always the same
        cached_statements=256,
    )


def _make(path: Path) -> None:
    """Create the file if there never was one, with mode 0600, whatever the process's umask.

    It appears with its header: no start of ours leaves a file of length 0.
    """
    key, log = _sibling(path, ".key"), _sibling(path, "-wal")
    with suppress(FileNotFoundError):
        if path.stat().st_size >= HEADER_OCTETS:
            return
        raise _emptied_error(path)
    if log.exists() and log.stat().st_size:
        raise StoreBroken(
            f"{path} is gone, but its log {log.name} is there: {RECOVERY_HINT} {log.name}"
        )
    if key.exists():
        raise StoreBroken(
            f"{path} is gone, but its key {key.name} is there: {RECOVERY_HINT} {key.name}"
        )
    draft = path.with_name(f"{path.name}.new")
    draft.unlink(missing_ok=True)
    os.close(os.open(draft, os.O_CREAT | os.O_EXCL, 0o600))
    with closing(sqlite3.connect(draft, isolation_level=None)) as db:
        db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    draft.rename(path)


def _accept_backup(path: Path) -> None:
    """Let SQLite write to a backup that was put in the database's place, if it is whole."""
    log = _sibling(path, "-wal")
    if log.exists() and log.stat().st_size:
        raise StoreBroken(
            f"{path} is a backup, and {log.name} is another database's log: remove the log"
        )
    backup_trailer.check_trailer(path)
    backup_trailer.remove_mark(path)


def _extract_key(db: sqlite3.Connection, path: Path) -> None:
    """Make a database of a backup: its secret key goes into the key file, and then out of it.

    A restored backup appears by one renaming, so that its database never has another one's key.
    """
    if not has_table(db, BACKUP):
        return
    ((key,),) = db.execute(f"SELECT secret_key FROM {BACKUP}")
    if key is not None:
        from ..base.encryption import replace_key_beside  # slow, and rarely needed

        replace_key_beside(path, key)
    db.execute("PRAGMA secure_delete = ON")  # its pages are overwritten
    db.execute(f"DROP TABLE {BACKUP}")


def _sibling(path: Path, ending: str) -> Path:
    return path.with_name(f"{path.name}{ending}")


def _emptied_error(path: Path) -> StoreBroken:
    return StoreBroken(
        f"{path} is empty or no database: {RECOVERY_HINT} it and {_sibling(path, '.key').name}"
    )


def _backup_error(path: Path) -> StoreBroken:
    return StoreBroken(f"{path} is a backup: 'mailprobe restore' makes a database of it")


def _check_owner(
    db: sqlite3.Connection, path: Path, owners: Container[int] = (APPLICATION_ID,)
) -> None:
    """Raise StoreBroken for a file of another owner or a newer version, and an emptied one."""
    if _owner(db) == BACKUP_ID and BACKUP_ID not in owners:
        raise _backup_error(path)
    (tables,) = db.execute(
        "SELECT count(*) FROM sqlite_master WHERE name NOT LIKE 'sqlite%'"
    ).fetchone()
    if (tables or _version(db)) and _owner(db) not in owners:
        raise StoreBroken(f"{path} is another program's database")
    if (state := _state(db, path)).is_newer:
        raise StoreBroken(str(state))
    if not tables and (_version(db) or _sibling(path, ".key").exists()):
        raise _emptied_error(path)  # a start creates the key last


def _check_whole(db: sqlite3.Connection, path: Path) -> None:
    if path.stat().st_size > CHECKED_OCTETS_MAX:
        return  # damage is found when the page is read
    (finding,) = db.execute("PRAGMA quick_check(1)").fetchone()
    if finding != "ok":
        raise StoreBroken(f"{path} is damaged: {finding}".replace("\n", " "))


def _migrate(db: sqlite3.Connection) -> None:
    """Apply the missing scripts, each in one transaction, so that an interrupted start can be repeated.

    sqlite-utils records them; the lock that its migrations lack is the caller's.
    `user_version` holds the same as one number, for every connection.
    """
    (mode,) = db.execute("PRAGMA journal_mode = WAL").fetchone()  # a restored copy may have lost it
    if mode != "wal":
        raise StoreUnavailable(
            f"the file system does not support a write-ahead log (journal mode {mode})"
        )
    if _version(db) == len(scripts_of_schema()):
        _keep_writer(db)
        return
    db.execute(f"PRAGMA application_id = {APPLICATION_ID}")  # ours, before anything is in it
    from sqlite_utils import Database, Migrations  # 0.2 s, and needed once in a file's life

    migrations = Migrations("mailprobe")
    for number, script in enumerate(scripts_of_schema(), 1):
        migrations(name=script.stem)(_step(number, script))
    migrations.apply(Database(db, execute_plugins=False))
    _keep_writer(db)


def _keep_writer(db: sqlite3.Connection) -> None:
    """Record this program's version for the schema, unless an earlier one brought it."""
    newest = _newest(db)
    if newest is None or newest[0] < _version(db):
        db.execute(VERSIONS)
        db.execute("INSERT INTO schema_versions VALUES (?, ?)", [_version(db), program_version()])


def _newest(db: sqlite3.Connection) -> tuple[int, str] | None:
    """The newest schema with a recorded version, and that version."""
    if not has_table(db, "schema_versions"):
        return None
    newest: tuple[int, str] | None = db.execute(NEWEST).fetchone()
    return newest


def _state(db: sqlite3.Connection, path: Path) -> SchemaState:
    found, newest = _version(db), _newest(db)
    written_by = newest[1] if newest and newest[0] == found else None
    return SchemaState(str(path), found, len(scripts_of_schema()), written_by)


def schema_state(
    path: Path, *, owners: Container[int] = (APPLICATION_ID, BACKUP_ID)
) -> SchemaState:
    """Read the schema of the file, which is not changed; of none, say so.

    Without owners it refuses what a start refuses, which makes a database of a backup.
    Raises StoreBroken for a file of none of these owners, of a newer version or emptied;
    StoreUnavailable.
    """
    if not path.exists():
        return SchemaState(str(path), 0, len(scripts_of_schema()))
    with explain_error(path):
        if path.stat().st_size < HEADER_OCTETS:
            raise _emptied_error(path)
        # Without a log nobody writes. Read as immutable, it gets no log.
        mode = "ro" if _sibling(path, "-wal").exists() else "ro&immutable=1"
        uri = f"{path.absolute().as_uri()}?mode={mode}"
        with closing(sqlite3.connect(uri, uri=True, timeout=OPENING_MS / 1000)) as db:
            _check_owner(db, path, owners)
            return _state(db, path)


def _step(number: int, script: Path) -> Callable[["Database"], None]:
    """One script; skipped for a file that has it from before sqlite-utils kept the record."""

    def step(db: "Database") -> None:
        if _version(db.conn) >= number:
            return
        for statement in _statements(script.read_text("utf-8")):
            db.conn.execute(statement)
        db.conn.execute(f"PRAGMA user_version = {number}")

    return step


def scripts_of_schema() -> list[Path]:
    return scripts_in(SCHEMA)


@cache
def scripts_in(schema: Path) -> list[Path]:
    """Cached: an upgrade of the program's files while it runs takes effect at the next start."""
    return sorted(schema.glob("*.sql"))


def _statements(script: str) -> Iterator[str]:
    """Yield one statement at a time: executescript() would commit the ones before."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""


def has_table(db: sqlite3.Connection, name: str) -> bool:
    found = db.execute("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?", [name])
    return found.fetchone() is not None


def _owner(db: sqlite3.Connection) -> int:
    (number,) = db.execute("PRAGMA application_id").fetchone()
    return int(number)


def _version(db: sqlite3.Connection) -> int:
    (number,) = db.execute("PRAGMA user_version").fetchone()
    return int(number)
