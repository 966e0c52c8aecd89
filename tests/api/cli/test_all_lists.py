"""`mailprobe list`: the operator sees and stops the lists of all accounts."""

import json
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import trio

from mailprobe.storage import open_store
from tests.api.cli.test_account import RunCli, printed_object, run_cli
from tests.storage.contract.list_calls import running

__all__ = ["run_cli"]  # the fixture


@pytest.fixture
def made(run_cli: RunCli) -> list[tuple[str, str]]:
    """Make a running list for each of two accounts; return their accounts and ids."""
    pairs = []
    for email in ("ann@example.org", "bob@example.org"):
        account = printed_object(run_cli("account", "create", "--email", email, "--tier", "scale"))
        pairs.append((account["account_id"], trio.run(running_list, account)))
    return pairs


async def running_list(account: dict[str, str]) -> str:
    from mailprobe.api.keys import key_hash

    async with open_store(Path("data/mailprobe.db"), secret_key=None) as store:
        caller = await store.caller(key_hash(account["key"]))
        assert caller
        return (await running(store, caller, 1, id=str(uuid4()))).id


def printed(run_cli: RunCli, *words: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in run_cli(*words).output.splitlines()]


def test_lists_of_all_accounts_are_listed_paused_resumed_and_cancelled(
    run_cli: RunCli, made: list[tuple[str, str]]
) -> None:
    (ann, ann_list), (bob, bob_list) = made
    assert {each["list_id"] for each in printed(run_cli, "list", "ls")} == {ann_list, bob_list}
    [paused] = printed(run_cli, "list", "pause", "--account", ann)
    assert (paused["list_id"], paused["state"], paused["cause"]) == (
        ann_list, "paused", "paused_by_operator",
    )  # fmt: skip
    [running] = printed(run_cli, "list", "ls", "--state", "running")
    assert (running["account_id"], running["list_id"]) == (bob, bob_list)
    assert [each["state"] for each in printed(run_cli, "list", "resume", ann_list)] == ["running"]
    ended = printed(run_cli, "list", "cancel", ann_list, bob_list)
    assert [each["state"] for each in ended] == ["cancelled", "cancelled"]
    assert printed(run_cli, "list", "ls") == []
    assert len(printed(run_cli, "list", "ls", "--all")) == 2
    [found] = printed(run_cli, "list", "ls", "--all", "--search", ann_list[:6])
    assert found["list_id"] == ann_list
    assert printed(run_cli, "list", "ls", "--all", "--search", "no such") == []


def test_a_list_that_does_not_change_is_named(run_cli: RunCli, made: list[tuple[str, str]]) -> None:
    (_, ann_list), _ = made
    result = run_cli("list", "resume", ann_list, "nonsense")
    assert result.exit_code == 1
    assert f"no list that is paused: {ann_list}, nonsense" in result.stderr
    assert run_cli("list", "pause").exit_code == 2


def test_a_list_is_counted(run_cli: RunCli, made: list[tuple[str, str]]) -> None:
    (_, ann_list), (_, bob_list) = made
    counted = printed(run_cli, "list", "summary", ann_list, bob_list.upper())
    assert [each["list_id"] for each in counted] == [ann_list, bob_list]
    assert [(each["addresses"], each["answered"]) for each in counted] == [(1, 0), (1, 0)]
    result = run_cli("list", "summary", "nonsense")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "no list nonsense" in result.stderr
