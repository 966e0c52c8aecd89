"""Debian's fail2ban in front of a mail server, which bans us after five refused recipients."""

from collections.abc import Iterator

import pytest

from mailprobe.engine.verdict import Outcome
from tests.peers.engine_runs import Finding, assert_outcome, open_engine_for, verify
from tests.peers.guarded import DOMAIN, MAXRETRY, PORT, Guard, open_guard, zone

LIVING = [f"living{number}@{DOMAIN}" for number in range(300)]


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
    assert guard.bans == 0
    assert guard.refusals < MAXRETRY


@pytest.mark.parametrize("dead", [6, 18])
async def test_what_a_ban_leaves_is_blocked_by_our_fault(guard, dead):
    async with open_engine_for(zone(), PORT) as engine:
        findings = await verify(engine, with_dead(dead))
    assert_nobody_wronged(findings)
    assert guard.bans == 1
    assert ("blocked_us", "us") in {finding.cause for finding in findings.values()}
