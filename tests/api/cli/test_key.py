"""`mailprobe key`: made, listed without their secrets, revoked for good."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.api.cli.test_account import Ask, ask, refused, told

__all__ = ["ask"]  # the fixture


@pytest.fixture
def account(ask: Ask) -> str:
    made = told(ask("account", "create", "--email", "ann@example.org"))
    return str(made["account_id"])


def listed(ask: Ask, *words: str) -> list[Any]:
    return [json.loads(line) for line in ask("key", "list", *words).stdout.splitlines()]


@pytest.mark.parametrize(
    ("words", "prefix", "kind"),
    [
        ([], "sk_live_", "standard"),
        (["--test"], "sk_test_", "standard"),
        (["--provisioning"], "sk_mgmt_", "provisioning"),
    ],
)
def test_a_key_is_made_and_shown_once(
    ask: Ask, account: str, words: list[str], prefix: str, kind: str
) -> None:
    made = told(ask("key", "create", account, "--label", "shop – 1", *words))
    assert made["key"].startswith(prefix)
    assert (made["account_id"], made["kind"], made["label"]) == (account, kind, "shop – 1")
    (found,) = [one for one in listed(ask, account) if one["id"] == made["id"]]
    assert found["prefix"] == made["key"][:12]
    assert "key" not in found
    assert made["key"] not in json.dumps(listed(ask))


def test_keys_are_listed_of_one_account_or_of_all(ask: Ask, account: str) -> None:
    other = told(ask("account", "create", "--email", "bob@example.org"))["account_id"]
    assert [one["account_id"] for one in listed(ask)] == [account] * 2 + [other] * 2
    assert {one["account_id"] for one in listed(ask, other)} == {other}
    assert "there is no account" in refused(ask("key", "list", "nobody"), 1)


def test_a_revoked_key_is_listed_no_more_and_cannot_be_revoked_again(
    ask: Ask, account: str
) -> None:
    first = listed(ask)[0]["id"]
    assert ask("key", "revoke", first).exit_code == 0
    assert first not in [one["id"] for one in listed(ask)]
    assert f"no active key {first}" in refused(ask("key", "revoke", first), 1)


def test_the_tiers_number_of_keys_holds_for_standard_keys(
    ask: Ask, account: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    told(ask("key", "create", account))
    assert "all 2 keys" in refused(ask("key", "create", account), 1)
    told(ask("key", "create", account, "--provisioning"))
    Path("plans.toml").write_text("[free]\nmax_keys = 3\n")
    monkeypatch.setenv("MAILPROBE_PLANS_FILE", "plans.toml")
    told(ask("key", "create", account, "--test"))
    refused(ask("key", "create", account), 1)


def test_what_is_asked_wrongly_makes_no_key(ask: Ask, account: str) -> None:
    for words in (["--test", "--provisioning"], ["--label", ""], ["--label", "a\nb"]):
        refused(ask("key", "create", account, *words), 2)
    refused(ask("key", "create", account, "--label", "x" * 101), 2)
    assert "there is no account" in refused(ask("key", "create", "nobody"), 1)
    assert len(listed(ask)) == 2
