"""`mailprobe key`: creates keys, lists them without their secrets, and revokes them for good."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import click
import pytest

from mailprobe.api.cli import main
from tests.api.cli.test_account import RunCli, printed_object, refused, run_cli

__all__ = ["run_cli"]  # the fixture


@pytest.fixture
def account(run_cli: RunCli) -> str:
    made = printed_object(run_cli("account", "create", "--email", "ann@example.org"))
    return str(made["account_id"])


def listed(run_cli: RunCli, *words: str) -> list[Any]:
    return [json.loads(line) for line in run_cli("key", "list", *words).stdout.splitlines()]


@pytest.mark.parametrize(
    ("words", "prefix", "kind"),
    [
        ([], "sk_live_", "standard"),
        (["--test"], "sk_test_", "test"),
        (["--provisioning"], "sk_mgmt_", "provisioning"),
    ],
)
def test_a_key_is_made_and_shown_once(
    run_cli: RunCli, account: str, words: list[str], prefix: str, kind: str
) -> None:
    made = printed_object(run_cli("key", "create", account, "--label", "shop – 1", *words))
    assert made["key"].startswith(prefix)
    assert (made["account_id"], made["kind"], made["label"]) == (account, kind, "shop – 1")
    (found,) = [one for one in listed(run_cli, account) if one["id"] == made["id"]]
    assert found["prefix"] == made["key"][:12]
    assert (found["made_by"], found["last_used_at"]) == ("command_line", None)
    assert "key" not in found
    assert made["key"] not in json.dumps(listed(run_cli))


def test_a_publishable_key_is_bound_to_origins_and_to_a_rate(run_cli: RunCli, account: str) -> None:
    words = ["--origin", "HTTPS://Shop.Test:443/", "--origin", "http://localhost:8000"]
    made = printed_object(run_cli("key", "create", account, *words))
    bounds = {"origins": ["https://shop.test", "http://localhost:8000"], "rate_per_min": 60}
    assert made.pop("key").startswith("pk_live_")
    assert made == {
        "id": made["id"],
        "account_id": account,
        "kind": "form",
        "label": None,
        **bounds,
    }
    test = printed_object(run_cli("key", "create", account, *words, "--test", "--rate", "5"))
    assert test["key"].startswith("pk_test_")
    *_, live, other = listed(run_cli, account)
    assert {name: live[name] for name in bounds} == bounds
    assert (other["kind"], other["rate_per_min"]) == ("form_test", 5)


@pytest.mark.parametrize(
    "words",
    [
        ["--rate", "5"],
        ["--origin", "https://shop.test", "--provisioning"],
        ["--origin", "https://shop.test", "--rate", "0"],
        ["--origin", "*"],
        ["--origin", "https://shop.test\r\nSet-Cookie: a=b"],
    ],
)
def test_a_publishable_key_without_bounds_is_not_made(
    run_cli: RunCli, account: str, words: list[str]
) -> None:
    refused(run_cli("key", "create", account, *words), 2)
    assert len(listed(run_cli, account)) == 2


def test_keys_are_listed_of_one_account_or_of_all(run_cli: RunCli, account: str) -> None:
    other = printed_object(run_cli("account", "create", "--email", "bob@example.org"))["account_id"]
    assert [one["account_id"] for one in listed(run_cli)] == [account] * 2 + [other] * 2
    assert {one["account_id"] for one in listed(run_cli, other)} == {other}
    assert "there is no account" in refused(run_cli("key", "list", "nobody"), 1)


def test_on_a_terminal_the_keys_are_a_table(
    run_cli: RunCli,
    account: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A label shows no control characters, and an id is never cut."""
    ids = [one["id"] for one in listed(run_cli)]
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    with pytest.raises(SystemExit) as end:
        main(["key", "list", account])
    assert end.value.code == 0
    head, _, *rows = click.unstyle(capsys.readouterr().out).splitlines()
    names = ["id", "account", "kind", "prefix", "label", "made", "made by", "last used"]
    assert re.split("  +", head.strip()) == names
    assert all("command line" in row for row in rows)
    assert [row.split()[:3] for row in rows] == [
        [ids[0], account, "standard"],
        [ids[1], account, "provisioning"],
    ]


def test_a_command_that_finds_nothing_in_a_new_database_says_that_it_is_new(
    run_cli: RunCli,
) -> None:
    """That is what the wrong directory looks like."""
    result = run_cli("account", "delete", "0b8f4c1e", "--yes")
    new, missing = result.stderr.splitlines()
    assert result.exit_code == 1
    assert "is a new, empty database" in new
    assert "there is no account 0b8f4c1e" in missing


def test_a_command_that_makes_a_new_database_says_so_once(run_cli: RunCli) -> None:
    first = run_cli("key", "list")
    assert (first.exit_code, first.stdout) == (0, "")
    [line] = first.stderr.splitlines()
    assert str(Path("data/mailprobe.db").absolute()) in line
    assert "MAILPROBE_DATABASE" in line
    assert run_cli("key", "list").stderr == ""


def test_a_revoked_key_is_listed_no_more_and_cannot_be_revoked_again(
    run_cli: RunCli, account: str
) -> None:
    first = listed(run_cli)[0]["id"]
    assert run_cli("key", "revoke", first).exit_code == 0
    assert first not in [one["id"] for one in listed(run_cli)]
    assert f"no active key {first}" in refused(run_cli("key", "revoke", first), 1)


def test_the_tiers_number_of_keys_holds_for_standard_keys(
    run_cli: RunCli, account: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    printed_object(run_cli("key", "create", account))
    assert "all 2 keys" in refused(run_cli("key", "create", account), 1)
    printed_object(run_cli("key", "create", account, "--provisioning"))
    Path("plans.toml").write_text("[free]\nmax_keys = 3\n")
    monkeypatch.setenv("MAILPROBE_PLANS_FILE", "plans.toml")
    printed_object(run_cli("key", "create", account))
    refused(run_cli("key", "create", account), 1)


def test_test_keys_have_a_limit_of_their_own(run_cli: RunCli, account: str) -> None:
    for _ in range(2):
        assert printed_object(run_cli("key", "create", account, "--test"))["kind"] == "test"
    assert "all 2 keys" in refused(run_cli("key", "create", account, "--test"), 1)
    printed_object(run_cli("key", "create", account))


def test_production_makes_no_test_keys(
    run_cli: RunCli, account: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MAILPROBE_PRODUCTION", "1")
    assert "in production" in refused(run_cli("key", "create", account, "--test"), 1)


def test_wrong_options_make_no_key(run_cli: RunCli, account: str) -> None:
    for words in (["--test", "--provisioning"], ["--label", ""], ["--label", "a\nb"]):
        refused(run_cli("key", "create", account, *words), 2)
    refused(run_cli("key", "create", account, "--label", "x" * 101), 2)
    assert "there is no account" in refused(run_cli("key", "create", "nobody"), 1)
    assert len(listed(run_cli)) == 2
