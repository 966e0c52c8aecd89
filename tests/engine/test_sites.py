"""Mail operators by the ending of their exchanges' names."""

import tomllib
from importlib.resources import files

import pytest

from engine.sites import Site, Sites, load_sites
from engine.smtp.replies import load_rules

SITES = load_sites()
TABLE = tomllib.loads(files("engine").joinpath("data", "sites.toml").read_text("utf-8"))["site"]


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
    found = SITES.find(host)
    assert (found.id if found else None) == site


def test_the_longest_ending_wins():
    sites = Sites({"a.test": Site("short"), "b.a.test": Site("long")})
    assert sites.find("mx.b.a.test") == Site("long")
    assert sites.find("b.a.test") == Site("long")
    assert sites.find("mx.c.a.test") == Site("short")


def test_what_operators_wish():
    consumer, yahoo, google = (
        SITES.find(host) for host in ("hotmail.com", "mta5.am0.yahoodns.net", "smtp.google.com")
    )
    assert consumer is not None
    assert consumer.one_each
    assert yahoo is not None
    assert yahoo.connections_max == 2
    assert google == Site("google")


def test_each_ending_and_each_id_stands_once():
    ids = [row["id"] for row in TABLE]
    endings = [ending for row in TABLE for ending in row["endings"]]
    assert len(set(ids)) == len(ids)
    assert len(set(endings)) == len(endings)


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row["id"])
def test_a_row_is_well_made(row):
    assert row.keys() <= {"id", "endings", "connections_max", "one_each"}
    assert row["endings"]
    assert row.get("connections_max", 1) >= 1
    for ending in row["endings"]:
        assert ending == ending.lower().strip(".")
        assert "." in ending


def test_every_site_that_a_reply_rule_names_is_known():
    named = {rule.site for rule in load_rules().rules if rule.site is not None}
    assert named <= {row["id"] for row in TABLE}
