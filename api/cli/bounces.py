"""`mailprobe bounces`: feeds back what came of mails that were sent. Nothing leaves the machine."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from mailprobe.api.cli.account import find, print_json, with_store
from mailprobe.api.errors import CommandError, Misuse

if TYPE_CHECKING:
    from mailprobe.storage.records import Account
    from mailprobe.storage.store import Store

SOURCE = "file"


@click.command()
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path))
@click.option(
    "--account", "account_id", metavar="ID", help="Whose mails they were; needed if there are more."
)
@click.option("--column", metavar="NAME", help="Column of the addresses in a list.")
def bounces(file: Path, account_id: str | None, column: str | None) -> None:
    """Remember for 90 days which addresses of FILE do not exist.

    FILE is an mbox, a mail (.eml), a folder of mails such as a Maildir, or a list of bounced
    addresses that a mail service exports. The service answers these addresses from then on with
    the reason `bounced`, for this account alone. Other bounces, such as of full mailboxes, are
    counted and change nothing, and so are rows that do not say that mail came back. Only a keyed
    hash of an address is kept.
    """
    from mailprobe.api.cli.scoring.bounces import as_counts, read_bounces
    from mailprobe.api.listfile import ReadOptions

    found = read_bounces(file, ReadOptions(column))

    async def record(store: "Store") -> str:
        account = await (find(store, account_id) if account_id else _only_account(store))
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


async def _only_account(store: "Store") -> "Account":
    """The account of a store that has one. Raises Misuse, CommandError."""
    accounts = [account for account in await store.accounts() if account.email]
    if not accounts:
        raise CommandError("there is no account; 'mailprobe account create' makes one")
    if len(accounts) > 1:
        raise Misuse("there are several accounts; name one with --account")
    return accounts[0]
