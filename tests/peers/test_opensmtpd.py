"""OpenSMTPD, which speaks in step: it offers no PIPELINING and refuses two commands in one write."""

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from mailprobe.engine.testing.zone import Zone
from mailprobe.engine.verdict import Outcome
from tests.peers import measured
from tests.peers.engine_runs import ask, asking, assert_told
from tests.peers.opensmtpd import opensmtpd
from tests.peers.programs import Program

# Each character's options of `listen on`.
CHARACTERS = {
    "plain": "",
    "filtered": "filter recipients",
    "banner": "filter no-banner",
    "helo": "filter no-helo",
    "sender": "filter no-sender",
    "encrypted": "tls-require pki peer",
    "authenticated": "tls pki peer auth",
}
ADDRESSES = {name: f"127.0.30.{number}" for number, name in enumerate(CHARACTERS, 1)}
NOBODY = "127.0.30.250"

# A filter can refuse for now, so greylisting can be had, if for fixed names alone: the daemon itself
# keeps no list of who came before.
CONFIGURATION = """
smtp max-message-size "10M"
smtp limit max-rcpt 5
pki peer cert "/peers/opensmtpd/chain"
pki peer key "/peers/opensmtpd/key"

filter grey phase rcpt-to match rcpt-to { "grey@filtered.smtpd.test" } reject "451 4.7.1 Greylisted, please try again later"
filter full phase rcpt-to match rcpt-to { "full@filtered.smtpd.test" } reject "552 5.2.2 Mailbox full"
filter full-now phase rcpt-to match rcpt-to { "full-now@filtered.smtpd.test" } reject "452 4.2.2 Mailbox full"
filter disabled phase rcpt-to match rcpt-to { "disabled@filtered.smtpd.test" } reject "550 5.2.1 Mailbox disabled"
filter recipients chain { grey, full, full-now, disabled }
filter no-banner phase connect match src { 127.0.0.0/8 } reject "554 5.7.1 Your host is blocked"
filter no-helo phase ehlo match src { 127.0.0.0/8 } reject "550 5.7.1 Your name does not resolve"
filter no-sender phase mail-from match src { 127.0.0.0/8 } reject "550 5.7.1 No bounces here"

table mailboxes file:/peers/opensmtpd/mailboxes
table aliases file:/peers/opensmtpd/aliases
table domains file:/peers/opensmtpd/domains
LISTENERS
action "virtual" mbox virtual <mailboxes>
action "listed" mbox alias <aliases>
match from any for domain <domains> action "virtual"
match from any for domain "users.smtpd.test" action "listed"
"""

KNOWN = [f"known{number}" for number in range(30)]

CASES = [
    ("plain", "known0", Outcome.DELIVERABLE_UNTESTED),
    ("plain", "nobody", Outcome.REFUSED_BY_POLICY),  # in words that may mean a loop as well
    ("users", "ann", Outcome.DELIVERABLE),
    ("users", "known0", Outcome.UNDELIVERABLE),
    ("all", "anybody", Outcome.CATCH_ALL),
    ("foreign", "ann", Outcome.UNDELIVERABLE),  # the very words that it has for an unknown mailbox
    ("filtered", "grey", Outcome.TEMPORARY),
    ("filtered", "full", Outcome.MAILBOX_FULL),
    ("filtered", "full-now", Outcome.MAILBOX_FULL),
    ("filtered", "disabled", Outcome.UNDELIVERABLE),
    ("banner", "known0", Outcome.CONVERSATION_FAILED),
    ("helo", "known0", Outcome.DELIVERABLE_UNTESTED),  # EHLO is refused and HELO is not
    ("sender", "known0", Outcome.CONVERSATION_FAILED),
    # It demands TLS, and with OpenSSL 3 fails its own handshake, whoever the client is.
    ("encrypted", "known0", Outcome.CONVERSATION_FAILED),
    ("authenticated", "known0", Outcome.CONVERSATION_FAILED),
]


def domain(name: str) -> str:
    return f"{name}.smtpd.test"


def tables() -> dict[str, str]:
    mailboxes = [f"{each}@{domain(name)} nobody" for name in CHARACTERS for each in KNOWN]
    mailboxes.append(f"@{domain('all')} nobody")
    return {
        "mailboxes": "".join(f"{line}\n" for line in mailboxes),
        "aliases": "".join(f"{name}: nobody\n" for name in ("ann", "ben", *KNOWN[10:])),
        "domains": "".join(f"{domain(name)}\n" for name in (*CHARACTERS, "all")),
    }


@dataclass(frozen=True)
class Peer:
    program: Program
    port: int


@pytest.fixture(scope="module")
def peer() -> Iterator[Peer]:
    listeners = {
        ADDRESSES[name]: f"hostname mx.smtpd.test {options}" for name, options in CHARACTERS.items()
    }
    with opensmtpd(CONFIGURATION, listeners, tables()) as (program, port):
        yield Peer(program, port)


@pytest.fixture
def zone() -> Zone:
    zone = Zone()
    for name, address in ADDRESSES.items():
        zone.host(f"mx.{domain(name)}", address)
        zone.mx(domain(name), f"mx.{domain(name)}")
    for name in ("users", "all", "foreign"):
        zone.mx(domain(name), f"mx.{domain('plain')}")
    zone.host("mx.gone.test", NOBODY)
    return zone


@pytest.mark.parametrize(("name", "local_part", "outcome"), CASES)
async def test_a_case_is_told_right(peer, zone, name, local_part, outcome):
    text = f"{local_part}@{domain(name)}"
    async with asking(zone, peer.port) as engine:
        reported = (await ask(engine, [text]))[text]
    measured.note("OpenSMTPD", f"{name}: {local_part}", reported)
    assert_told(reported, outcome)


async def test_every_address_gets_its_verdict_in_step(peer, zone):
    """One command at a time, and five recipients a message."""
    known = [f"{each}@{domain('users')}" for each in KNOWN[10:]]
    unknown = [f"nobody{number}@{domain('users')}" for number in range(40)]
    async with asking(zone, peer.port) as engine:
        reported = await ask(engine, [*unknown, *known])
    for text in known:
        assert_told(reported[text], Outcome.DELIVERABLE)
    for text in unknown:
        assert_told(reported[text], Outcome.UNDELIVERABLE)
    assert "Too many recipients" in peer.program.said()
    assert "Pipelining not supported" not in peer.program.said()


async def test_a_backup_that_refuses_is_believed(peer, zone):
    zone.mx(domain("users"), "mx.gone.test", f"mx.{domain('plain')}")
    texts = {
        f"nobody0@{domain('users')}": Outcome.UNDELIVERABLE,
        f"ann@{domain('users')}": Outcome.DELIVERABLE,
    }
    async with asking(zone, peer.port) as engine:
        reported = await ask(engine, texts)
    for text, outcome in texts.items():
        assert_told(reported[text], outcome)
