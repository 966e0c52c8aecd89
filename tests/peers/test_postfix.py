"""Postfix, as Debian configures it and with what its operators add."""

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import trio
import trustme

from mailprobe.engine.testing.zone import Zone
from mailprobe.engine.verdict import Outcome
from tests.peers import measured
from tests.peers.engine_runs import REAL_CLOCKS, ask, asking, assert_told
from tests.peers.postfix import policy_daemon, postfix
from tests.peers.programs import Program

ACCESS = "{ check_recipient_access texthash:/peers/postfix/access }"

# Each character's words of master.cf behind its address: the process limit, the command, its options.
CHARACTERS = {
    "plain": "- smtpd",
    "rejecting": "- smtpd -o { smtpd_relay_restrictions = reject_unauth_destination }",
    "access": f"- smtpd -o {{ smtputf8_enable = no }} -o {{ smtpd_recipient_restrictions = {ACCESS[2:-2]} }}",
    "policy": "- smtpd -o { smtpd_recipient_restrictions = check_policy_service inet:127.0.0.1:POLICY }",
    "soft": "- smtpd -o { unknown_virtual_mailbox_reject_code = 450 }",
    "client": "- smtpd -o { smtpd_client_restrictions = check_client_access static:REJECT }",
    "banner": "- smtpd -o { smtpd_client_restrictions = check_client_access static:REJECT } -o { smtpd_delay_reject = no }",
    "helo": "- smtpd -o { smtpd_helo_restrictions = check_helo_access static:REJECT }",
    "sender": "- smtpd -o { smtpd_sender_restrictions = check_sender_access texthash:/peers/postfix/senders }",
    "named": "- smtpd -o { smtpd_sender_restrictions = check_sender_access texthash:/peers/postfix/named }",
    "reverse": "- smtpd -o { smtpd_client_restrictions = reject_unknown_client_hostname }",
    "encrypted": "- smtpd -o { smtpd_tls_security_level = encrypt } -o { smtpd_tls_chain_files = /peers/postfix/chain }",
    "one": "- smtpd -o { smtpd_client_connection_count_limit = 1 }",
    "two": "- smtpd -o { smtpd_client_connection_count_limit = 2 }",
    "few": "- smtpd -o { smtpd_recipient_limit = 5 }",
    "single": "- smtpd -o { smtpd_recipient_limit = 1 }",
    "impatient": "- smtpd -o { smtpd_soft_error_limit = 3 } -o { smtpd_hard_error_limit = 5 }",
    "screened": "1 postscreen -o { postscreen_greet_action = enforce }",
}
ADDRESSES = {name: f"127.0.10.{number}" for number, name in enumerate(CHARACTERS, 1)}
NOBODY = "127.0.10.250"

MAIN = """
virtual_mailbox_domains = texthash:/peers/postfix/domains
virtual_mailbox_maps = texthash:/peers/postfix/mailboxes
mydestination = local.postfix.test
local_recipient_maps = texthash:/peers/postfix/mailboxes
relay_domains = relayed.postfix.test
relay_recipient_maps = texthash:/peers/postfix/mailboxes
virtual_alias_domains = alias.postfix.test
virtual_alias_maps = texthash:/peers/postfix/aliases
relocated_maps = texthash:/peers/postfix/relocated
"""

AT_PLAIN = ("local", "relayed", "alias", "all", "many", "foreign")  # domains of the first character
FURTHER = {"elsewhere": "rejecting"}  # and of others

KNOWN = [f"known{number}" for number in range(40)]

