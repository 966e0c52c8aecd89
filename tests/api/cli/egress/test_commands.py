"""`mailprobe egress`: what the operator sees of the egresses, pauses and resumes."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import trio

from mailprobe.storage import open_store
from mailprobe.storage.egresses import EgressCount, EgressReport, ReplyCount
from mailprobe.storage.shared_cache import NewFact
from mailprobe.storage.tolerances import LearnedTolerance, RefusalRequest, Refusals
from tests.api.cli.test_account import RunCli, printed_object, refused, run_cli

__all__ = ["run_cli"]  # the fixture

EXAMPLE = Path(__file__).parents[4] / "examples" / "egress.toml"
PASSWORD = "pass" + "word"


@pytest.fixture
def with_file(run_cli: RunCli, monkeypatch: pytest.MonkeyPatch) -> RunCli:
    monkeypatch.setenv("MAILPROBE_EGRESS_FILE", str(EXAMPLE))
    return run_cli


async def use() -> None:
    """A service asks 100 addresses by fra-2, of which hosts of Google refuse 25."""
    today = datetime.now(UTC).date()
    async with open_store(Path("data/mailprobe.db"), secret_key=None) as store:
        await store.report_egresses(
            EgressReport(
                today,
                [EgressCount("fra-2", today, 100), EgressCount("gone", today, 7)],
                replies=[
                    ReplyCount("fra-2", "google", "blocked_us", today, 25),
                    ReplyCount("fra-2", "other", "accepted", today, 75),
                ],
                quarantined={"ams-1": "9 of 10 answers refused us"},
            )
        )
        backoff = '["REFUSED_BY_POLICY","blocklist",3]'
        facts = [
            NewFact("backoff", "fra-2 name mx.example.com", backoff, 600),
            NewFact("backoff", "fra-2 address 192.0.2.1", backoff, 600),
            NewFact("backoff", "fra-2 name mx.example.net", "[", 600),
            NewFact("backoff", "fra-1 name mx.example.net", backoff, 600),
        ]
        await store.write_facts(facts, by_process="a service")
        banned = LearnedTolerance(careful=True, tolerance=9, ceiling=9, ban_ages_s=(120.0,))
        refusals = [Refusals(900.0, "one", 4), Refusals(30.0, "one", 3)]
        asked = {
            ("fra-2", "mx.example.net"): RefusalRequest(*(0, False, 16, None, 0, refusals, banned)),
            ("fra-2", "mx.example.org"): RefusalRequest(0, False, 16),  # it has refused nothing
            ("fra-1", "mx.example.com"): RefusalRequest(0, False, 16, refusals=refusals),
        }
        await store.lease_refusals("a service", asked, lease_s=30)


def rows(run_cli: RunCli, *words: str) -> dict[str, dict[str, Any]]:
    result = run_cli(*words)
    assert result.exit_code == 0, result.output
    assert PASSWORD not in result.output
    return {row["name"]: row for row in map(json.loads, result.stdout.splitlines())}


def test_every_egress_of_the_file_is_listed_with_its_day(with_file: RunCli) -> None:
    account = printed_object(with_file("account", "create", "--email", "ann@example.org"))
    trio.run(use)
    found = rows(with_file, "egress", "list", "--json")
    assert list(found) == ["fra-1", "fra-2", "ams-1"]
    assert found["fra-2"] | {"last_refused_at": None, "limit_today": 0} == {
        "name": "fra-2", "way": "192.0.2.11", "state": "active", "since": None, "why": None,
        "addresses_today": 100, "limit_today": 0, "answers_today": 100, "refused_today": 25,
        "last_refused_at": None, "last_refused_by": "google",
    }  # fmt: skip
    assert (found["ams-1"]["state"], found["ams-1"]["way"]) == (
        "quarantined",
        "socks5 198.51.100.20:1080",
    )
    table = with_file("egress", "list").stdout
    assert "25.0%" in table
    assert "by google" in table
    shown = rows(with_file, "egress", "show", "fra-2", "--json")["fra-2"]
    assert shown["addresses_a_day"][0] == {"since": "2026-11-01", "addresses": 500}
    assert [(each["operator"], each["times"]) for each in shown["replies"]] == [
        ("google", 25), ("other", 75),
    ]  # fmt: skip
    [rest] = shown["resting"]
    assert (rest["host"], rest["rule"]) == ("mx.example.com", "blocklist")
    assert 590 <= rest["left_s"] <= 600
    [refused_by] = shown["refused_recipients"]
    assert 470 <= refused_by.pop("rest_left_s") <= 480
    assert refused_by == {
        "host": "mx.example.net", "refused_10_minutes": 3, "refused_hour": 7, "tolerance": 9,
        "learned_from_ban": True,
    }  # fmt: skip
    lines = with_file("egress", "show", "fra-2").stdout
    assert "rests at        mx.example.com, blocklist, for 10 min" in lines
    assert (
        "refused by      mx.example.net: 3 of 9 in 10 minutes, learned from a ban,"
        " 7 within the hour, rests for 8 min"
    ) in lines
    assert "from 2026-11-08" in with_file("egress", "show", "fra-2").stdout
    every = with_file("egress", "show").stdout
    assert "9 of 10 answers refused us" in every
    assert PASSWORD not in table + every

    assert rows(with_file, "egress", "pause", "fra-1", "ams-1")["fra-1"]["state"] == "paused"
    again = with_file("egress", "pause", "fra-1")
    assert (again.exit_code, again.stderr) == (0, "mailprobe: fra-1 is paused already\n")
    states = [each["state"] for each in rows(with_file, "egress", "list", "--json").values()]
    assert states == ["paused", "active", "paused"]
    rows(with_file, "egress", "resume", "fra-1", "ams-1")
    states = [each["state"] for each in rows(with_file, "egress", "list", "--json").values()]
    assert states == ["active"] * 3
    entries = [
        json.loads(line)
        for line in with_file("account", "audit", account["account_id"]).stdout.splitlines()
    ]
    acts = [(each["kind"], each["name"], each["actor"]) for each in entries]
    assert ("egress_paused", "ams-1", "command_line") in acts
    assert ("egress_resumed", "fra-1", "command_line") in acts


@pytest.mark.parametrize("words", [("show",), ("pause",), ("resume",)])
def test_a_name_that_is_not_there_is_refused_with_those_that_are(
    with_file: RunCli, words: tuple[str, ...]
) -> None:
    line = refused(with_file("egress", *words, "fra-3"), 2)
    assert "no egress is called 'fra-3'; there are fra-1, fra-2, ams-1" in line
    assert "no egress is called 'fra-3'" in refused(with_file("doctor", "--egress", "fra-3"), 2)


@pytest.mark.parametrize("words", [("list",), ("show", "a"), ("pause", "a")])
def test_without_a_file_one_line_says_how_to_have_egresses(
    run_cli: RunCli, words: tuple[str, ...]
) -> None:
    assert "MAILPROBE_EGRESS_FILE is not set" in refused(run_cli("egress", *words), 2)
    assert not Path("data").exists()
