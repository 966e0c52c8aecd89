"""Exim, with Debian's limits and what its operators add."""

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import trustme

from mailprobe.engine.testing.zone import Zone
from mailprobe.engine.verdict import Outcome
from tests.peers import measured
from tests.peers.engine_runs import REAL_CLOCKS, ask, asking, assert_told
from tests.peers.exim import exim
from tests.peers.programs import Program

CHARACTERS = (
    "plain",
    "slow",
    "alone",
    "single",
    "few",
    "banner",
    "helo",
    "sender",
    "quick",
    "encrypted",
    "named",
)
ADDRESSES = {name: f"127.0.20.{number}" for number, name in enumerate(CHARACTERS, 1)}
NOBODY = "127.0.20.250"

# Who listens there is told by $received_ip_address.
CONFIGURATION = """
primary_hostname = mx.exim.test
exim_path = /usr/sbin/exim4
spool_directory = /peers/exim/spool
log_file_path = /peers/exim/%slog
pid_file_path = /peers/exim/pid
log_selector = +smtp_connection +smtp_protocol_error +smtp_syntax_error
host_lookup =
rfc1413_query_timeout = 0s
keep_environment =
daemon_smtp_ports = 25
tls_advertise_hosts = ${if eq{$received_ip_address}{ENCRYPTED}{*}{}}
tls_certificate = /peers/exim/chain
smtp_accept_max = 100
smtp_accept_max_per_host = ${if eq{$received_ip_address}{ALONE}{1}{100}}
recipients_max = 5000
acl_smtp_connect = connect
acl_smtp_helo = hello
acl_smtp_mail = mail
acl_smtp_rcpt = rcpt
domainlist known = CHARACTERS_DOMAINS : many.exim.test
domainlist all = all.exim.test

begin acl

connect:
  deny    condition = ${if eq{$received_ip_address}{BANNER}}
          message   = 5.7.1 Your host is listed at zen.spamhaus.org
  accept  condition = ${if eq{$received_ip_address}{SLOW}}
          delay     = 5s
  accept

hello:
  deny    condition = ${if eq{$received_ip_address}{HELO}}
          message   = HELO name $sender_helo_name does not resolve
  accept

mail:
  deny    condition = ${if eq{$received_ip_address}{SENDER}}
          senders   = :
          message   = we do not accept bounces here
  deny    condition = ${if eq{$received_ip_address}{NAMED}}
          senders   = check@probe.peers.test
          message   = Sender verify failed
  deny    condition = ${if eq{$received_ip_address}{ENCRYPTED}}
          !encrypted = *
          message   = 530 5.7.0 Must issue a STARTTLS command first
  accept

rcpt:
  defer   local_parts = grey
          message     = Greylisted, please try again in 300 seconds
  defer   local_parts = full-now
          message     = 452 4.2.2 Mailbox full
  deny    local_parts = full
          message     = 552 5.2.2 Mailbox quota exceeded for this recipient
  deny    local_parts = disabled
          message     = 550 5.2.1 Account disabled
  deny    local_parts = latin
          message     = Bo\xeete aux lettres inconnue: user unknown
  deny    local_parts = listed
          message     = rejected because $sender_host_address is in a black list at bl.spamcop.net
  deny    local_parts = bare
  deny    local_parts = spam
          message     = This message was classified as spam
  defer   local_parts = verify
          message     = Could not complete recipient verify callout
  defer   condition   = ${if and{{eq{$received_ip_address}{SINGLE}}{>{$rcpt_count}{1}}}}
          message     = 452 4.5.3 Too many recipients: one at a time
  defer   condition   = ${if and{{eq{$received_ip_address}{FEW}}{>{$rcpt_count}{5}}}}
          message     = 452 too many recipients
  deny    condition   = ${if and{{eq{$received_ip_address}{QUICK}}{>{$rcpt_fail_count}{3}}}}
          message     = Too many bad recipients
  deny    domains     = ! +known : ! +all
          message     = relay not permitted
  require verify      = recipient
  accept

begin routers

all:
  driver = accept
  domains = +all
  transport = nowhere

moved:
  driver = redirect
  domains = +known
  local_parts = gone
  allow_fail
  data = :fail: gone has moved to ann@elsewhere.test

off:
  driver = redirect
  domains = +known
  local_parts = off
  allow_defer
  data = :defer: mailbox is being moved

known:
  driver = accept
  domains = +known
  local_parts = \\N^known\\d+$\\N
  transport = nowhere

begin transports

nowhere:
  driver = appendfile
  file = /dev/null
  user = nobody
"""

KNOWN = [f"known{number}" for number in range(40)]

CASES = [
    ("plain", "known0", Outcome.DELIVERABLE),
    ("plain", "nobody", Outcome.UNDELIVERABLE),
    (
        "plain",
        "gone",
        Outcome.REFUSED_BY_POLICY,
    ),  # words of their own: what we can't read condemns nobody
    ("plain", "off", Outcome.TEMPORARY),
    ("all", "anybody", Outcome.CATCH_ALL),
    ("foreign", "ann", Outcome.REFUSED_BY_POLICY),
    ("plain", "grey", Outcome.TEMPORARY),
    ("plain", "full", Outcome.MAILBOX_FULL),
    ("plain", "full-now", Outcome.MAILBOX_FULL),
    ("plain", "disabled", Outcome.UNDELIVERABLE),
    ("plain", "latin", Outcome.UNDELIVERABLE),
    ("plain", "listed", Outcome.REFUSED_BY_POLICY),
    ("plain", "bare", Outcome.REFUSED_BY_POLICY),
    ("plain", "spam", Outcome.REFUSED_BY_POLICY),
    ("plain", "verify", Outcome.TEMPORARY),
    ("banner", "known0", Outcome.CONVERSATION_FAILED),
    ("helo", "known0", Outcome.CONVERSATION_FAILED),
    ("sender", "known0", Outcome.CONVERSATION_FAILED),
    ("slow", "known0", Outcome.TIMED_OUT),
    ("encrypted", "known0", Outcome.DELIVERABLE),
    ("encrypted", "nobody", Outcome.UNDELIVERABLE),
]


