"""Lists that take hours at a server that Debian's fail2ban guards, on virtual time.

The engine and a scripted Postfix meet in memory. The server's refusals are then counted by fail2ban's
own code: would it have banned us?
"""

from random import Random

import pytest
import trio

from mailprobe.api.cli.cleaning.addresses import DistinctAddresses
from mailprobe.api.cli.cleaning.passes import Passes, Recheck
from mailprobe.api.cli.source import OwnEngine
from mailprobe.api.listfile.journal import VERSION, Header, open_journal
from mailprobe.bench.world.defended_hosts import defended_host
from mailprobe.bench.world.fake_network import open_fake_network
from mailprobe.bench.world.mail_host import MailHost
from mailprobe.engine import Engine, EngineSettings, open_engine
from mailprobe.engine.settings import DOH_URLS
from tests.peers.guards.guard import DOMAIN, MAXRETRY
from tests.peers.guards.test_fail2ban import LIVING, with_dead
from tests.peers.programs.failures import FailureCounts

FINDTIME_S = 600.0  # Debian's
SETTINGS = EngineSettings(doh_urls=DOH_URLS[:1], helo_name="probe.peers.test", allow_private=True)


def refused_at_s(host: MailHost) -> list[float]:
    """When it refused recipients."""
    commands = [each for session in host.record.sessions for each in session.commands_seen]
    return sorted(
        each.at_s
        for each in commands
        if each.line.startswith("RCPT") and (each.reply or "").startswith("55")
    )


def is_banned_at(times_s: list[float]) -> float | None:
    """When fail2ban bans a client with failures at these times, if it does."""
    counts = FailureCounts(MAXRETRY, FINDTIME_S)
    return next((at_s for at_s in times_s if counts.bans_after(at_s)), None)


def test_fail2ban_counts_a_rate_and_no_sliding_window():
    """Four refusals in ten minutes, and a fifth when the first one has left: it bans."""
    assert is_banned_at([0, 1, 2, 3, 601]) == 601
    assert is_banned_at([0, 1, 2, 3, 610]) is None
    assert is_banned_at([0, 150, 300, 450, 601]) == 601


@pytest.mark.parametrize("dead", [0, 6, 18])
async def test_a_list_that_may_wait_is_never_banned_and_loses_nothing(autojump_clock, dead):
    host = defended_host("postfix", f"mx.{DOMAIN}")
    async with open_fake_network() as network:
        network.add(DOMAIN, host)
        async with open_engine(
            SETTINGS,
            transport=network.transport,
            dial=network.dial,
            rng=Random(0),
            computed_s=lambda: 0.0,
        ) as engine:
            statuses = await clean(engine, with_dead(dead))
    assert is_banned_at(refused_at_s(host)) is None
    assert statuses == {
        email: "deliverable" if email in LIVING else "undeliverable" for email in with_dead(dead)
    }


async def clean(engine: Engine, emails: list[str]) -> dict[str, str]:
    """As `mailprobe clean --patience 4h` does it; returns the statuses."""
    addresses = DistinctAddresses()
    for email in emails:
        addresses.add(email)
    recheck = Recheck(patience_s=4 * 3600.0)
    with open_journal(None, Header(VERSION, 1, "ab" * 32), resume=False) as journal:
        await Passes(addresses, journal, recheck, now=trio.current_time).run(OwnEngine(engine))
        return {result.email: result.status for _, result in journal.answers()}
