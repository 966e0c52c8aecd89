"""Exim, with Debian's limits and options that operators add."""

from collections.abc import Iterator

import pytest
import trustme

from mailprobe.engine.verdict import Outcome
from tests.peers.mail_servers import PLACES, REFUSED, Domains, MailServer
from tests.peers.programs.exim import open_exim

PROFILES = (
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
DOMAINS = Domains(
    "exim.test", "127.0.20", PROFILES, further=dict.fromkeys(("all", "foreign", "some"), "plain")
)

# $received_ip_address says which profile the client has connected to.
CONFIGURATION = """
log_selector = +smtp_connection +smtp_protocol_error +smtp_syntax_error
tls_advertise_hosts = ${if eq{$received_ip_address}{ENCRYPTED}{*}{}}
tls_certificate = FOLDER/chain
smtp_accept_max_per_host = ${if eq{$received_ip_address}{ALONE}{1}{100}}
acl_smtp_connect = connect
acl_smtp_helo = hello
acl_smtp_mail = mail
acl_smtp_rcpt = rcpt
domainlist some = some.exim.test
domainlist known = PROFILES_DOMAINS : many.exim.test
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
  deny    domains     = ! +known : ! +all : ! +some
          message     = relay not permitted
  require verify      = recipient
  accept

begin routers

all:
  driver = accept
  domains = +all
  transport = nowhere

# As a line of Debian's /etc/aliases, before one with an asterisk.
some:
  driver = redirect
  domains = +some
  local_parts = REFUSED
  allow_fail
  data = :fail: No such user here

rest_of_some:
  driver = accept
  domains = +some
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

# domain's first label, local part, outcome
CASES = [
    ("plain", "known0", Outcome.DELIVERABLE),
    ("plain", "nobody", Outcome.UNDELIVERABLE),
    # Words of the operator's own. An unknown text never means that there is no mailbox.
    ("plain", "gone", Outcome.REFUSED_BY_POLICY),
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


def configuration() -> bytes:
    domains = " : ".join(map(DOMAINS.domain, PROFILES))
    text = CONFIGURATION.replace("PROFILES_DOMAINS", domains).replace("REFUSED", REFUSED)
    for name, address in DOMAINS.addresses.items():
        text = text.replace(f"{{{name.upper()}}}", f"{{{address}}}")
    return text.encode("latin-1")


@pytest.fixture(scope="module")
def mail_server() -> Iterator[MailServer]:
    chain = trustme.CA().issue_cert("mx.exim.test").private_key_and_cert_chain_pem.bytes()
    addresses = list(DOMAINS.addresses.values())
    with open_exim(addresses, configuration(), chain) as (program, port):
        yield MailServer("Exim", DOMAINS, program, port)


@pytest.mark.parametrize(("label", "local_part", "outcome"), CASES)
async def test_a_case_gets_its_verdict(mail_server, zone, label, local_part, outcome):
    await mail_server.check_case(zone, label, local_part, outcome)


@pytest.mark.parametrize("place", PLACES)
async def test_a_catch_all_that_refuses_a_name_is_known_as_catch_all(mail_server, zone, place):
    await mail_server.check_catch_all_with_a_refusal(zone, place)


@pytest.mark.parametrize("local_part", ["known0", "nobody"])
async def test_a_host_that_refuses_the_named_sender_is_probed_with_the_null_sender(
    mail_server, zone, local_part
):
    await mail_server.check_named_sender(zone, local_part)


@pytest.mark.parametrize("label", ["plain", "alone", "single", "few", "encrypted"])
async def test_every_address_gets_its_verdict(mail_server, zone, label):
    """One connection only; one recipient or five a message: RSET for each, and Exim allows ten."""
    await mail_server.check_known_and_unknown(zone, label)
    if label in ("single", "few"):
        assert "oo many recipients" in mail_server.program.logs()
    assert "nonmail" not in mail_server.program.logs()


async def test_too_many_bad_recipients_is_no_word_on_a_mailbox(mail_server, zone):
    """From the fifth on every recipient of the session is refused, known or not."""
    await mail_server.check_ended_sessions(zone, "quick", unknown_first=True)


async def test_nothing_is_sent_before_a_slow_greeting(mail_server, zone):
    """Exim answers an early command with a synchronization error, and logs it."""
    await mail_server.check_slow_greeting(zone, "slow")
    assert "synchronization error" not in mail_server.program.logs()


async def test_a_backup_that_refuses_is_believed(mail_server, zone):
    many = DOMAINS.domain("many")
    zone.mx(many, DOMAINS.exchange("gone"), DOMAINS.exchange("plain"))
    outcomes = {f"nobody@{many}": Outcome.UNDELIVERABLE, f"known0@{many}": Outcome.DELIVERABLE}
    await mail_server.check_all(zone, outcomes)
