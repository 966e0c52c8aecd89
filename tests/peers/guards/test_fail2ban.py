"""Debian's fail2ban in front of a mail server, which bans us after five refused recipients."""

import csv
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from mailprobe.engine.verdict import Outcome
from tests.peers.engine_runs import (
    HELO,
    Finding,
    assert_outcome,
    open_engine_for,
    open_resolver,
    verify,
)
from tests.peers.guards.guard import DOMAIN, PORT, Guard, open_guard, zone

LIVING = [f"known{number}@{DOMAIN}" for number in range(300)]


def with_dead(count: int) -> list[str]:
    """The living mailboxes, and this many others at even distances."""
    emails = list(LIVING)
    for number in range(count):
        emails.insert(len(emails) * (number + 1) // (count + 1), f"gone{number}@{DOMAIN}")
    return emails


# Debian's jails, and the mode of their filter where it has modes.
JAILS = [("postfix", "more"), ("postfix", "aggressive"), ("exim", "normal")]


@pytest.fixture(params=JAILS, ids=" ".join)
def guard(request: pytest.FixtureRequest) -> Iterator[Guard]:
    jail, mode = request.param
    with open_guard(jail, mode=mode) as guard:
        yield guard


def assert_nobody_wronged(findings: dict[str, Finding]) -> None:
    """A ban says nothing about a mailbox, and is never taken for a host that is down."""
    for email, finding in findings.items():
        status, cause = finding.verdict.status, finding.cause
        assert status != ("undeliverable" if email in LIVING else "deliverable"), finding
        assert cause[0] not in ("host_down", "host_error", "timeout"), finding
        assert cause[1] != "network", finding


async def test_living_mailboxes_alone_cause_no_ban(guard):
    async with open_engine_for(zone(), PORT) as engine:
        findings = await verify(engine, LIVING)
    for finding in findings.values():
        assert_outcome(finding, Outcome.DELIVERABLE)
    assert not guard.is_banned()


@pytest.mark.parametrize("dead", [6, 18])
async def test_a_ban_blames_us_for_what_it_leaves(guard, dead):
    async with open_engine_for(zone(), PORT) as engine:
        findings = await verify(engine, with_dead(dead))
    guard.wait_for_ban()
    assert_nobody_wronged(findings)
    assert ("blocked_us", "us") in {finding.cause for finding in findings.values()}


async def test_clean_says_that_the_host_refuses_us(tmp_path):
    """The command, with so little patience that it must risk the ban."""
    (tmp_path / "list.csv").write_text("\n".join(["email", *with_dead(18), ""]))
    with open_guard("postfix") as guard:
        async with open_resolver(zone()) as (url, authority):
            done = await run_clean(tmp_path, url, authority, "--patience", "30s", "--recheck", "0")
        guard.wait_for_ban()
    assert done.returncode == 0
    with (tmp_path / "list.verified.csv").open() as file:
        rows = {row["email"]: row for row in csv.DictReader(file)}
    assert rows.keys() == set(with_dead(18))
    reasons = {row["reason"] for row in rows.values()}
    assert "blocked_us" in reasons
    assert reasons <= {"accepted", "untested", "no_mailbox", "blocked_us"}
    assert "host refuses this machine" in done.stdout


async def run_clean(
    folder: Path, url: str, authority: Path, *options: str
) -> subprocess.CompletedProcess[str]:
    """Run `mailprobe clean list.csv` in this folder, and in this thread's network."""
    environ = {
        **os.environ,
        "MAILPROBE_DOH_URLS": url,
        "MAILPROBE_DOH_CA_FILE": str(authority),
        "MAILPROBE_SMTP_HELO": HELO,
        "MAILPROBE_ALLOW_PRIVATE": "1",
    }
    command = [str(Path(sys.executable).with_name("mailprobe")), "clean", "list.csv", *options]
    process = subprocess.Popen(  # noqa: ASYNC220 - another thread's would be in the network outside
        command, cwd=folder, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        out, err = await trio.to_thread.run_sync(process.communicate)
    finally:
        process.kill()
    return subprocess.CompletedProcess(command, process.returncode, out, err)
