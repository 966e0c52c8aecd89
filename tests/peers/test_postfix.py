"""Postfix, as Debian configures it and with options that operators add."""

from collections.abc import Iterator

import pytest
import trio
import trustme

from mailprobe.engine.verdict import Outcome
from tests.peers.mail_servers import KNOWN, NAMED_SENDER, PLACES, REFUSED, Domains, MailServer
from tests.peers.programs.postfix import open_postfix, policy_daemon

ACCESS = "{ check_recipient_access texthash:FOLDER/access }"

# The end of each profile's line of master.cf: process limit, command, options.
PROFILES = {
    "plain": "- smtpd",
    "rejecting": "- smtpd -o { smtpd_relay_restrictions = reject_unauth_destination }",
    "access": f"- smtpd -o {{ smtputf8_enable = no }} -o {{ smtpd_recipient_restrictions = {ACCESS[2:-2]} }}",
    "policy": "- smtpd -o { smtpd_recipient_restrictions = check_policy_service inet:127.0.0.1:POLICY }",
    "soft": "- smtpd -o { unknown_virtual_mailbox_reject_code = 450 }",
    "client": "- smtpd -o { smtpd_client_restrictions = check_client_access static:REJECT }",
    "banner": "- smtpd -o { smtpd_client_restrictions = check_client_access static:REJECT } -o { smtpd_delay_reject = no }",
    "helo": "- smtpd -o { smtpd_helo_restrictions = check_helo_access static:REJECT }",
    "sender": "- smtpd -o { smtpd_sender_restrictions = check_sender_access texthash:FOLDER/senders }",
    "named": "- smtpd -o { smtpd_sender_restrictions = check_sender_access texthash:FOLDER/named }",
    "reverse": "- smtpd -o { smtpd_client_restrictions = reject_unknown_client_hostname }",
    "encrypted": "- smtpd -o { smtpd_tls_security_level = encrypt } -o { smtpd_tls_chain_files = FOLDER/chain }",
    "one": "- smtpd -o { smtpd_client_connection_count_limit = 1 }",
    "two": "- smtpd -o { smtpd_client_connection_count_limit = 2 }",
    "few": "- smtpd -o { smtpd_recipient_limit = 5 }",
    "single": "- smtpd -o { smtpd_recipient_limit = 1 }",
    "impatient": "- smtpd -o { smtpd_soft_error_limit = 3 } -o { smtpd_hard_error_limit = 5 }",
    "screened": "1 postscreen -o { postscreen_greet_action = enforce }",
}
AT_PLAIN = ("local", "relayed", "alias", "all", "many", "foreign")
DOMAINS = Domains(
    "postfix.test",
    "127.0.10",
    tuple(PROFILES),
    further={**dict.fromkeys(AT_PLAIN, "plain"), "elsewhere": "rejecting", "some": "access"},
)

MAIN = """
virtual_mailbox_domains = texthash:FOLDER/domains
virtual_mailbox_maps = texthash:FOLDER/mailboxes
mydestination = local.postfix.test
local_recipient_maps = texthash:FOLDER/mailboxes
relay_domains = relayed.postfix.test
relay_recipient_maps = texthash:FOLDER/mailboxes
virtual_alias_domains = alias.postfix.test
virtual_alias_maps = texthash:FOLDER/aliases
relocated_maps = texthash:FOLDER/relocated
"""

ACTIONS = {
    "full": "552 5.2.2 Mailbox is full",  # Dovecot's quota-status, as in its manual
    "full-now": "452 4.2.2 Mailbox is full",
    "disabled": "550 5.2.1 This mailbox is disabled",
    "rejected": "REJECT",
    "deferred": "DEFER",
    "spam": "550 5.7.1 Message rejected by local policy",
}
GREYLISTED = (
    "DEFER_IF_PERMIT 4.2.0 Greylisted, see http://postgrey.schweikert.ch/help/postfix.test.html"
)
POLICIES = {
    "ann@policy.postfix.test": GREYLISTED,
    "ben@policy.postfix.test": "451 4.7.1 Greylisting in effect, please come back later",
    "cas@policy.postfix.test": "552 5.2.2 Mailbox is full",
}

# domain's first label, local part, outcome
CASES = [
    ("plain", "known0", Outcome.DELIVERABLE),
    ("plain", "nobody", Outcome.UNDELIVERABLE),
    ("plain", "gone", Outcome.UNDELIVERABLE),
    ("local", "nobody", Outcome.UNDELIVERABLE),
    ("relayed", "nobody", Outcome.UNDELIVERABLE),
    ("alias", "nobody", Outcome.UNDELIVERABLE),
    ("all", "anybody", Outcome.CATCH_ALL),
    ("foreign", "ann", Outcome.TEMPORARY),
    ("elsewhere", "ann", Outcome.REFUSED_BY_POLICY),
    ("policy", "ann", Outcome.TEMPORARY),
    ("policy", "ben", Outcome.TEMPORARY),
    ("policy", "cas", Outcome.MAILBOX_FULL),
    ("policy", "known0", Outcome.DELIVERABLE),
    ("access", "full", Outcome.MAILBOX_FULL),
    ("access", "full-now", Outcome.MAILBOX_FULL),
    ("access", "disabled", Outcome.UNDELIVERABLE),
    ("access", "rejected", Outcome.REFUSED_BY_POLICY),
    ("access", "deferred", Outcome.TEMPORARY),
    ("access", "spam", Outcome.REFUSED_BY_POLICY),
    ("access", "latin", Outcome.UNDELIVERABLE),
    ("soft", "nobody", Outcome.TEMPORARY),
    ("soft", "known0", Outcome.DELIVERABLE_UNTESTED),
    ("client", "known0", Outcome.REFUSED_BY_POLICY),
    ("banner", "known0", Outcome.CONVERSATION_FAILED),
    ("helo", "known0", Outcome.REFUSED_BY_POLICY),
    ("sender", "known0", Outcome.REFUSED_BY_POLICY),
    ("reverse", "known0", Outcome.TEMPORARY),
    ("encrypted", "known0", Outcome.DELIVERABLE),
    ("encrypted", "nobody", Outcome.UNDELIVERABLE),
    ("screened", "known0", Outcome.TIMED_OUT),
]


