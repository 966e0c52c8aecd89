"""Files of bounces: kept for one account by `mailprobe bounces`, or known to an engine of one's own."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import trio
from click.testing import CliRunner, Result

from mailprobe.api.cli import main
from mailprobe.api.cli.scoring.bounces import bounced_in
from mailprobe.api.cli.source import OwnEngine
from mailprobe.bench.world.fake_network import open_fake_network
from mailprobe.bench.world.mail_host import MailHost
from mailprobe.storage import open_store
from tests.engine.engine_runs import open_test_engine

LIST = """email,type,reason
gone@shop.test,hard,550 5.1.1 User unknown
full@shop.test,soft,452 4.2.2 Mailbox full
blocked@shop.test,hard,550 5.7.1 Message rejected as spam
ann@shop.test,,
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
        "account_id": ann["account_id"],
        "recorded": 1,
        "read_as": "column type",
        "taken": {"no_mailbox": 1, "refused": 1, "temporary": 1},
        "ignored": 1,
        "examples": {
            "no_mailbox": ["gone@shop.test (type: hard)"],
            "temporary": ["full@shop.test (type: soft)"],
            "refused": ["blocked@shop.test (type: hard)"],
            "ignored": ["ann@shop.test"],
        },
        "unread": 0,
    }
    assert kept(ann["account_id"]) == {"gone@shop.test"}
    assert kept(bob["account_id"]) == set()
    Path("plain.txt").write_text("gone@shop.test\n")
    said = run_cli("bounces", "plain.txt", "--account", bob["account_id"])
    assert (json.loads(said.stdout)["recorded"], kept(bob["account_id"])) == (0, set())
    assert "no row reports a bounce" in said.stderr
    Path("forget.txt").write_text("Gone@shop.test\nfull@shop.test\n")
    for what, forgotten, count in (("other@shop.test", 0, 1), ("forget.txt", 1, 2)):
        said = run_cli("bounces", "--forget", what, "--account", ann["account_id"])
        counts = {"forgotten": forgotten, "addresses": count}
        assert json.loads(said.stdout) == {"account_id": ann["account_id"], **counts}
    assert kept(ann["account_id"]) == set()
    run_cli("bounces", "list.csv", "--account", ann["account_id"])
    said = run_cli("bounces", "gone@shop.test", "--forget", "--account", ann["account_id"])
    assert json.loads(said.stdout)["forgotten"] == 1
    assert run_cli("bounces", "--forget", "missing.csv", "--account", "x").exit_code == 2
    assert run_cli("account", "delete", "--yes", bob["account_id"]).exit_code == 0
    assert run_cli("bounces", "list.csv").exit_code == 0  # the only one that is left


async def test_an_engine_of_ones_own_asks_about_no_address_that_bounced(autojump_clock, tmp_path):
    """The host would accept every one of these addresses."""
    path = tmp_path / "list.csv"
    path.write_text(LIST)
    said: list[str] = []
    async with open_fake_network() as network:
        network.add("shop.test", MailHost(mailboxes=frozenset({"gone", "full", "blocked"})))
        async with open_test_engine(network) as engine:
            source = OwnEngine(engine, bounced=bounced_in(path, said.append))
            texts = ["Gone@shop.test", "gone@other.test", "full@shop.test", "blocked@shop.test"]
            async with source.open_answers(texts, explain=True) as answers:
                found = {answer.verdict.email: answer async for answer in answers}
    gone = found["Gone@shop.test"]
    assert (gone.verdict.status, gone.verdict.failed_check) == ("undeliverable", "smtp")
    assert gone.evidence is not None
    assert (gone.evidence.reason, gone.evidence.rule) == ("bounced", "bounced: file, list.csv")
    assert gone.evidence.conversation == []
    whole = (
        "list.csv, read as column type: 1 without a mailbox, such as gone@shop.test (type: hard)"
    )
    assert whole in said
    reasons = [found[text].cause.reason for text in texts]
    assert reasons == ["bounced", "no_mx", "accepted", "accepted"]


@pytest.mark.parametrize(
    "words",
    [("verify", "ann@shop.test"), ("clean", "list.csv"), ("mcp",)],
    ids=lambda words: words[0],
)
def test_a_file_of_bounces_is_for_this_machines_own_engine(
    run_cli: Callable[..., Result], words: tuple[str, ...]
) -> None:
    Path("list.csv").write_text(LIST)
    service = ("--server", "http://127.0.0.1:1", "--key", "sk_live_x")
    refused = run_cli(*words, "--bounces", "list.csv", *service)
    assert refused.exit_code == 2
    assert "own engine" in refused.stderr
    missing = run_cli(*words, "--bounces", "missing.csv")
    assert (missing.exit_code, missing.stderr.count("\n")) == (2, 1)
    assert "missing.csv cannot be read" in missing.stderr
