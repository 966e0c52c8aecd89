"""The operator's store and settings, as commands use them, and their output: a line of JSON each."""

import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, TypeVar

from ..errors import CommandError, print_error
from .runner import run

if TYPE_CHECKING:
    from mailprobe.storage.records import Account
    from mailprobe.storage.store import Store

    from ..settings import Settings

T = TypeVar("T")


def read_settings() -> "Settings":
    from ..settings import Settings

    return Settings.read(os.environ)


def with_store(
    query: "Callable[[Store], Awaitable[T]]",
    settings: "Settings | None" = None,
    *,
    may_be_new: bool = False,
) -> T:
    """Open the operator's store and return what `query` returns. Raises CommandError.

    A database that this makes is mentioned, unless it `may_be_new`: more often than not the
    command runs in another directory than the service.
    """
    from mailprobe.storage import StoreSize, open_store
    from mailprobe.storage.contract import StoreUnavailable

    from ..starting.database import check_database

    settings = settings or read_settings()
    # A request fails within a second, so that its client can repeat it; a command waits.
    size = StoreSize(answer_s=settings.command_s)

    async def open_and_query() -> T:
        async with open_store(
            settings.database, secret_key=settings.secret_key, size=size
        ) as store:
            return await query(store)

    is_new = False
    try:
        check_database(settings)
        is_new = not may_be_new and _is_missing(settings.database)
        return run(open_and_query)
    except StoreUnavailable as error:
        raise CommandError(str(error)) from error
    finally:  # a command that finds nothing is what the wrong directory looks like
        if is_new and not _is_missing(settings.database):
            print_error(
                f"{Path(settings.database).absolute()} did not exist and is a new, empty database; "
                "if the service has another one, run the command in its directory, or set "
                "MAILPROBE_DATABASE"
            )


def _is_missing(database: str) -> bool:
    return "://" not in database and not Path(database).exists()


async def find(store: "Store", account_id: str) -> "Account":
    known = await store.account(account_id) if account_id.isascii() else None
    return known or no_account(account_id)


async def find_undeleted(store: "Store", account_id: str) -> "Account":
    """Raises CommandError for an account that was deleted, too."""
    known = await find(store, account_id)
    if not known.email:
        raise CommandError(
            f"account {account_id} was deleted; 'mailprobe account create' makes one"
        )
    return known


def no_account(account_id: str) -> NoReturn:
    raise CommandError(
        f"there is no account {account_id}; 'mailprobe account list' shows all accounts"
    )


def print_json(value: object) -> None:
    """Print one line of JSON and flush it."""
    import msgspec

    sys.stdout.write(msgspec.json.encode(value).decode() + "\n")
    sys.stdout.flush()