def domain(name: str) -> str:
    return f"{name}.exim.test"


def configuration() -> bytes:
    text = CONFIGURATION.replace("CHARACTERS_DOMAINS", " : ".join(map(domain, CHARACTERS)))
    for name, address in ADDRESSES.items():
        text = text.replace(f"{{{name.upper()}}}", f"{{{address}}}")
    return text.encode("latin-1")


@dataclass(frozen=True)
class Peer:
    program: Program
    port: int


@pytest.fixture(scope="module")
def peer() -> Iterator[Peer]:
    chain = trustme.CA().issue_cert("mx.exim.test").private_key_and_cert_chain_pem.bytes()
    with exim(list(ADDRESSES.values()), configuration(), chain) as (program, port):
        yield Peer(program, port)


@pytest.fixture
def zone() -> Zone:
    zone = Zone()
    for name, address in ADDRESSES.items():
        zone.host(f"mx.{domain(name)}", address)
        zone.mx(domain(name), f"mx.{domain(name)}")
    for name in ("all", "foreign"):
        zone.mx(domain(name), f"mx.{domain('plain')}")
    zone.host("mx.gone.test", NOBODY)
    return zone


@pytest.mark.parametrize(("name", "local_part", "outcome"), CASES)
async def test_a_case_is_told_right(peer, zone, name, local_part, outcome):
    text = f"{local_part}@{domain(name)}"
    clocks = REAL_CLOCKS if outcome is Outcome.TIMED_OUT else {}
    async with asking(zone, peer.port, **clocks) as engine:
        reported = (await ask(engine, [text]))[text]
    measured.note("Exim", f"{name}: {local_part}", reported)
    assert_told(reported, outcome)


@pytest.mark.parametrize("local_part", ["known0", "nobody"])
async def test_a_host_that_refuses_the_named_sender_is_asked_with_the_null_one(
    peer, zone, local_part
):
    text = f"{local_part}@{domain('named')}"
    async with asking(zone, peer.port, mail_from="check@probe.peers.test") as engine:
        reported = (await ask(engine, [text]))[text]
    measured.note("Exim", f"named, then null: {local_part}", reported)
    known = local_part == "known0"
    assert_told(reported, Outcome.DELIVERABLE if known else Outcome.UNDELIVERABLE)


@pytest.mark.parametrize("name", ["plain", "alone", "single", "few", "encrypted"])
async def test_every_address_gets_its_verdict(peer, zone, name):
    """One connection alone; one recipient or five a message: RSET for each, and Exim bears ten."""
    known = [f"{each}@{domain(name)}" for each in KNOWN[:30]]
    unknown = [f"nobody{number}@{domain(name)}" for number in range(30)]
    async with asking(zone, peer.port) as engine:
        reported = await ask(
            engine, [text for pair in zip(known, unknown, strict=True) for text in pair]
        )
    for text in known:
        assert_told(reported[text], Outcome.DELIVERABLE)
    for text in unknown:
        assert_told(reported[text], Outcome.UNDELIVERABLE)
    if name in ("single", "few"):
        assert "oo many recipients" in peer.program.said()
    assert "nonmail" not in peer.program.said()


async def test_too_many_bad_recipients_is_no_word_on_a_mailbox(peer, zone):
    """From the fifth on every recipient of the session is refused, known or not."""
    known = [f"{each}@{domain('quick')}" for each in KNOWN[:20]]
    unknown = [f"x{each}" for each in known]
    async with asking(zone, peer.port) as engine:
        reported = await ask(engine, [*unknown, *known])
    for text in known:
        assert reported[text].verdict.status in ("deliverable", "unknown"), reported[text]
    for text in unknown:
        assert reported[text].verdict.status in ("undeliverable", "unknown"), reported[text]


async def test_nothing_is_said_before_a_slow_greeting(peer, zone):
    """Exim answers an early word with a synchronization error, and writes it down."""
    text = f"known1@{domain('slow')}"
    async with asking(zone, peer.port, **REAL_CLOCKS) as engine:
        reported = (await ask(engine, [text]))[text]
    assert_told(reported, Outcome.TIMED_OUT)
    assert "synchronization error" not in peer.program.said()


async def test_a_backup_that_refuses_is_believed(peer, zone):
    zone.mx(domain("many"), "mx.gone.test", f"mx.{domain('plain')}")
    texts = {
        f"nobody@{domain('many')}": Outcome.UNDELIVERABLE,
        f"known0@{domain('many')}": Outcome.DELIVERABLE,
    }
    async with asking(zone, peer.port) as engine:
        reported = await ask(engine, texts)
    for text, outcome in texts.items():
        assert_told(reported[text], outcome)
