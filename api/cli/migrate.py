"""`mailprobe migrate`: copies an SQLite database to PostgreSQL, or checks a database's schema."""

import base64
import os
import shlex
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..errors import CommandError, Interrupted, Misuse, print_error
from .runner import run

if TYPE_CHECKING:
    from mailprobe.storage.migrate.run import Move, Moved

    from ..results.counts import ResultCounts


@click.command()
@click.option("--from", "source", metavar="PATH", help="The SQLite database.")
@click.option("--to", "target", metavar="URL", help="postgresql://user:password@host/name")
@click.option(
    "--anew", is_flag=True, help="Delete what an unfinished run has copied, and start over."
)
@click.option(
    "--show-key", is_flag=True, help="Print the MAILPROBE_SECRET_KEY that every machine needs."
)
@click.option(
    "--check",
    "only_check",
    is_flag=True,
    help="Say whether a start of this version would migrate the service's database, and change nothing.",
)
def migrate(
    source: str | None, target: str | None, anew: bool, show_key: bool, only_check: bool
) -> None:
    """Copy accounts, keys, usage and all other data from SQLite to PostgreSQL.

    Stop the service first. The SQLite database is never changed. Repeat the command to
    continue an interrupted run. At the end both databases are compared.

    With --check and nothing else, look at the database of the settings: before an upgrade, run it
    with the new version.
    """
    if only_check:
        if source or target or anew or show_key:
            raise Misuse("--check goes with no other option")
        _check_schema()
    elif source and target:
        _migrate(source, target, anew=anew, show_key=show_key)
    else:
        raise Misuse("takes --from and --to, or --check (see mailprobe migrate --help)")


def _check_schema() -> None:
    """Print what a start would do; exits with 1 if it would migrate the database or refuse it."""
    from mailprobe.storage import schema_state
    from mailprobe.storage.contract import StoreUnavailable

    from ..settings import Settings

    try:
        state = schema_state(Settings.read(os.environ).database)
    except StoreUnavailable as error:  # StoreBroken is one
        raise CommandError(str(error)) from error
    if state.is_newer:
        raise CommandError(str(state))
    click.echo(str(state))
    if state.is_older:
        sys.exit(1)


def _migrate(source: str, target: str, *, anew: bool, show_key: bool) -> None:
    from mailprobe.storage import is_postgres, shown
    from mailprobe.storage.contract import StoreBroken, StoreUnavailable
    from mailprobe.storage.migrate.run import open_move

    from ..settings import Settings

    if not is_postgres(target):
        raise Misuse("--to takes a postgresql:// URL")
    if "://" in source:
        raise Misuse("--from takes the path of an SQLite database")
    given = Settings.read(os.environ).secret_key
    how = shlex.join(["mailprobe", "migrate", "--from", source, "--to", shown(target)])
    try:
        with open_move(Path(source), target, given, anew=anew) as move:
            if move.ended_at:
                print_error(
                    f"{source} was moved to {shown(target)} at {move.ended_at}: nothing to do"
                )
            else:
                print_moved(_move_all(move, how))
            key = move.secret_key
    except StoreBroken as error:
        raise Misuse(str(error)) from error
    except StoreUnavailable as error:
        raise CommandError(f"{error}; repeat the command to continue") from error
    if show_key:
        click.echo(base64.b64encode(key).decode())
    _print_next_steps(source, shown(target), from_file=given is None)


def _move_all(move: "Move", how: str) -> "list[Moved]":
    from mailprobe.storage.contract import StoreBroken

    try:
        return run(lambda: _steps(move))
    except KeyboardInterrupt:
        raise Interrupted(f"interrupted; continue with: {how}") from None
    except StoreBroken as error:  # after rows were written
        raise CommandError(str(error)) from error


async def _steps(move: "Move") -> "list[Moved]":
    """Copy and compare. Each step runs in a thread, and a signal takes effect between steps."""
    import trio

    from ..results.counts import ResultCounts
    from .output.progress import show_progress

    total = await trio.to_thread.run_sync(move.count)
    counts = ResultCounts()
    _count(counts, move)
    async with show_progress(counts, max(1, total)):
        while await trio.to_thread.run_sync(move.step):
            _count(counts, move)
    print_error(f"{counts.done:,} rows copied; comparing both databases")
    moved = [await trio.to_thread.run_sync(move.compare, table) for table in move.tables]
    await trio.to_thread.run_sync(move.end)
    return moved


def _count(counts: "ResultCounts", move: "Move") -> None:
    counts.statuses = Counter(move.rows)
    counts.done = counts.statuses.total()


def print_moved(moved: "list[Moved]") -> None:
    """Print the rows and units of each table."""
    for name, rows, units in [
        ("table", "rows", "units"),
        *((one.table, f"{one.rows:,}", _or_nothing(one.units)) for one in moved),
    ]:
        sys.stdout.write(f"{name:<12} {rows:>15} {units:>15}".rstrip() + "\n")


def _or_nothing(units: int | None) -> str:
    return "" if units is None else f"{units:,}"


def _print_next_steps(source: str, target: str, *, from_file: bool) -> None:
    print_error(f"on every machine, set MAILPROBE_DATABASE to {target}, with its password")
    if from_file:
        print_error(
            f"and MAILPROBE_SECRET_KEY to the content of {source}.key:"
            f" base64 -w0 {shlex.quote(f'{source}.key')} prints it, and so does --show-key"
        )
    else:
        print_error("and MAILPROBE_SECRET_KEY to its value here")
    print_error(f"{source} is unchanged: keep it as a backup, and do not serve it any more")
