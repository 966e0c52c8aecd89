"""`mailprobe job`: asynchronous verifications and their callbacks. Prints JSON, one object per line."""

from typing import TYPE_CHECKING, get_args

import click

from mailprobe.storage.contract import ID_PREFIX_MIN, LISTED_MAX
from mailprobe.storage.records import JobState

from ..errors import CommandError
from . import COMMANDS
from .operator_store import find, print_json, with_store

if TYPE_CHECKING:
    from mailprobe.storage.records import Attempt, Job
    from mailprobe.storage.store import Store

LISTED = 100


job = click.Group("job", help=COMMANDS["job"].summary)


@job.command("list")
@click.option("--account", "account_id", metavar="ID", help="Only jobs of this account.")
@click.option("--state", type=click.Choice(get_args(JobState)), help="Only jobs in this state.")
@click.option(
    "--id",
    "prefix",
    metavar="ID",
    help=f"Only jobs whose id begins with this, at least {ID_PREFIX_MIN} characters.",
)
@click.option(
    "--limit",
    type=click.IntRange(1, LISTED_MAX),
    default=LISTED,
    show_default=True,
    help="How many.",
)
def list_(account_id: str | None, state: JobState | None, prefix: str | None, limit: int) -> None:
    """List jobs, newest first, one JSON object per line."""

    async def some(store: "Store") -> "list[Job]":
        if account_id:
            await find(store, account_id)
        return await store.jobs(account_id=account_id, state=state, prefix=prefix, limit=limit)

    for one in with_store(some):
        print_json(_shown(one))


@job.command()
@click.argument("job_id", metavar="ID")
def show(job_id: str) -> None:
    """Show a job, its payload, and every attempt to post it."""

    async def whole(store: "Store") -> "tuple[Job, list[Attempt]]":
        return await _find(store, job_id), await store.attempts(job_id)

    one, attempts = with_store(whole)
    print_json(
        {
            **_shown(one),
            "payload": None if one.payload is None else one.payload.decode(),
            "attempts": attempts,
        }
    )


@job.command()
@click.argument("job_id", metavar="ID")
def resend(job_id: str) -> None:
    """Resend a callback at once, with all its retries. The running service sends it."""

    async def again(store: "Store") -> "Job | None":
        if (await _find(store, job_id)).webhook is None:
            raise CommandError(f"job {job_id} has no webhook: its result is fetched, not posted")
        return await store.resend_job(job_id)

    resent = with_store(again)
    if resent is None:
        raise CommandError(f"job {job_id} has no callback yet: its verification has not ended")
    print_json(_shown(resent))


async def _find(store: "Store", job_id: str) -> "Job":
    one = await store.job(job_id) if job_id.isascii() else None
    if one is None:
        raise CommandError(f"there is no job {job_id}; 'mailprobe job list' shows all jobs")
    return one


def _shown(one: "Job") -> dict[str, object]:
    return {
        "id": one.id,
        "account_id": one.account_id,
        "email": one.email,
        "webhook": one.webhook,
        "state": one.state,
        "created_at": one.created_at,
        "due_at": one.due_at,
        "tries": one.tries,
        "ended_at": one.ended_at,
    }
