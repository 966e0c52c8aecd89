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
    assert_outcome,
    open_engine_for,
    open_resolver,
    verify,
)
from tests.peers.guards.guard import DOMAIN, MAXRETRY, PORT, Guard, open_guard, zone

LIVING = [f"known{number}@{DOMAIN}" for number in range(300)]


def with_dead(count: int) -> list[str]:
    """The living mailboxes, and this many others at even distances."""
    emails = list(LIVING)
    for number in range(count):
        emails.insert(len(emails) * (number + 1) // (count + 1), f"gone{number}@{DOMAIN}")
    return emails


# What was accepted beyond the record of refusals is unconfirmed.
REASONS = {"accepted", "untested", "no_mailbox", "unconfirmed", "blocked_us", "timeout"}
UNDER_WAY = 8  # recipients that a session may have under way when the ban comes

# Debian's jails, and the mode of their filter where it has modes.
JAILS = [("postfix", "more"), ("postfix", "aggressive"), ("exim", "normal")]


@pytest.fixture(params=JAILS, ids=" ".join)
def guard(request: pytest.FixtureRequest) -> Iterator[Guard]:
    jail, mode = request.param
    with open_guard(jail, mode=mode) as guard:
        yield guard


async def test_living_mailboxes_alone_cause_no_ban(guard):
    async with open_engine_for(zone(), PORT) as engine:
        findings = await verify(engine, LIVING)
    for finding in findings.values():
        assert_outcome(finding, Outcome.DELIVERABLE)
    assert not guard.is_banned()


@pytest.mark.parametrize("dead", [6, 18])
async def test_a_ban_blames_us_for_what_it_leaves(guard, dead, tmp_path):
    """`clean`, with so little patience that it must risk the ban.

    It raises what the host is asked for after three seconds, and fail2ban takes less than one to ban.
    What was sent before that may be all that a list with few dead addresses needs.
    """
    emails = with_dead(dead)
    (tmp_path / "list.csv").write_text("\n".join(["email", *emails, ""]))
    async with open_resolver(zone()) as (url, authority):
        done = await run_clean(tmp_path, url, authority)
    guard.wait_for_ban()
    assert done.returncode == 0, done.stderr
    with (tmp_path / "list.verified.csv").open() as file:
        rows = {row["email"]: row for row in csv.DictReader(file)}
    assert rows.keys() == set(emails)
    for email, row in rows.items():
        assert row["status"] != ("undeliverable" if email in LIVING else "deliverable"), row
        assert row["reason"] in REASONS, row
    silent = [row for row in rows.values() if row["reason"] == "timeout"]
    assert len(silent) <= UNDER_WAY  # an open session falls silent; a further pass asks again
    left = [row for row in rows.values() if row["reason"] == "blocked_us"]
    if dead > 2 * MAXRETRY:  # more than it is asked for before it can ban
        assert left
    assert ("host refuses this machine" in done.stdout + done.stderr) is bool(left)


async def test_a_host_gets_no_connection_after_its_ban_and_later_fewer_names(guard):
    """The first list has no patience at all: it has nearly all of its answers before the ban."""
    async with open_engine_for(zone(), PORT) as engine:
        await verify(engine, with_dead(18))
        guard.wait_for_ban()
        refused = guard.refusals
        for _ in range(2):
            findings = await verify(engine, [f"x{email}" for email in LIVING[:50]])
            assert {each.cause for each in findings.values()} == {("blocked_us", "us")}
        [spent] = engine.probing.overview.spent_budgets()
    assert guard.refusals == refused >= MAXRETRY
    assert spent.refused >= MAXRETRY > spent.tolerance


async def run_clean(folder: Path, url: str, authority: Path) -> "subprocess.CompletedProcess[str]":
    """Run `mailprobe clean list.csv` in this folder, in this thread's network, with little patience."""
    environ = {
        **os.environ,
        "MAILPROBE_DOH_URLS": url,
        "MAILPROBE_DOH_CA_FILE": str(authority),
        "MAILPROBE_SMTP_HELO": HELO,
        "MAILPROBE_ALLOW_PRIVATE": "1",
    }
    program = str(Path(sys.executable).with_name("mailprobe"))
    options = ["--patience", "30s", "--recheck", "0", "--strict-clocks"]
    process = subprocess.Popen(  # noqa: ASYNC220 - another thread's would be in the network outside
        [program, "clean", "list.csv", *options],
        cwd=folder,
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        out, err = await trio.to_thread.run_sync(process.communicate)
    finally:
        process.kill()
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)