ACTIONS = {
    "full": "552 5.2.2 Mailbox is full",  # Dovecot's quota-status, as its manual has it
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


def domain(name: str) -> str:
    return f"{name}.postfix.test"


def tables(chain: bytes) -> dict[str, bytes]:
    ours = [*CHARACTERS, "all", "many"]
    mailboxes = [f"{each}@{domain(name)} x" for name in ours for each in (*KNOWN, *ACTIONS)]
    access = [f"{each}@{domain('access')} {action}" for each, action in ACTIONS.items()]
    latin = f"latin@{domain('access')} 550 5.1.1 Boîte aux lettres inconnue".encode("latin-1")
    return {
        "domains": "".join(f"{domain(name)} x\n" for name in ours).encode(),
        "mailboxes": "\n".join([*mailboxes, f"@{domain('all')} x", ""]).encode(),
        "access": "\n".join(access).encode() + b"\n" + latin + b"\n",
        "aliases": f"ann@{domain('alias')} known0@{domain('plain')}\n".encode(),
        "relocated": f"gone@{domain('plain')} ann@elsewhere.test\n".encode(),
        "senders": b"<> REJECT\n",
        "named": b"check@probe.peers.test REJECT\n",
        "chain": chain,
    }


@dataclass(frozen=True)
class Peer:
    program: Program
    port: int


@pytest.fixture(scope="module")
def peer() -> Iterator[Peer]:
    issued = trustme.CA().issue_cert("mx.postfix.test")
    with policy_daemon(POLICIES) as policy:
        characters = {
            ADDRESSES[name]: words.replace("POLICY", str(policy))
            for name, words in CHARACTERS.items()
        }
        chain = issued.private_key_and_cert_chain_pem.bytes()
        with postfix(MAIN, characters, tables(chain)) as (program, port):
            yield Peer(program, port)


@pytest.fixture
def zone() -> Zone:
    zone = Zone()
    for name, address in ADDRESSES.items():
        zone.host(f"mx.{domain(name)}", address)
        zone.mx(domain(name), f"mx.{domain(name)}")
    for name in AT_PLAIN:
        zone.mx(domain(name), f"mx.{domain('plain')}")
    for name, character in FURTHER.items():
        zone.mx(domain(name), f"mx.{domain(character)}")
    zone.host("mx.gone.test", NOBODY)
    return zone


@pytest.mark.parametrize(("name", "local_part", "outcome"), CASES)
async def test_a_case_is_told_right(peer, zone, name, local_part, outcome):
    text = f"{local_part}@{domain(name)}"
    clocks = REAL_CLOCKS if outcome is Outcome.TIMED_OUT else {}
    async with asking(zone, peer.port, **clocks) as engine:
        reported = (await ask(engine, [text]))[text]
    measured.note("Postfix", f"{name}: {local_part}", reported)
    assert_told(reported, outcome)


async def test_sixty_unknown_addresses_never_meet_the_error_limit(peer, zone):
    """From the 11th refusal of a session Postfix waits a second each; at the 21st it says 421."""
    texts = [f"nobody{number}@{domain('plain')}" for number in range(60)]
    async with asking(zone, peer.port) as engine:
        reported = await ask(engine, texts)
    for text in texts:
        assert_told(reported[text], Outcome.UNDELIVERABLE)
    assert "too many errors" not in peer.program.said()


@pytest.mark.parametrize("local_part", ["known0", "nobody"])
async def test_a_host_that_refuses_the_named_sender_is_asked_with_the_null_one(
    peer, zone, local_part
):
    text = f"{local_part}@{domain('named')}"
    async with asking(zone, peer.port, mail_from="check@probe.peers.test") as engine:
        reported = (await ask(engine, [text]))[text]
    measured.note("Postfix", f"named, then null: {local_part}", reported)
    known = local_part == "known0"
    assert_told(reported, Outcome.DELIVERABLE if known else Outcome.UNDELIVERABLE)


@pytest.mark.parametrize("name", ["one", "two", "few", "single", "encrypted"])
async def test_every_address_gets_its_verdict_from_a_host_with_limits(peer, zone, name):
    """Connections from one client, and recipients of one message."""
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


async def test_a_host_that_hangs_up_early_makes_nobody_undeliverable(peer, zone):
    """Five errors end a session here; who met the 421 is not told to be missing."""
    known = [f"{each}@{domain('impatient')}" for each in KNOWN[:20]]
    unknown = [f"x{each}" for each in known]
    async with asking(zone, peer.port) as engine:
        reported = await ask(engine, [*known, *unknown])
    for text in known:
        assert reported[text].verdict.status in ("deliverable", "unknown"), reported[text]
    for text in unknown:
        assert reported[text].verdict.status in ("undeliverable", "unknown"), reported[text]


async def test_nothing_is_said_before_postscreen_has_greeted(peer, zone):
    """Its first line comes at once and its last after 6 s: longer than a banner may take."""
    text = f"known1@{domain('screened')}"
    async with asking(zone, peer.port, **REAL_CLOCKS) as engine:
        reported = (await ask(engine, [text]))[text]
    assert_told(reported, Outcome.TIMED_OUT)
    await trio.to_thread.run_sync(peer.program.wait_to_say, "HANGUP after")
    assert "PREGREET" not in peer.program.said()


# the exchanges by preference, the local part, the outcome
ROUTES = [
    (["gone", "plain"], "known0", Outcome.DELIVERABLE),
    (["gone", "plain"], "nobody", Outcome.UNDELIVERABLE),
    (
        ["gone", "rejecting"],
        "nobody",
        Outcome.REFUSED_BY_POLICY,
    ),  # a backup that does not know the domain
    (["banner", "plain"], "known0", Outcome.DELIVERABLE),
    (["gone", "banner"], "known0", Outcome.CONVERSATION_FAILED),
    (["plain", "banner"], "nobody", Outcome.UNDELIVERABLE),
    (["screened", "plain"], "known0", Outcome.DELIVERABLE),
    (["gone", "gone"], "known0", Outcome.CONVERSATION_FAILED),
]


@pytest.mark.parametrize(("exchanges", "local_part", "outcome"), ROUTES)
async def test_a_second_exchange_is_asked_where_the_first_says_nothing(
    peer, zone, exchanges, local_part, outcome
):
    names = ["mx.gone.test" if name == "gone" else f"mx.{domain(name)}" for name in exchanges]
    home = "foreign" if exchanges[-1] == "rejecting" else "many"
    zone.mx(domain(home), *names)
    text = f"{local_part}@{domain(home)}"
    async with asking(zone, peer.port) as engine:
        reported = (await ask(engine, [text]))[text]
    measured.note("Postfix", f"{' then '.join(exchanges)}: {local_part}", reported)
    assert_told(reported, outcome)
