"""`mailprobe job`: lists callbacks with their attempts, and sends them again."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import trio

from mailprobe.storage import open_store
from mailprobe.storage.records import Attempt, JobOrder, UsageRow
from tests.api.cli.test_account import RunCli, printed_object, refused, run_cli

__all__ = ["run_cli"]  # the fixture

HOOK = "https://hooks.shop.test/mail?token=1"


@pytest.fixture
def jobs(run_cli: RunCli, tmp_path: Path) -> dict[str, str]:
    """Make a pending job, and one that was given up after a 500."""
    account = printed_object(
        run_cli("account", "create", "--email", "ann@example.org", "--tier", "scale")
    )
    return trio.run(make_jobs, Path("data/mailprobe.db"), account)


async def make_jobs(database: Path, account: dict[str, str]) -> dict[str, str]:
    from mailprobe.api.keys import key_hash

    async with open_store(database, secret_key=None) as store:
        caller = await store.caller(key_hash(account["key"]))
        assert caller
        made: dict[str, str] = {"account": account["account_id"]}
        for name in ("failed", "pending"):
            order = JobOrder(str(uuid4()), f"{name}@shop.test", HOOK, "hooks.shop.test", "a secret")
            await store.create_job(caller, order, lambda ledger: None)
            made[name] = order.id
            if name == "failed":
                await give_up(store)
        return made


async def give_up(store: Any) -> None:
    now = datetime.now(UTC)
    bounds = {"limit": 1, "each_max": 1, "lease_s": 60.0}
    (claim,) = await store.claim_jobs("verify", **bounds)
    row = UsageRow(now, "verify", "deliverable", None, 1, True, 7)
    await store.job_verified(claim, row, '{"email":"ä"}'.encode())
    (claim,) = await store.claim_jobs("deliver", **bounds)
    again = now + timedelta(milliseconds=1)
    first = Attempt(1, now, 12, 500)
    assert await store.job_attempted(claim, first, state="delivering", due_at=again)
    while not (claims := await store.claim_jobs("deliver", **bounds)):
        await trio.lowlevel.checkpoint()
    last = Attempt(2, now, 15_000, None, "no answer in time")
    assert await store.job_attempted(claims[0], last, state="failed", due_at=None)


def listed(run_cli: RunCli, *words: str) -> list[Any]:
    return [json.loads(line) for line in run_cli("job", "list", *words).stdout.splitlines()]


def test_jobs_are_listed_newest_first_by_account_and_state(
    run_cli: RunCli, jobs: dict[str, str]
) -> None:
    assert [one["id"] for one in listed(run_cli)] == [jobs["pending"], jobs["failed"]]
    assert [one["id"] for one in listed(run_cli, "--limit", "1")] == [jobs["pending"]]
    (failed,) = listed(run_cli, "--state", "failed", "--account", jobs["account"])
    assert (failed["id"], failed["webhook"], failed["tries"]) == (jobs["failed"], HOOK, 2)
    assert failed["ended_at"]
    assert [one["id"] for one in listed(run_cli, "--id", jobs["failed"][:9])] == [jobs["failed"]]
    assert listed(run_cli, "--id", jobs["failed"][:7]) == []
    assert "there is no account" in refused(run_cli("job", "list", "--account", "nobody"), 1)


def test_a_job_is_shown_with_what_it_posts_and_every_attempt(
    run_cli: RunCli, jobs: dict[str, str]
) -> None:
    done = run_cli("job", "show", jobs["failed"])
    shown = printed_object(done)
    assert shown["payload"] == '{"email":"ä"}'
    assert [(one["number"], one["status"], one["error"]) for one in shown["attempts"]] == [
        (1, 500, None),
        (2, None, "no answer in time"),
    ]
    assert "a secret" not in done.stdout
    assert "there is no job x" in refused(run_cli("job", "show", "x"), 1)


def test_an_id_that_is_no_text_is_none(run_cli: RunCli, jobs: dict[str, str]) -> None:
    assert "there is no job" in refused(run_cli("job", "show", "\udcff"), 1)
    assert "there is no account" in refused(run_cli("job", "list", "--account", "\udcff"), 1)


def test_a_callback_is_made_due_again(run_cli: RunCli, jobs: dict[str, str]) -> None:
    resent = printed_object(run_cli("job", "resend", jobs["failed"]))
    assert (resent["state"], resent["tries"], resent["ended_at"]) == ("delivering", 0, None)
    assert "has no callback yet" in refused(run_cli("job", "resend", jobs["pending"]), 1)
    assert "there is no job x" in refused(run_cli("job", "resend", "x"), 1)
