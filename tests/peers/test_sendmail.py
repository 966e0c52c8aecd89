"""Sendmail, with Debian's limits: it waits a second for each recipient after three refused ones."""

from collections.abc import Iterator

import pytest

from mailprobe.engine.egress import Egress, Egresses
from mailprobe.engine.verdict import Outcome
from tests.peers.mail_servers import KNOWN, PLACES, REFUSED, Domains, MailServer
from tests.peers.programs.sendmail import open_sendmail

LOCAL = ("plain", "virtual", "some")
DOMAINS = Domains(
    "sendmail.test", "127.0.70", ("plain",), further=dict.fromkeys((*LOCAL[1:], "foreign"), "plain")
)
STRANGER = Egress("stranger", source="127.0.70.200")  # Sendmail relays for 127.0.0.1

# domain's first label, local part, outcome
CASES = [
    ("plain", "known0", Outcome.DELIVERABLE),
    ("plain", "nouser", Outcome.UNDELIVERABLE),
    ("virtual", "known0", Outcome.DELIVERABLE),
    ("virtual", "nouser", Outcome.UNDELIVERABLE),
    ("virtual", "full", Outcome.MAILBOX_FULL),
    ("virtual", "later", Outcome.TEMPORARY),
    ("foreign", "ann", Outcome.REFUSED_BY_POLICY),
]


def tables() -> dict[str, str]:
    virtual, some = DOMAINS.domain("virtual"), DOMAINS.domain("some")
    virtusers = [
        *(f"{email}\tmailbox" for email in DOMAINS.emails("virtual", KNOWN)),
        f"full@{virtual}\terror:5.2.2:552 Mailbox is full",
        f"later@{virtual}\terror:4.3.0:451 Try again later",
        f"@{virtual}\terror:nouser 550 No such user here",
        f"{REFUSED}@{some}\terror:nouser 550 No such user here",
        f"@{some}\tmailbox",
    ]
    aliases = [f"{name}: /dev/null" for name in ("mailbox", *KNOWN)]
    return {
        "aliases": "\n".join([*aliases, ""]),
        "virtusers": "\n".join([*virtusers, ""]),
        "access": "",
    }


@pytest.fixture(scope="module")
def mail_server() -> Iterator[MailServer]:
    addresses = list(DOMAINS.addresses.values())
    local = [DOMAINS.domain(label) for label in LOCAL]
    with open_sendmail(addresses, local, tables()) as (program, port):
        yield MailServer("Sendmail", DOMAINS, program, port, {"egresses": Egresses((STRANGER,))})


@pytest.mark.parametrize(("label", "local_part", "outcome"), CASES)
async def test_a_case_gets_its_verdict(mail_server, zone, label, local_part, outcome):
    await mail_server.check_case(zone, label, local_part, outcome)


@pytest.mark.parametrize("place", PLACES)
async def test_a_catch_all_that_refuses_a_name_is_known_as_catch_all(mail_server, zone, place):
    await mail_server.check_catch_all_with_a_refusal(zone, place)


@pytest.mark.parametrize("label", ["plain", "virtual"])
async def test_every_address_gets_its_verdict(mail_server, zone, label):
    await mail_server.check_known_and_unknown(zone, label)
