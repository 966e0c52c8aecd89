"""Mail operators by the ending of their exchanges' names."""

import tomllib
from importlib.resources import files

import pytest

from mailprobe.engine.lists.lists import DATA, read_names
from mailprobe.engine.smtp.controls import HostControls
from mailprobe.engine.smtp.host.identity import HostIdentity
from mailprobe.engine.smtp.leases.ledger import CEILING
from mailprobe.engine.smtp.operators import (
    MailOperator,
    MailOperators,
    budget_labels,
    is_own_server,
    load_operators,
)
from mailprobe.engine.smtp.replies.rules import load_rules
from mailprobe.engine.smtp.tolerance.budget import OWN_START, KnownLimits
from mailprobe.engine.smtp.tolerance.limits import RefusalLimits

OPERATORS = load_operators()
ROWS = tomllib.loads(
    files("mailprobe.engine").joinpath("data", "operators.toml").read_text("utf-8")
)
TABLE, SOFTWARE = ROWS["site"], ROWS["software"]


@pytest.mark.parametrize(
    ("domain", "exchange", "is_own"),
    [
        ("shop.test", "mx.shop.test", True),
        ("shop.test", "shop.test", True),
        ("cs.ucl.ac.uk", "mail.ucl.ac.uk", True),
        ("ece.cmu.edu", "mx.cmu.edu", True),
        ("ifi.uio.no", "smtp.uio.no", True),
        ("in.tum.de", "mailrelay1.rbg.tum.de", True),
        ("shop.test", "mx.shop2.test", False),
        ("shop.test", "mxshop.test", False),
        ("shop.co.uk", "mx.hoster.co.uk", False),
        ("shop.com.br", "mx.hoster.com.br", False),
        ("dia.govt.nz", "mx.govt.nz", False),
        ("kent.police.uk", "mx.pnn.police.uk", False),
    ],
)
def test_an_organisation_s_own_server_is_below_its_name(domain, exchange, is_own):
    assert is_own_server(exchange, domain) is is_own


@pytest.mark.parametrize(
    ("host", "site"),
    [
        ("aspmx.l.google.com", "google"),
        ("alt1.gmail-smtp-in.l.google.com", "google"),
        ("smtp.google.com", "google"),
        ("aspmx2.googlemail.com", "google"),
        ("shop-test.mail.protection.outlook.com", "microsoft"),
        ("shop-test.a1.mx.microsoft", "microsoft"),
        ("outlook-com.olc.protection.outlook.com", "outlook-consumer"),
        ("mx3.hotmail.com", "outlook-consumer"),
        ("contoso-com.j-v1.mx.microsoft", "microsoft"),
        ("contoso-com.mx.microsoft", "microsoft"),
        ("smtp.hve.mx.microsoft", "microsoft"),
        ("outlook-com.j-v1.mx.microsoft", "outlook-consumer"),
        ("outlook-com.olc.mx.microsoft", "outlook-consumer"),
        ("hotmail-com.mx.microsoft", "outlook-consumer"),
        ("hotmail-fr.a-v1.mx.microsoft", "outlook-consumer"),
        ("hotmail-co-uk.a-v1.mx.microsoft", "outlook-consumer"),
        ("outlook-com-br.r-v1.mx.microsoft", "outlook-consumer"),
        ("live-nl.p-v1.mx.microsoft", "outlook-consumer"),
        ("msn-com.p-v1.mx.microsoft", "outlook-consumer"),
        ("windowslive-com.p-v1.mx.microsoft", "outlook-consumer"),
        # Tenants whose names only begin or end like a brand's.
        ("outlook-consulting-com.a-v1.mx.microsoft", "microsoft"),
        ("live-music-nl.a-v1.mx.microsoft", "microsoft"),
        ("my-hotmail-com.a-v1.mx.microsoft", "microsoft"),
        ("outlookers-com.a-v1.mx.microsoft", "microsoft"),
        ("live-art-uk.a-v1.mx.microsoft", "microsoft"),
        ("live.a-v1.mx.microsoft", "microsoft"),
        ("live-.a-v1.mx.microsoft", "microsoft"),
        ("outlook-com.mail.protection.outlook.com", "microsoft"),
        ("outlook-com.mx.microsoft.evil.test", None),
        ("outlook-com.microsoft", None),
        ("mta5.am0.yahoodns.net", "yahoo"),
        ("mx0a-001.pphosted.com", "proofpoint"),
        ("eu-smtp-inbound-1.mimecast.com", "mimecast"),
        ("mx01.mail.icloud.com", "icloud"),
        ("mx00.kundenserver.de", "ionos"),
        ("mx01.emig.gmx.net", "ionos"),
        ("mx.shop.test", None),
        ("notgoogle.com", None),
        ("google.com.evil.test", None),
        ("yahoodns.net.evil.test", None),
        ("com", None),
        ("", None),
    ],
)
def test_a_host_belongs_to_its_operator(host, site):
    found = OPERATORS.find(host)
    assert (found.id if found else None) == site


