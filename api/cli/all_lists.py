"""`mailprobe list`: the lists of all accounts, for the operator. Prints JSON, one object per line."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, get_args

import click

from mailprobe.storage.list_records import ENDED, ListState

from ..errors import CommandError, Misuse
from ..operations.parameter_texts import LIST_SEARCH
from . import COMMANDS
from .operator_store import find, print_json, with_store
from .shell.options import F

if TYPE_CHECKING:
    from collections import Counter

    from mailprobe.storage.list_records import ListWaits, StoredList
    from mailprobe.storage.store import Store

    from ..results.marks import ResultKind

WAITS_AT_ONCE = 1_000  # lists in one call of the store
CAUSE = "paused_by_operator"  # what pages and the API show
# A command's state, and those that it changes.
CHANGES: dict[str, tuple[ListState, tuple[ListState, ...]]] = {
    "pause": ("paused", ("running",)),
    "resume": ("running", ("paused",)),
    "cancel": ("cancelled", ("running", "paused")),
}


list_ = click.Group("list", help=COMMANDS["list"].summary)


@list_.command()
@click.option("--account", "account_id", metavar="ID", help="Only lists of this account.")
@click.option(
    "--state",
    type=click.Choice(get_args(ListState)),
    help="Only lists in this state. Default: those that have not ended.",
)
@click.option(
    "--search",
    "text",
    metavar="TEXT",
    default="",
    help=LIST_SEARCH,
)
@click.option("--all", "is_all", is_flag=True, help="Ended lists too.")
def ls(account_id: str | None, state: str | None, text: str, is_all: bool) -> None:
    """List lists, newest first, one JSON object per line."""
    found = with_store(lambda store: _with_waits(store, account_id))
    for each, waits in found:
        if each.matches(text) and _is_wanted(each.state, state, is_all=is_all):
            print_json(_shown(each, waits))


def _is_wanted(state: ListState, only: str | None, *, is_all: bool) -> bool:
    return state == only if only else is_all or state not in ENDED


@list_.command()
@click.argument("list_ids", metavar="ID...", nargs=-1, required=True)
def summary(list_ids: Sequence[str]) -> None:
    """Count the results of lists. By light, status and reason, one JSON object per list."""

    async def read(store: "Store") -> "list[tuple[StoredList, Counter[ResultKind]]]":
        from ..lists.table import read_marks

        found = []
        for each in list_ids:
            if (stored := await store.stored_list(each.lower())) is None:
                raise CommandError(f"no list {each}; 'mailprobe list ls --all' shows all")
            found.append((stored, (await read_marks(store, stored)).counts))
        return found

    from ..operations.list_jobs import summary_of

    for stored, counts in with_store(read):
        print_json(summary_of(stored, counts))


def _lists_option(command: F) -> F:
    command = click.option(
        "--account", "account_id", metavar="ID", help="All lists of this account."
    )(command)
    return click.argument("list_ids", metavar="[ID]...", nargs=-1)(command)


@list_.command()
@_lists_option
def pause(list_ids: Sequence[str], account_id: str | None) -> None:
    """Pause running lists. Nothing more is asked until they are resumed, by you or their owner."""
    _change("pause", list_ids, account_id)


@list_.command()
@_lists_option
def resume(list_ids: Sequence[str], account_id: str | None) -> None:
    """Let paused lists go on. One whose key was revoked stays paused."""
    _change("resume", list_ids, account_id)


@list_.command()
@_lists_option
def cancel(list_ids: Sequence[str], account_id: str | None) -> None:
    """End lists. What is answered stays, and nothing more is asked or counted."""
    _change("cancel", list_ids, account_id)


def _change(word: str, list_ids: Sequence[str], account_id: str | None) -> None:
    """Change the lists; print those that changed. Exit 1 if a named one did not."""
    if bool(list_ids) == bool(account_id):
        raise Misuse(f"list {word} takes ids of lists, or --account")
    state, before = CHANGES[word]

    async def change_all(store: "Store") -> "tuple[list[StoredList], list[str]]":
        ids = list(list_ids) or [each.id for each in await _lists(store, account_id)]
        changed, unchanged = [], []
        for each in ids:
            cause = CAUSE if word == "pause" else None
            done = await store.change_list(each.lower(), state, before=before, cause=cause)
            if done is not None and done.state == state:
                changed.append(done)
            else:
                unchanged.append(each)
        return changed, unchanged

    from mailprobe.storage.list_records import NO_WAITS

    changed, unchanged = with_store(change_all)
    for each in changed:
        print_json(_shown(each, NO_WAITS))
    if list_ids and unchanged:
        words = " or ".join(before)
        raise CommandError(
            f"no list that is {words}: {', '.join(unchanged)}; 'mailprobe list ls --all' shows all"
        )


async def _with_waits(
    store: "Store", account_id: str | None
) -> "list[tuple[StoredList, ListWaits]]":
    """The lists, each with what waits of it for its mail hosts."""
    from mailprobe.storage.list_records import NO_WAITS

    found, waits = await _lists(store, account_id), {}
    running = [each.id for each in found if each.state == "running"]
    for first in range(0, len(running), WAITS_AT_ONCE):
        waits.update(await store.list_waits(running[first : first + WAITS_AT_ONCE]))
    return [(each, waits.get(each.id, NO_WAITS)) for each in found]


async def _lists(store: "Store", account_id: str | None) -> "list[StoredList]":
    """The lists of one account, or of all, newest first."""
    from mailprobe.storage.contract import LISTED_MAX

    accounts = [await find(store, account_id)] if account_id else await store.accounts()
    found: list[StoredList] = []
    for account in accounts:
        found += await store.lists(account.id, limit=LISTED_MAX)
    return sorted(found, key=lambda each: each.created_at, reverse=True)


def _shown(found: "StoredList", waits: "ListWaits") -> dict[str, object]:
    from ..lists.stages import standing_of

    standing = standing_of(found, waits, datetime.now(UTC))
    return {
        "list_id": found.id,
        "account_id": found.account_id,
        "name": found.name,
        "state": found.state,
        "cause": found.cause,
        "rows": found.rows,
        "addresses": found.addresses,
        "answered": found.answered,
        "created_at": found.created_at,
        "stage": standing.stage,
        "waits_for": standing.waits_for,
        "waits_until": standing.waits_until,
        "is_test": found.is_test,
    }
