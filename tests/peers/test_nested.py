"""Servers that ask another server about a recipient or a sender, and quote its reply."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from mailprobe.engine.verdict import Outcome
from tests.peers.mail_servers import Domains, MailServer
from tests.peers.programs.exim import open_exim
from tests.peers.programs.postfix import DELIVERY, open_postfix

BEHIND = "127.0.11.1"  # has mailboxes named known, and refuses other names
DOWN = "127.0.11.250"  # nothing listens there

# Each server asks BEHIND about recipients, or DOWN if its domain is `down`; two ask about senders too.
EXIM = Domains("exim.test", "127.0.13", ("front", "down", "sender", "sender-down"))
POSTFIX = Domains("postfix.test", "127.0.12", (*EXIM.profiles, "cautious"))

BEHIND_MAIN = """
virtual_mailbox_domains = regexp:{ { /[.](exim|postfix)[.]test$$/ x } }
virtual_mailbox_maps = regexp:{ { /^known[0-9]+@/ x } }
"""

VERIFIED = "-o { smtpd_recipient_restrictions = reject_unverified_recipient }"
CERTAIN = "-o { unverified_recipient_reject_code = 550 }"  # Postfix's default is 450
SENDERS = "-o { smtpd_sender_restrictions = reject_unverified_sender }"
POSTFIX_OPTIONS = {
    "front": f"{VERIFIED} {CERTAIN}",
    "down": f"{VERIFIED} {CERTAIN}",
    "sender": f"{VERIFIED} {CERTAIN} {SENDERS} -o {{ unverified_sender_reject_code = 550 }}",
    "sender-down": f"{VERIFIED} {CERTAIN} {SENDERS}",
    "cautious": VERIFIED,
}
POSTFIX_MAIN = """
relay_domains = regexp:{ { /[.]postfix[.]test$$/ x } }
transport_maps = regexp:{ { /@down[.]/ smtp:[DOWN]:NEXT } { /./ smtp:[BEHIND]:NEXT } }
address_verify_poll_delay = 1s
"""

EXIM_CONFIGURATION = """
acl_smtp_rcpt = rcpt
domainlist relay_to_domains = *.exim.test

begin acl

rcpt:
  deny    message = relay not permitted
          domains = ! +relay_to_domains
  deny    condition = ${if inlist{$received_ip_address}{SENDERS}}
          ! verify = sender/callout=5s
  require verify = recipient/callout=5s
  accept

begin routers

down:
  driver = manualroute
  domains = down.exim.test
  transport = smtp
  route_data = DOWN::NEXT
  self = send

behind:
  driver = manualroute
  transport = smtp
  route_data = BEHIND::NEXT
  self = send

begin transports

smtp:
  driver = smtp
  allow_localhost
"""

# domain's first label, local part, the sender's first label or none, outcome
CASES = [
    ("front", "known0", None, Outcome.DELIVERABLE),
    ("front", "nobody", None, Outcome.UNDELIVERABLE),
    ("down", "known0", None, Outcome.TEMPORARY),
    ("down", "nobody", None, Outcome.TEMPORARY),
    # A sender that is refused says nothing about the recipient: the null sender is next.
    ("sender", "known0", "front", Outcome.DELIVERABLE),
    ("sender", "nobody", "front", Outcome.UNDELIVERABLE),
    ("sender-down", "known0", "down", Outcome.DELIVERABLE),
]


def completed(text: str, port: int) -> str:
    senders = ":".join(EXIM.addresses[name] for name in EXIM.profiles if "sender" in name)
    replaced = {"BEHIND": BEHIND, "DOWN": DOWN, "NEXT": str(port), "SENDERS": senders}
    for name, value in replaced.items():
        text = text.replace(name, value)
    return text


@contextmanager
def open_front(name: str, next_port: int) -> Iterator[MailServer]:
    if name == "Postfix":
        listeners = {
            POSTFIX.addresses[profile]: f"- smtpd {options}"
            for profile, options in POSTFIX_OPTIONS.items()
        }
        main = completed(POSTFIX_MAIN, next_port)
        with open_postfix(main, listeners, {}, name="front", services=DELIVERY) as (program, port):
            yield MailServer("Postfix", POSTFIX, program, port)
    else:
        configuration = completed(EXIM_CONFIGURATION, next_port).encode()
        addresses = list(EXIM.addresses.values())
        with open_exim(addresses, configuration, name="front") as (program, port):
            yield MailServer("Exim", EXIM, program, port)


@pytest.fixture(scope="module", params=["Postfix", "Exim"])
def mail_server(request: pytest.FixtureRequest) -> Iterator[MailServer]:
    with (
        open_postfix(BEHIND_MAIN, {BEHIND: "- smtpd"}, {}, name="behind") as (_, next_port),
        open_front(request.param, next_port) as front,
    ):
        yield front


@pytest.mark.parametrize(("label", "local_part", "sender", "outcome"), CASES)
async def test_a_quoted_reply_gets_its_verdict(
    mail_server, zone, label, local_part, sender, outcome
):
    mail_from = f"check@{mail_server.domains.domain(sender)}" if sender else ""
    case = f"asks another, {label}"
    finding = await mail_server.check_case(
        zone, label, local_part, outcome, case=case, mail_from=mail_from
    )
    assert finding.cause[1] != "us"


async def test_a_remembered_refusal_is_about_the_recipient(mail_server, zone):
    """Both servers remember what the other one said; Exim does not quote it again."""
    [email] = mail_server.domains.emails("front", ["absent"])
    for _ in range(2):
        finding = (await mail_server.verify(zone, [email]))[email]
        assert finding.verdict.status in ("undeliverable", "unknown")
        assert finding.cause[1] != "us"


async def test_an_unverified_recipient_is_refused_for_now_by_default(mail_server, zone):
    """Postfix's own code is 450 whatever the other server said, and Exim's 451 if it said nothing."""
    label = "cautious" if mail_server.name == "Postfix" else "down"
    await mail_server.check_case(zone, label, "absent", Outcome.TEMPORARY)
