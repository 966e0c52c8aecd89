"""`mailprobe bounces`: what a file says of mailboxes is kept for one account."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import trio
from click.testing import CliRunner, Result

from mailprobe.api.cli import main
from mailprobe.storage import open_store

LIST = """email,type,reason
gone@shop.test,hard,550 5.1.1 User unknown
full@shop.test,soft,452 4.2.2 Mailbox full
blocked@shop.test,hard,550 5.7.1 Message rejected as spam
"""


@pytest.fixture
def run_cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("MAILPROBE_")]:
        monkeypatch.delenv(name)
    return lambda *words: CliRunner().invoke(main, words)


def kept(account_id: str) -> set[str]:
    async def read() -> set[str]:
        async with open_store("data/mailprobe.db", secret_key=None) as store:
            names = [f"{name}@shop.test" for name in ("gone", "full", "blocked")]
            return set(await store.bounces(account_id, names))

    return trio.run(read)


def test_mailboxes_that_do_not_exist_are_kept_for_the_account(
    run_cli: Callable[..., Result],
) -> None:
    Path("list.csv").write_text(LIST)
    assert run_cli("bounces", "list.csv").exit_code == 1  # no account
    ann, bob = (
        json.loads(run_cli("account", "create", "--email", f"{name}@shop.test").stdout)
        for name in ("ann", "bob")
    )
    assert run_cli("bounces", "list.csv").exit_code == 2  # whose?
    said = run_cli("bounces", "list.csv", "--account", ann["account_id"])
    assert json.loads(said.stdout) == {
        "account_id": ann["account_id"], "recorded": 1, "ignored": 2, "unread": 0,
    }  # fmt: skip
    assert kept(ann["account_id"]) == {"gone@shop.test"}
    assert kept(bob["account_id"]) == set()
    assert run_cli("account", "delete", "--yes", bob["account_id"]).exit_code == 0
    assert run_cli("bounces", "list.csv").exit_code == 0  # the only one that is left