def tables(chain: bytes) -> dict[str, bytes]:
    labels = [*PROFILES, "all", "some", "many"]
    local_parts = [*KNOWN, *ACTIONS]
    mailboxes = [f"{email} x" for label in labels for email in DOMAINS.emails(label, local_parts)]
    access = [f"{name}@{DOMAINS.domain('access')} {action}" for name, action in ACTIONS.items()]
    latin = f"latin@{DOMAINS.domain('access')} 550 5.1.1 Boîte aux lettres inconnue"
    plain = DOMAINS.domain("plain")
    some = DOMAINS.domain("some")
    access.append(f"{REFUSED}@{some} 550 5.1.1 User unknown")
    mailboxes += [f"@{DOMAINS.domain('all')} x", f"@{some} x"]
    return {
        "domains": "".join(f"{DOMAINS.domain(label)} x\n" for label in labels).encode(),
        "mailboxes": "\n".join([*mailboxes, ""]).encode(),
        "access": "\n".join(access).encode() + b"\n" + latin.encode("latin-1") + b"\n",
        "aliases": f"ann@{DOMAINS.domain('alias')} known0@{plain}\n".encode(),
        "relocated": f"gone@{plain} ann@elsewhere.test\n".encode(),
        "senders": b"<> REJECT\n",
        "named": f"{NAMED_SENDER} REJECT\n".encode(),
        "chain": chain,
    }


@pytest.fixture(scope="module")
def mail_server() -> Iterator[MailServer]:
    issued = trustme.CA().issue_cert("mx.postfix.test")
    with policy_daemon(POLICIES) as policy:
        profiles = {
            DOMAINS.addresses[name]: line.replace("POLICY", str(policy))
            for name, line in PROFILES.items()
        }
        chain = issued.private_key_and_cert_chain_pem.bytes()
        with open_postfix(MAIN, profiles, tables(chain)) as (program, port):
            yield MailServer("Postfix", DOMAINS, program, port)


@pytest.mark.parametrize(("label", "local_part", "outcome"), CASES)
async def test_a_case_gets_its_verdict(mail_server, zone, label, local_part, outcome):
    await mail_server.check_case(zone, label, local_part, outcome)


@pytest.mark.parametrize("place", PLACES)
async def test_a_catch_all_that_refuses_a_name_is_known_as_catch_all(mail_server, zone, place):
    await mail_server.check_catch_all_with_a_refusal(zone, place)


async def test_sixty_unknown_addresses_never_meet_the_error_limit(mail_server, zone):
    """From the 11th refusal of a session Postfix waits a second each; at the 21st it sends 421."""
    emails = DOMAINS.emails("plain", [f"nobody{number}" for number in range(60)])
    await mail_server.check_all(zone, dict.fromkeys(emails, Outcome.UNDELIVERABLE))
    assert "too many errors" not in mail_server.program.logs()


@pytest.mark.parametrize("local_part", ["known0", "nobody"])
async def test_a_host_that_refuses_the_named_sender_is_probed_with_the_null_sender(
    mail_server, zone, local_part
):
    await mail_server.check_named_sender(zone, local_part)


@pytest.mark.parametrize("label", ["one", "two", "few", "single", "encrypted"])
async def test_every_address_gets_its_verdict_from_a_host_with_limits(mail_server, zone, label):
    """Limits of connections from one client, and of recipients of one message."""
    await mail_server.check_known_and_unknown(zone, label)


async def test_a_host_that_hangs_up_early_makes_nobody_undeliverable(mail_server, zone):
    """Five errors end a session here; the 421 says nothing about a mailbox."""
    await mail_server.check_ended_sessions(zone, "impatient")


async def test_nothing_is_sent_before_postscreen_has_greeted(mail_server, zone):
    """Its first line comes at once and its last after 6 s: longer than a banner may take."""
    await mail_server.check_slow_greeting(zone, "screened")
    await trio.to_thread.run_sync(mail_server.program.wait_for_log, "HANGUP after")
    assert "PREGREET" not in mail_server.program.logs()


# the exchanges by preference, the local part, the outcome
ROUTES = [
    (["gone", "plain"], "known0", Outcome.DELIVERABLE),
    (["gone", "plain"], "nobody", Outcome.UNDELIVERABLE),
    # a backup that does not know the domain
    (["gone", "rejecting"], "nobody", Outcome.REFUSED_BY_POLICY),
    (["banner", "plain"], "known0", Outcome.DELIVERABLE),
    (["gone", "banner"], "known0", Outcome.CONVERSATION_FAILED),
    (["plain", "banner"], "nobody", Outcome.UNDELIVERABLE),
    (["screened", "plain"], "known0", Outcome.DELIVERABLE),
    (["gone", "gone"], "known0", Outcome.CONVERSATION_FAILED),
]


@pytest.mark.parametrize(("exchanges", "local_part", "outcome"), ROUTES)
async def test_a_second_exchange_is_probed_if_the_first_does_not_reply(
    mail_server, zone, exchanges, local_part, outcome
):
    label = "foreign" if exchanges[-1] == "rejecting" else "many"
    zone.mx(DOMAINS.domain(label), *map(DOMAINS.exchange, exchanges))
    await mail_server.check_case(zone, label, local_part, outcome, case=" then ".join(exchanges))
