"""`mailprobe pause`, `drain` and their sisters change what every service of the database follows."""

import json
from pathlib import Path
from typing import Any

import pytest
import trio

from mailprobe.storage import open_store
from tests.api.cli.test_account import RunCli, printed_object, run_cli

__all__ = ["run_cli"]  # the fixture


def printed(run_cli: RunCli, *words: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in run_cli(*words).stdout.splitlines()]


def test_a_pause_is_printed_listed_and_ended(run_cli: RunCli) -> None:
    account_id = printed_object(run_cli("account", "create", "--email", "a@b.test"))["account_id"]
    [made] = printed(run_cli, "pause", "domain", "Bücher.Example.", "--for", "2h", "--why", "asked")
    assert (made["name"], made["why"]) == ("xn--bcher-kva.example", "asked")
    assert made["until"] > made["since"]
    printed(run_cli, "pause", "operator", "Google")
    printed(run_cli, "pause", "account", account_id)
    assert [(each["kind"], each["name"]) for each in printed(run_cli, "pauses")] == [
        ("account", account_id),
        ("domain", "xn--bcher-kva.example"),
        ("operator", "google"),
    ]
    entries = printed(run_cli, "account", "audit", account_id)
    assert (entries[0]["kind"], entries[0]["actor"]) == ("lists_paused", "command_line")
    assert run_cli("unpause", "domain", "bücher.example").exit_code == 0
    assert run_cli("unpause", "operator", "google").exit_code == 0
    again = run_cli("unpause", "operator", "google")
    assert (again.exit_code, "not paused" in again.stderr) == (1, True)
    assert len(printed(run_cli, "pauses")) == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("pause operator gogle", "known are"),
        ("pause operator other", "known are"),
        ("pause domain localhost", "is not a domain"),
        ("pause domain ann@shop.test", "is not a domain"),
        ("pause domain [192.0.2.1]", "is not a domain"),
        ("pause domain shop.test --for 2w", "such as 30s"),
        ("pause domain shop.test --for 9999h", "at most 31d"),
        (f"pause domain shop.test --why {'w' * 201}", "at most 200"),
        ("pause machine a", "is not one of"),
        ("drain elsewhere", "no machine 'elsewhere'"),
    ],
)
def test_wrong_usage_is_named(run_cli: RunCli, words: str, message: str) -> None:
    got = run_cli(*words.split())
    assert (got.exit_code, message in got.stderr) == (2, True), got.stderr
    assert printed(run_cli, "pauses") == []


def test_an_account_that_is_not_there_is_named(run_cli: RunCli) -> None:
    got = run_cli("pause", "account", "nonsense")
    assert (got.exit_code, "there is no account" in got.stderr) == (1, True)


async def note(*names: str) -> None:
    async with open_store(Path("data/mailprobe.db"), secret_key=None) as store:
        for name in names:
            await store.note_machine(name, "1.0")


def test_the_last_machine_is_drained_with_a_warning(run_cli: RunCli) -> None:
    run_cli("pauses")
    trio.run(note, "a", "b")
    first, last = run_cli("drain", "a", "--why", "kernel"), run_cli("drain", "b")
    assert (first.exit_code, first.stderr) == (0, "")
    assert (last.exit_code, "no machine is left" in last.stderr) == (0, True)
    found = printed(run_cli, "machines")
    assert [(each["machine"], each["live"], each["drained"]) for each in found] == [
        ("a", True, True),
        ("b", True, True),
    ]
    assert run_cli("undrain", "a").exit_code == 0
    assert run_cli("undrain", "a").exit_code == 1
    assert [each["drained"] for each in printed(run_cli, "machines")] == [False, True]
