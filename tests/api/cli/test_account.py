"""`mailprobe account`: prints JSON, or one line for an error."""

import json
import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from mailprobe.api.cli import main
from mailprobe.api.cli.operator_store import read_settings, with_store
from mailprobe.api.errors import CommandError
from mailprobe.api.keys import kind_of, well_formed
from mailprobe.storage.store import Store

RunCli = Callable[..., Result]


@pytest.fixture
def run_cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunCli:
    """Run `mailprobe` in its own directory, without this machine's settings."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("MAILPROBE_")]:
        monkeypatch.delenv(name)
    return lambda *words: CliRunner().invoke(main, words)


def printed_object(result: Result) -> Any:
    assert result.exit_code == 0, result.output
    assert len(result.stdout.splitlines()) == 1
    return json.loads(result.stdout)


def refused(result: Result, code: int) -> str:
    assert result.exit_code == code, result.output
    assert result.stdout == ""
    assert len(result.stderr.splitlines()) == 1
    return result.stderr


def test_an_account_is_made_with_a_key_of_each_kind(run_cli: RunCli) -> None:
    made = printed_object(
        run_cli("account", "create", "--email", "ann@example.org", "--tier", "builder")
    )
    assert list(made) == ["account_id", "tier", "key", "provisioning_key"]
    assert made["tier"] == "builder"
    assert made["key"].startswith("sk_live_")
    assert made["provisioning_key"].startswith("sk_mgmt_")
    for key in (made["key"], made["provisioning_key"]):
        assert well_formed(key)
    assert kind_of(made["provisioning_key"]) == "provisioning"
    assert Path("data/mailprobe.db").exists()
    assert made["key"].encode() not in Path("data/mailprobe.db").read_bytes()


def test_the_tier_is_free_unless_said(run_cli: RunCli) -> None:
    assert (
        printed_object(run_cli("account", "create", "--email", "ann@example.org"))["tier"] == "free"
    )


def test_an_own_account_is_shown_with_the_tier_scale(run_cli: RunCli) -> None:
    create = ("account", "create", "--email", "ann@example.org", "--own")
    made = printed_object(run_cli(*create))
    assert (made["tier"], made["own"]) == ("scale", True)
    shown = printed_object(run_cli("account", "show", made["account_id"]))
    assert (shown["tier"], shown["own"]) == ("scale", True)
    for tier, own in (("--tier=free", False), ("--own", True)):
        changed = printed_object(run_cli("account", "set", made["account_id"], tier))
        assert changed["own"] is own
    assert "exclude each other" in refused(run_cli(*create, "--tier", "scale"), 2)


def test_accounts_are_listed_and_shown(run_cli: RunCli) -> None:
    assert run_cli("account", "list").stdout == ""
    ids = [
        printed_object(run_cli("account", "create", "--email", f"{n}@example.org"))["account_id"]
        for n in "ab"
    ]
    lines = [json.loads(line) for line in run_cli("account", "list").stdout.splitlines()]
    assert [line["account_id"] for line in lines] == ids
    shown = printed_object(run_cli("account", "show", ids[0]))
    assert shown == lines[0]
    assert (shown["email"], shown["soft_cap_eur"], shown["alerts"]) == ("a@example.org", None, True)


def test_settings_are_changed_one_by_one(run_cli: RunCli) -> None:
    account = printed_object(run_cli("account", "create", "--email", "ann@example.org"))[
        "account_id"
    ]
    assert printed_object(run_cli("account", "set", account, "--tier", "scale"))["tier"] == "scale"
    changed = printed_object(
        run_cli("account", "set", account, "--soft-cap", "12.50", "--hard-cap", "20")
    )
    assert (changed["soft_cap_eur"], changed["hard_cap_eur"]) == (12.5, 20.0)
    changed = printed_object(
        run_cli("account", "set", account, "--soft-cap", "none", "--alerts", "off")
    )
    assert (changed["soft_cap_eur"], changed["hard_cap_eur"]) == (None, 20.0)
    assert (changed["alerts"], changed["tier"]) == (False, "scale")
    assert printed_object(run_cli("account", "show", account)) == changed


def test_a_cap_of_nothing_is_a_cap(run_cli: RunCli) -> None:
    account = printed_object(run_cli("account", "create", "--email", "ann@example.org"))[
        "account_id"
    ]
    assert (
        printed_object(run_cli("account", "set", account, "--hard-cap", "0"))["hard_cap_eur"] == 0.0
    )


@pytest.mark.parametrize("cap", ["-1", "1e3", "12,50", "1.001", "", "٢٥", "nan", "9" * 10])
def test_a_wrong_cap_changes_nothing(run_cli: RunCli, cap: str) -> None:
    account = printed_object(run_cli("account", "create", "--email", "ann@example.org"))[
        "account_id"
    ]
    line = refused(run_cli("account", "set", account, "--alerts", "off", f"--hard-cap={cap}"), 2)
    assert "--hard-cap" in line
    assert printed_object(run_cli("account", "show", account))["alerts"] is True


def test_acts_of_the_command_line_are_in_the_audit_log(run_cli: RunCli) -> None:
    made = printed_object(run_cli("account", "create", "--email", "ann@example.org"))
    account = made["account_id"]
    key = printed_object(run_cli("key", "create", account, "--label", "checkout"))
    run_cli("key", "revoke", key["id"])
    run_cli("account", "set", account, "--tier", "scale", "--hard-cap", "20")
    lines = run_cli("account", "audit", account).stdout.splitlines()
    entries = [json.loads(line) for line in lines][::-1]
    assert [entry["kind"] for entry in entries] == [
        "account_created", *3 * ["key_created"], "key_revoked", "plan_changed", "caps_changed",
    ]  # fmt: skip
    assert {entry["actor"] for entry in entries} == {"command_line"}
    assert (entries[4]["subject_id"], entries[4]["name"]) == (key["id"], "checkout")
    assert key["key"] not in "".join(lines)
    run_cli("account", "delete", account, "--yes")
    entry = printed_object(run_cli("account", "audit", account))
    assert (entry["kind"], entry["actor"]) == ("account_deleted", "command_line")


def test_an_account_that_is_not_there_is_said_so(run_cli: RunCli) -> None:
    run_cli("account", "list")  # makes the database
    for words in (("show", "nobody"), ("audit", "nobody"), ("set", "nobody", "--alerts", "on")):
        assert "there is no account nobody" in refused(run_cli("account", *words), 1)


def test_nothing_to_change_is_wrong_usage(run_cli: RunCli) -> None:
    refused(run_cli("account", "set", "nobody"), 2)


def test_an_email_that_is_none_makes_no_account(run_cli: RunCli) -> None:
    refused(run_cli("account", "create", "--email", "not an address"), 2)
    assert not Path("data").exists()


def test_a_database_that_cannot_be_used_is_one_line(
    run_cli: RunCli, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("bad.db").write_text("hello")
    monkeypatch.setenv("MAILPROBE_DATABASE", "bad.db")
    assert "bad.db" in refused(run_cli("account", "list"), 1)
    monkeypatch.setenv("MAILPROBE_DATABASE", "postgresql://u:s3cret@db.test/x")
    line = refused(run_cli("account", "list"), 2)
    assert "postgresql" in line
    assert "s3cret" not in line


def test_an_email_address_has_one_account(run_cli: RunCli) -> None:
    made = printed_object(run_cli("account", "create", "--email", "ann@example.org"))
    line = refused(run_cli("account", "create", "--email", "Ann@Example.org"), 1)
    assert "has an account already" in line
    assert f"mailprobe key create {made['account_id']}" in line
    assert len(run_cli("account", "list").stdout.splitlines()) == 1


def test_an_account_is_deleted_once_its_id_was_typed(
    run_cli: RunCli, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = printed_object(run_cli("account", "create", "--email", "ann@example.org"))
    id = made["account_id"]
    delete = ("account", "delete", id)
    assert "--yes" in refused(run_cli(*delete), 2)
    monkeypatch.setattr("mailprobe.api.cli.account._is_terminal", lambda: True)
    other = CliRunner().invoke(main, delete, input="ann@example.org\n")
    assert (other.exit_code, "another id" in other.stderr) == (1, True)
    assert printed_object(run_cli("account", "show", id))["email"] == "ann@example.org"
    typed = CliRunner().invoke(main, delete, input=f"{id}\n")
    assert json.loads(typed.stdout) == {"account_id": id, "deleted": True, "customer_id": None}
    assert json.loads(run_cli("account", "show", id).stdout)["deleted"]
    for words in (("key", "create", id), ("account", "set", id, "--tier", "free")):
        assert f"account {id} was deleted" in refused(run_cli(*words), 1)
    assert printed_object(run_cli("account", "show", id))["email"] == ""
    assert run_cli("key", "list", id).stdout == ""
    assert printed_object(run_cli(*delete, "--yes"))["deleted"] is True
    assert "no account" in refused(run_cli("account", "delete", "none", "--yes"), 1)


def test_a_command_waits_for_the_database_as_long_as_is_set(
    run_cli: RunCli, monkeypatch: pytest.MonkeyPatch
) -> None:
    printed_object(run_cli("account", "create", "--email", "ann@example.org"))
    monkeypatch.setenv("MAILPROBE_COMMAND_SECONDS", "1")
    settings = read_settings()

    async def create_while_locked(store: Store) -> None:
        with closing(sqlite3.connect(settings.database, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            await store.create_account("bob@example.org", "free")

    with pytest.raises(CommandError, match="did not answer within 1 s"):
        with_store(create_while_locked, settings)