def test_the_longest_ending_wins():
    operators = MailOperators({"a.test": MailOperator("short"), "b.a.test": MailOperator("long")})
    assert operators.find("mx.b.a.test") == MailOperator("long")
    assert operators.find("b.a.test") == MailOperator("long")
    assert operators.find("mx.c.a.test") == MailOperator("short")


def test_every_consumer_domain_of_microsoft_is_the_consumer_operators_under_mx_microsoft():
    blocked = read_names(DATA / "smtp_blocked.txt")
    families = ("hotmail.", "live.", "msn.", "outlook.", "passport.", "windowslive.")
    domains = [domain for domain in blocked if domain.startswith(families)]
    assert len(domains) > 80
    for domain in domains:
        site = OPERATORS.find(f"{domain.replace('.', '-')}.a-v1.mx.microsoft")
        assert site == OPERATORS.find("outlook-com.olc.protection.outlook.com")


def test_operators_have_limits_of_their_own():
    consumer, yahoo, google = (
        OPERATORS.find(host) for host in ("hotmail.com", "mta5.am0.yahoodns.net", "smtp.google.com")
    )
    assert consumer is not None
    assert consumer.one_each
    assert yahoo is not None
    assert yahoo.connections_max == 2
    assert google == MailOperator("google", RefusalLimits(session=8, tolerance=64, ceiling=256))


def test_each_ending_and_each_id_stands_once():
    ids = [row["id"] for row in TABLE]
    endings = [ending for row in TABLE for ending in row["endings"]]
    assert len(set(ids)) == len(ids)
    assert len(set(endings)) == len(endings)


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row["id"])
def test_a_rowis_well_made(row):
    assert row.keys() <= {"id", "endings", "brands", "connections_max", "one_each", "refusals"}
    assert is_well_made(RefusalLimits(**row["refusals"]))
    assert row["endings"]
    assert row.get("connections_max", 1) >= 1
    for ending in row["endings"]:
        assert ending == ending.lower().strip(".")
        assert "." in ending


def test_a_brand_stands_below_another_operators_ending():
    for row in TABLE:
        for ending in row.get("brands", {}):
            assert any(ending in other["endings"] for other in TABLE if other is not row)


def test_every_site_that_a_reply_rule_names_is_known():
    named = {rule.operator for rule in load_rules().rules if rule.operator is not None}
    assert named <= {row["id"] for row in TABLE}


@pytest.mark.parametrize(
    ("greeting", "label"),
    [
        ("mx.shop.test ESMTP Postfix (Debian/GNU)", "postfix"),
        ("mx.shop.test ESMTP Exim 4.96.2 #2 We do not authorize the use of this system", "exim"),
        ("mx.shop.test Microsoft ESMTP MAIL Service ready at Mon, 3 Jun 2024", "exchange"),
        ("mx.google.com ESMTP a640c23a62f3a-0000.000 - gsmtp", "google"),
        ("mx.shop.test ESMTP MDaemon 23.5.3; Mon, 03 Jun 2024", "mdaemon"),
        ("mx.shop.test Kerio Connect 10.0.3 ESMTP ready", "kerio"),
        ("mx.shop.test ESMTP", None),
        ("", None),
    ],
)
def test_a_greeting_selects_the_row_of_its_software(greeting, label):
    found = OPERATORS.greets_as(greeting)
    assert (found and found.id) == label
    assert label is None or label in budget_labels()


@pytest.mark.parametrize(
    ("refusal", "label"),
    [
        ("550 #5.1.0 Address rejected.", "cisco"),
        ("550 No Such User Here", "cpanel"),
        ("550 5.1.10 RESOLVER.ADR.RecipientNotFound; Recipient not found", "exchange"),
        ("550 Recipient unknown", "mdaemon"),
        ("550 5.1.1 <gone@shop.test>: no such mailbox here", None),
    ],
)
def test_the_words_of_a_refusal_select_the_row_of_its_software(refusal, label):
    found = OPERATORS.refuses_as(refusal)
    assert (found and found.id) == label


@pytest.mark.parametrize("row", SOFTWARE, ids=lambda row: row["id"])
def test_a_row_of_softwareis_well_made(row):
    assert row.keys() == {"id", "words", "refused", "refusals"}
    assert is_well_made(RefusalLimits(**row["refusals"]))
    for word in (*row["words"], *row["refused"]):
        assert word == word.lower()


def is_well_made(limits: RefusalLimits) -> bool:
    return (
        (limits.session is None or 2 <= limits.session <= 8)
        and (limits.tolerance is None or OWN_START <= limits.tolerance <= CEILING)
        and (limits.ceiling is None or (limits.tolerance or 0) <= limits.ceiling <= CEILING)
        and (limits.hour is None or (limits.tolerance or 0) <= limits.hour)
        and (limits.share is None or 0 < limits.share < 1)
    )


def test_a_new_pool_of_a_host_relies_on_the_row_of_its_software():
    known, controls = KnownLimits(), HostControls()
    HostIdentity(OPERATORS, known, HostControls()).recognise("220 mx.test Kerio Connect ESMTP")
    HostIdentity(OPERATORS, known, controls)
    assert controls.row_takes == 6 * 9
