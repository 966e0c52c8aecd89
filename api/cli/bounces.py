"""`mailprobe bounces`: feeds back what came of mails that were sent. Nothing leaves the machine."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..errors import CommandError, Misuse, print_error
from .operator_store import find, print_json, with_store

if TYPE_CHECKING:
    from mailprobe.storage.records import Account
    from mailprobe.storage.store import Store

    from ..listfile.opening import ReadOptions

SOURCE = "file"


@click.command()
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path))
@click.option(
    "--forget",
    "forgets",
    is_flag=True,
    help="Forget the bounces of the addresses in FILE, or of one address given instead of it.",
)
@click.option(
    "--account",
    "account_id",
    metavar="ID",
    help="Whose mails they were; needed if there are several accounts.",
)
@click.option("--column", metavar="NAME", help="Column of the addresses in a list.")
def bounces(file: Path, forgets: bool, account_id: str | None, column: str | None) -> None:
    """Remember for 90 days which addresses of FILE do not exist.

    FILE is an mbox, a mail (.eml), a folder of mails such as a Maildir, or a list of bounced
    addresses that a mail service exports. The service answers these addresses from then on with
    the reason `bounced`, for this account alone. Other bounces, such as of full mailboxes, are
    counted and change nothing, and so are rows that do not say that mail came back. Only a keyed
    hash of an address is kept. With --forget, FILE may be an address.
    """
    from ..listfile.opening import ReadOptions
    from .scoring.bounces import NOTHING_TAKEN, as_counts, read_bounces

    if forgets:
        _forget(_addresses_of(file, ReadOptions(column)), account_id)
        return
    found = read_bounces(file, ReadOptions(column))
    if found.rows and not found.kinds:
        print_error(NOTHING_TAKEN)

    async def record(store: "Store") -> str:
        account = await _named_account(store, account_id)
        await store.record_bounces(account.id, found.gone, SOURCE)
        return account.id

    print_json(
        {
            "account_id": with_store(record),
            "recorded": len(found.gone),
            **as_counts(found),
            "unread": found.unread,
        }
    )


def _forget(addresses: "list[str]", account_id: str | None) -> None:
    from ..quota.bounced import mailboxes_of

    async def forget(store: "Store") -> tuple[str, int]:
        account = await _named_account(store, account_id)
        return account.id, await store.forget_bounces(account.id, [*mailboxes_of(addresses)])

    account, forgotten = with_store(forget)
    print_json({"account_id": account, "forgotten": forgotten, "addresses": len(addresses)})


def _addresses_of(file: Path, reading: "ReadOptions") -> list[str]:
    """The addresses of a list, or the one that is given instead of a file. Raises BadList."""
    from ..reader.own_list import rows_of

    if "@" in file.name and not file.exists():
        return [str(file)]
    return [row.address for part in rows_of(file, reading) for row in part.rows if row.address]


async def _named_account(store: "Store", account_id: str | None) -> "Account":
    return await (find(store, account_id) if account_id else _only_account(store))


async def _only_account(store: "Store") -> "Account":
    """The account of a store that has one. Raises Misuse, CommandError."""
    accounts = [account for account in await store.accounts() if account.email]
    if not accounts:
        raise CommandError("there is no account; 'mailprobe account create' makes one")
    if len(accounts) > 1:
        raise Misuse("there are several accounts; name one with --account")
    return accounts[0]
