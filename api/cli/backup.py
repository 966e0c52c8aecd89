"""`mailprobe backup` and `mailprobe restore`: the SQLite database and its key, in one file."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import click

from ..errors import CommandError, Interrupted, Misuse, print_error
from .operator_store import read_settings
from .runner import run

T = TypeVar("T")

WITHOUT_KEY = "without a secret key: keep the service's MAILPROBE_SECRET_KEY too"
UNCHECKED = "; an earlier version made it without a checksum, so that it cannot be checked whole"
BESIDE = ("-wal", "-shm", ".key", ".lock")  # files that belong to the database


@click.command()
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path))
@click.option("--force", is_flag=True, help="Replace FILE if it is there.")
def backup(file: Path, force: bool) -> None:
    """Back up the SQLite database into FILE, while the service runs.

    FILE holds the secret key too, and is for its owner alone (mode 0600). Its last octets are its
    length and SHA-256. It appears under its name once it was checked and is on disk.
    """
    from mailprobe.storage import utc_now
    from mailprobe.storage.sqlite.backup import back_up

    from ..listfile.replacing import replacing_by_name

    database, given_key = _database()
    if str(file) == "-":
        raise Misuse("FILE is -: a backup is checked as a file; name one")
    if file.absolute() in _files_of(database):
        raise Misuse(f"{file} belongs to the database itself; name another file")
    if file.exists() and not file.is_file():
        raise Misuse(f"{file} is not a file")
    if file.exists() and not force:
        raise Misuse(f"{file} is there already; name another file, or give --force")
    with _explained(), replacing_by_name(file, may_replace=force) as part:
        made = _in_thread(lambda: back_up(database, part, given_key, now=utc_now()))
    key = "with its secret key: keep it as secret" if made.has_key else WITHOUT_KEY
    print_error(
        f"{database} is backed up in {file}, {made.octets:,} bytes of schema {made.schema}, {key}"
    )


@click.command()
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path))
@click.option("--force", is_flag=True, help="Replace the database if there is one.")
def restore(file: Path, force: bool) -> None:
    """Put the backup FILE in the place of the SQLite database. Stop the service first.

    FILE and its key are checked before anything is changed. The database is replaced at once or not
    at all.
    """
    from mailprobe.storage.sqlite import backup as backups
    from mailprobe.storage.sqlite.file import prepare

    from ..listfile.replacing import replacing_by_name

    database, given_key = _database()
    if not file.is_file():
        raise Misuse(f"{file} is {'not a file' if file.exists() else 'not there'}")
    if backups.is_there(database) and not force:
        raise Misuse(
            f"there is a database at {database.absolute()}; --force replaces it, and what it holds"
            " is lost then"
        )
    with _explained():
        _in_thread(lambda: backups.check_backup(file))
        backups.check_key_for(file, database, given_key)
        with (
            backups.replacing_database(database),
            replacing_by_name(database, may_replace=True) as part,
        ):
            held = _in_thread(lambda: backups.copy_backup(file, part))
            backups.finish_log(database)
        prepare(database)  # takes the key out, and brings the schema up to date
    key = "with its secret key" if held.has_key else WITHOUT_KEY
    unchecked = "" if held.was_checked else UNCHECKED
    print_error(f"{database} is restored as it was at {held.made_at}, {key}{unchecked}")


def _database() -> tuple[Path, bytes | None]:
    """The database of the settings, and the secret key if they have one."""
    from mailprobe.storage import is_postgres

    settings = read_settings()
    database = settings.database
    if is_postgres(database):
        raise Misuse(
            "MAILPROBE_DATABASE is a postgresql:// URL: use pg_dump and pg_restore, and keep"
            " MAILPROBE_SECRET_KEY beside the dump, without which it cannot be read"
        )
    if Path(database).is_dir():
        raise CommandError(f"{database} is a directory, not a database file")
    return Path(database), settings.secret_key


def _files_of(database: Path) -> set[Path]:
    whole = database.absolute()
    return {whole, *(whole.with_name(f"{whole.name}{ending}") for ending in BESIDE)}


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    from mailprobe.storage.contract import StoreUnavailable

    try:
        yield
    except StoreUnavailable as error:  # StoreBroken is one
        raise CommandError(str(error)) from error
    except KeyboardInterrupt:
        raise Interrupted("interrupted; nothing was changed") from None


def _in_thread(work: Callable[[], T]) -> T:
    """Run what SQLite does in one call of minutes, so that a signal takes effect meanwhile."""
    import trio

    return run(lambda: trio.to_thread.run_sync(work, abandon_on_cancel=True))
