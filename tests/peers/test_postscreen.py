"""Postfix's postscreen: a first line at once, and the last one when its tests are done."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest
import trio

from mailprobe.bench.peers import resolver
from mailprobe.bench.world.zone import Zone
from mailprobe.engine.verdict import Outcome
from tests.peers.mail_servers import Domains, MailServer
from tests.peers.programs.postfix import open_postfix

RESOLVER = "127.0.14.53"  # at port 53: Postfix's libraries know no other
LISTS = "-o { postscreen_dnsbl_sites = zen.blocklist.test }"
OPTIONS = {
    "dropped": f"{LISTS} -o {{ postscreen_dnsbl_action = drop }}",
    "enforced": f"{LISTS} -o {{ postscreen_dnsbl_action = enforce }}",
    # A client that has passed a test of its commands must come back: it may not go on at once.
    "tested": "-o { postscreen_non_smtp_command_enable = yes }",
    "unlisted": "-o { postscreen_dnsbl_sites = other.blocklist.test } -o { postscreen_dnsbl_action = drop }",
}
DOMAINS = Domains("screened.test", "127.0.14", tuple(OPTIONS))

# The first line comes at once, the last one after two seconds: less than these tests wait for a greeting.
MAIN = """
virtual_mailbox_domains = regexp:{ { /[.]screened[.]test$$/ x } }
virtual_mailbox_maps = regexp:{ { /^known[0-9]+@/ x } }
postscreen_greet_wait = 2s
postscreen_cache_map =
"""

# domain's first label, local part, outcome, what the reply says, reason and blame
CASES = [
    ("dropped", "known0", Outcome.CONVERSATION_FAILED, "521 5.7.1 Service unavailable", True),
    ("enforced", "known0", Outcome.REFUSED_BY_POLICY, "550 5.7.1 Service unavailable", True),
    ("tested", "known0", Outcome.TEMPORARY, "450 4.3.2 Service currently unavailable", False),
    ("tested", "nobody", Outcome.TEMPORARY, "450 4.3.2 Service currently unavailable", False),
    ("unlisted", "known0", Outcome.DELIVERABLE, "250", False),
    ("unlisted", "nobody", Outcome.UNDELIVERABLE, "550 5.1.1", False),
]


@pytest.fixture(scope="module")
def mail_server() -> Iterator[MailServer]:
    listeners = {
        DOMAINS.addresses[name]: f"1 postscreen {options}" for name, options in OPTIONS.items()
    }
    with open_postfix(MAIN, listeners, {}, name="screen", resolver=RESOLVER) as (program, port):
        yield MailServer("Postfix", DOMAINS, program, port)


@asynccontextmanager
async def blocklists() -> AsyncIterator[None]:
    """Serve two lists; one has the client's address."""
    zone = Zone()
    zone.host("1.0.0.127.zen.blocklist.test", "127.0.0.2")
    zone.host("2.0.0.127.other.blocklist.test", "127.0.0.2")
    async with trio.open_nursery() as nursery:
        await nursery.start(resolver.serve, zone, RESOLVER)
        yield
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(("label", "local_part", "outcome", "words", "about_us"), CASES)
async def test_a_screened_client_is_judged_by_the_last_line(
    mail_server, zone, label, local_part, outcome, words, about_us
):
    async with blocklists():
        finding = await mail_server.check_case(
            zone, label, local_part, outcome, case=f"postscreen, {label}"
        )
    assert words in finding.deciding_reply
    assert (finding.cause == ("blocked_us", "us")) is about_us
    assert "PREGREET" not in mail_server.program.logs()
