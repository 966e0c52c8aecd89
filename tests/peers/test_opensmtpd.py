"""OpenSMTPD, in lock-step: it offers no PIPELINING and refuses two commands in one write."""

from collections.abc import Iterator

import pytest

from mailprobe.engine.verdict import Outcome
from tests.peers.mail_servers import KNOWN, PLACES, REFUSED, Domains, MailServer
from tests.peers.programs.opensmtpd import open_opensmtpd

# Each profile's options of `listen on`.
PROFILES = {
    "plain": "",
    "filtered": "filter recipients",
    "banner": "filter no-banner",
    "helo": "filter no-helo",
    "sender": "filter no-sender",
    "encrypted": "tls-require pki peer",
    "authenticated": "tls pki peer auth",
}
DOMAINS = Domains(
    "smtpd.test",
    "127.0.30",
    tuple(PROFILES),
    further=dict.fromkeys(("users", "all", "foreign", "some"), "plain"),
)

# Greylisting of fixed names only, by a filter that defers: the daemon remembers no earlier attempts.
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

USERS = KNOWN[10:30]  # of users.smtpd.test

# domain's first label, local part, outcome
CASES = [
    ("plain", "known0", Outcome.DELIVERABLE),
    ("plain", "nobody", Outcome.UNDELIVERABLE),  # 524, as for a loop in a list's expansion
    ("users", "ann", Outcome.DELIVERABLE),
    ("users", "known0", Outcome.UNDELIVERABLE),
    ("all", "anybody", Outcome.CATCH_ALL),
    ("foreign", "ann", Outcome.UNDELIVERABLE),  # the same reply as for an unknown mailbox
    ("filtered", "grey", Outcome.TEMPORARY),
    ("filtered", "full", Outcome.MAILBOX_FULL),
    ("filtered", "full-now", Outcome.MAILBOX_FULL),
    ("filtered", "disabled", Outcome.UNDELIVERABLE),
    ("banner", "known0", Outcome.CONVERSATION_FAILED),
    ("helo", "known0", Outcome.DELIVERABLE),  # EHLO is refused and HELO is not
    ("sender", "known0", Outcome.CONVERSATION_FAILED),
    # It requires TLS, and with OpenSSL 3 its own handshake fails with every client.
    ("encrypted", "known0", Outcome.CONVERSATION_FAILED),
    ("authenticated", "known0", Outcome.CONVERSATION_FAILED),
]


def tables() -> dict[str, str]:
    mailboxes = [f"{email} nobody" for name in PROFILES for email in DOMAINS.emails(name, KNOWN)]
    some = DOMAINS.domain("some")
    mailboxes += [f"@{DOMAINS.domain('all')} nobody", f"@{some} nobody"]
    mailboxes.append(f"{REFUSED}@{some} error:550 5.1.1 No such user here")
    return {
        "mailboxes": "".join(f"{line}\n" for line in mailboxes),
        "aliases": "".join(f"{name}: nobody\n" for name in ("ann", "ben", *USERS)),
        "domains": "".join(f"{DOMAINS.domain(label)}\n" for label in (*PROFILES, "all", "some")),
    }


@pytest.fixture(scope="module")
def mail_server() -> Iterator[MailServer]:
    listeners = {
        DOMAINS.addresses[name]: f"hostname mx.smtpd.test {options}"
        for name, options in PROFILES.items()
    }
    with open_opensmtpd(CONFIGURATION, listeners, tables()) as (program, port):
        yield MailServer("OpenSMTPD", DOMAINS, program, port)


@pytest.mark.parametrize(("label", "local_part", "outcome"), CASES)
async def test_a_case_gets_its_verdict(mail_server, zone, label, local_part, outcome):
    await mail_server.check_case(zone, label, local_part, outcome)


@pytest.mark.parametrize("place", PLACES)
async def test_a_catch_all_that_refuses_a_name_is_known_as_catch_all(mail_server, zone, place):
    await mail_server.check_catch_all_with_a_refusal(zone, place)


async def test_every_address_gets_its_verdict_in_step(mail_server, zone):
    """One command at a time, and five recipients a message."""
    unknown = DOMAINS.emails("users", [f"nobody{number}" for number in range(40)])
    outcomes = dict.fromkeys(unknown, Outcome.UNDELIVERABLE)
    outcomes |= dict.fromkeys(DOMAINS.emails("users", USERS), Outcome.DELIVERABLE)
    await mail_server.check_all(zone, outcomes)
    assert "Too many recipients" in mail_server.program.logs()
    assert "Pipelining not supported" not in mail_server.program.logs()


async def test_a_backup_that_refuses_is_believed(mail_server, zone):
    users = DOMAINS.domain("users")
    zone.mx(users, DOMAINS.exchange("gone"), DOMAINS.exchange("plain"))
    outcomes = {f"nobody0@{users}": Outcome.UNDELIVERABLE, f"ann@{users}": Outcome.DELIVERABLE}
    await mail_server.check_all(zone, outcomes)
