"""What the shipped lists say, and what they must never say."""

import re
import tomllib
from pathlib import Path

import pytest
from msgspec.structs import replace
from publicsuffixlist import PSLFILE, PublicSuffixList

from mailprobe.engine.address import Address
from mailprobe.engine.lists import lists as lists_module
from mailprobe.engine.lists.lists import (
    DATA,
    SEARCHES_MAX,
    DisposableHosts,
    Lists,
    LongList,
    load_lists,
    load_typos,
    read_names,
)
from mailprobe.engine.lists.typos import Typos, TypoTable
from mailprobe.engine.verdict import Signals

HERE = Path(__file__).parent
TYPOS = [tuple(row.split("\t")) for row in (HERE / "typos.tsv").read_text("utf-8").splitlines()[1:]]
SMALL = (HERE / "small_domains.txt").read_text("utf-8").split()
PROVIDERS = (HERE / "providers.txt").read_text("utf-8").split()
ORGANISATIONS = (HERE / "organisations.txt").read_text("utf-8").split()
THROWAWAYS = (HERE / "throwaways.txt").read_text("utf-8").split()
FALSE_PROVIDERS = (HERE / "false_providers.txt").read_text("utf-8").split()
UNIVERSITIES = (HERE / "universities.txt").read_text("utf-8").split()


@pytest.fixture(scope="module")
def lists() -> Lists:
    return load_lists()


def signals_of(lists: Lists, text: str) -> Signals:
    local, _, domain = text.rpartition("@")
    return lists.signals(Address(text, local, domain))


# The files


def test_there_are_more_than_fifty_thousand_throwaways(lists):
    assert len(lists.disposable) > 50_000


@pytest.mark.parametrize("path", sorted(DATA.glob("*.txt")), ids=lambda path: path.name)
def test_a_list_is_sorted_unique_and_lower_case(path):
    encoding = "utf-8" if path.name == "roles.txt" else "ascii"  # domains are A-labels
    rows = path.read_bytes().decode(encoding).split("\n")
    assert rows.pop() == ""
    assert rows == sorted(set(rows))
    assert all(rows)
    assert "".join(rows) == "".join(rows).lower()


@pytest.mark.parametrize(
    "file",
    ["disposable", "free_providers", "free_core", "not_free", "allow", "relays", "smtp_blocked"],
)
def test_a_list_of_domains_holds_a_labels_alone(file):
    label = r"(?!-)[a-z0-9-]{1,63}(?<!-)"
    domain = re.compile(rf"{label}(\.{label})+")
    assert [d for d in read_names(DATA / f"{file}.txt") if not domain.fullmatch(d)] == []


def test_no_throwaway_is_a_public_suffix(lists):
    suffixes = PublicSuffixList()
    assert [d for d in lists.disposable if suffixes.is_public(d)] == []
    assert [d for d in lists.disposable if suffixes.privatesuffix(d) is None] == []


def test_no_throwaway_lies_above_a_public_suffix(lists):
    """Listed, it would hit the strangers below that suffix: the walk over parents looks no suffix up."""
    rules = Path(PSLFILE).read_text("utf-8").split()
    above = {rule[dot + 1 :] for rule in rules for dot, char in enumerate(rule) if char == "."}
    assert lists.disposable & above == set()


def test_there_are_about_three_hundred_roles():
    rows = (DATA / "roles.txt").read_text("utf-8").split()
    assert 280 <= len(rows) <= 340


def test_no_role_stands_twice_in_two_spellings(lists):
    rows = (DATA / "roles.txt").read_text("utf-8").split()
    spellings = [row.replace("-", mark) for row in rows for mark in ("-", "") if "-" in row]
    plain = [row for row in rows if "-" not in row]
    assert len(set(spellings + plain)) == len(spellings + plain)


def test_no_role_is_the_name_of_a_person(lists):
    """Their given names and surnames, from twenty countries, as people write their mailboxes."""
    names = (HERE / "person_names.txt").read_text("utf-8").split()
    assert len(set(names)) >= 600
    assert [name for name in names if lists.is_role(name)] == []
    assert [name for name in names if lists.is_role(name.capitalize())] == []


def test_every_smtp_blocked_domain_is_a_free_provider(lists):
    assert lists.smtp_blocked <= lists.free_providers


def test_the_lists_do_not_contradict_each_other(lists):
    assert not lists.disposable & lists.free_providers
    assert not lists.disposable & lists.allowed
    assert not lists.free_providers & lists.relays
    assert lists.typos.targets <= lists.free_providers


def test_every_exception_of_the_typos_is_needed():
    table, tlds = load_typos(), read_names(DATA / "tlds.txt")
    bare = Typos(replace(table, known={}), tlds)
    assert [d for d, meant in table.known.items() if bare.correct(d) == meant] == []
    bare = Typos(replace(table, ordinary=frozenset()), tlds)
    endings = {target.partition(".")[2] for target in bare.targets}
    needless = [w for w in table.ordinary if not any(bare.correct(f"{w}.{e}") for e in endings)]
    assert needless == []


# Layer 2


def test_no_major_provider_is_a_throwaway(lists):
    assert len(PROVIDERS) >= 80
    assert [d for d in PROVIDERS if lists.is_disposable(d)] == []
    assert [d for d in PROVIDERS if d not in lists.free_providers] == []
    assert [d for d in PROVIDERS if lists.suggestion(d)] == []


def test_no_university_is_a_throwaway(lists):
    assert len(UNIVERSITIES) >= 60
    hosts = [host for d in UNIVERSITIES for host in (d, f"student.{d}", f"mail.{d}")]
    assert [d for d in hosts if lists.is_disposable(d)] == []
    academic = re.compile(r"(^|\.)(edu|(edu|ac)\.[a-z]{2})$")
    assert [d for d in lists.disposable if academic.search(d)] == []


def test_no_bank_shop_newspaper_or_other_organisation_is_a_throwaway(lists):
    """Of many countries; 26 of them are in an upstream list of throwaways."""
    assert len(ORGANISATIONS) >= 250
    assert [d for d in ORGANISATIONS if lists.is_disposable(d)] == []
    assert [d for d in ORGANISATIONS if lists.is_disposable(f"mail.{d}")] == []


def test_every_well_known_throwaway_is_listed_however_popular_its_site(lists):
    assert len(THROWAWAYS) >= 200
    assert [d for d in THROWAWAYS if not lists.is_disposable(d)] == []


def test_every_row_of_the_deny_list_is_a_throwaway_with_a_reason(lists):
    table = tomllib.loads((DATA / "deny.toml").read_text("utf-8"))
    rows = [domain for domains in table.values() for domain in domains]
    assert all(domains == sorted(domains) for domains in table.values())
    assert len(set(rows)) == len(rows) > 100
    assert all(table)
    assert [d for d in rows if d not in lists.disposable] == []


def test_a_throwaway_that_a_list_of_free_providers_has_is_no_free_provider(lists):
    assert len(FALSE_PROVIDERS) >= 57
    assert [d for d in FALSE_PROVIDERS if d in lists.free_providers] == []


def test_a_typo_of_a_provider_is_a_throwaway_and_gets_a_suggestion(lists):
    assert signals_of(lists, "x@gmial.com") == Signals(disposable=True, suggestion="gmail.com")
    assert signals_of(lists, "x@hotmial.com") == Signals(disposable=True, suggestion="hotmail.com")


def test_no_relay_is_a_throwaway_or_gets_a_suggestion(lists):
    for relay in lists.relays:
        assert signals_of(lists, f"x@{relay}") == Signals()
        assert signals_of(lists, f"x@ann.{relay}") == Signals()


@pytest.mark.parametrize(
    "domain", ["mailinator.com", "yopmail.com", "guerrillamail.com", "10minutemail.com"]
)
def test_a_throwaway_and_all_below_it_are_disposable(lists, domain):
    assert signals_of(lists, f"x@{domain}").disposable
    assert signals_of(lists, f"x@a.{domain}").disposable
    assert signals_of(lists, f"x@a.b.c.{domain}").disposable
    assert not signals_of(lists, f"x@not{domain}.example").disposable


def test_a_parent_above_a_listed_host_is_not_disposable(lists):
    assert "00.msk.ru" in lists.disposable
    assert not signals_of(lists, "x@msk.ru").disposable
    assert not signals_of(lists, "x@example.msk.ru").disposable


def small_lists(*, disposable: set[str], allowed: set[str]) -> Lists:
    no_typos = TypoTable(
        mark={}, brand={}, name={}, word={}, known={}, co=frozenset(), ordinary=frozenset()
    )
    nothing = frozenset[str]()
    return Lists(
        disposable=frozenset(disposable),
        allowed=frozenset(allowed),
        relays=nothing,
        free_providers=nothing,
        smtp_blocked=nothing,
        roles=nothing,
        typos=Typos(no_typos, nothing),
        disposable_hosts=DisposableHosts(nothing),
    )


@pytest.mark.parametrize("asked_before", [0, SEARCHES_MAX], ids=["by search", "in the set"])
@pytest.mark.parametrize(
    ("name", "is_there"),
    [
        *(("a.com", True), ("b.com", True), ("long.name.org", True)),
        *(("c.com", False), ("name.org", False), ("a.co", False), ("com", False), ("", False)),
    ],
)
def test_a_long_list_knows_its_names_before_and_after_its_set_is_made(
    asked_before: int, name: str, is_there: bool
):
    names = LongList("a.com\nb.com\nlong.name.org\n")
    for _ in range(asked_before):
        assert "other.org" not in names
    assert (name in names) is is_there


def test_both_ways_of_looking_up_a_throwaway_say_the_same():
    """All kinds of places in the real file: its first, its last, and some between."""
    whole = read_names(DATA / "disposable.txt")
    some = [*sorted(whole)[:: len(whole) // 50], max(whole), "acme.test", "gmail.com", "x"]
    text = (DATA / "disposable.txt").read_text("ascii")
    assert len(LongList(text)) == len(whole)
    for name in some:
        assert (name in LongList(text)) is (name in whole)


def test_the_allow_list_wins_at_every_level():
    lists = small_lists(disposable={"a.com", "c.b.com"}, allowed={"good.a.com", "b.com"})
    assert lists.is_disposable("a.com")
    assert lists.is_disposable("x.a.com")
    assert not lists.is_disposable("good.a.com")
    assert not lists.is_disposable("x.good.a.com")
    assert not lists.is_disposable("c.b.com")


# Signals


RFC_2142 = """
    info marketing sales support abuse noc security postmaster hostmaster usenet news webmaster
    www uucp ftp
"""


@pytest.mark.parametrize("local", RFC_2142.split())
def test_every_mailbox_of_rfc_2142_is_a_role(lists, local):
    assert signals_of(lists, f"{local}@example.org").role
    assert signals_of(lists, f"{local.upper()}@example.org").role


@pytest.mark.parametrize(
    "local",
    [
        "admin", "noreply", "no-reply", "no.reply", "NO_REPLY", "ABUSE", "Sales", "support+eu",
        '"info"', '"in\\fo"', "mailer-daemon", "mailerdaemon", "do.not.reply", "donotreply",
        "customer-service", "customer.service", "customer_service", "CustomerService",
        # one of each language
        "kontakt", "buchhaltung", "Ressources.Humaines", "comptabilité", "Secrétariat",
        "atencion-al-cliente", "administración", "ufficio_stampa", "servizioclienti",
        "recepção", "fale.conosco", "klantenservice", "boekhouding", "biuro", "księgowość",
        "prodazhi", "Поддержка", "приёмная", "приемная", "eigyo", "お問い合わせ", "kefu", "客服",
    ],
)  # fmt: skip
def test_an_office_is_a_role(lists, local):
    assert signals_of(lists, f"{local}@example.org").role


@pytest.mark.parametrize(
    "local",
    [
        "ann", "information1", "ann+info", "sales.ann", "ann-sales", "in.fo", "i-t", "h.r", "s_ales",
        "service.customer", "no--reply", '""', '"', "+", "+info", "é", "\N{COMBINING ACUTE ACCENT}",
    ],
)  # fmt: skip
def test_a_person_is_no_role(lists, local):
    assert not signals_of(lists, f"{local}@example.org").role


@pytest.mark.parametrize(
    "domain", ["gmail.com", "gmx.de", "mail.ru", "proton.me", "consultant.com"]
)
def test_a_free_provider_is_recognized(lists, domain):
    assert signals_of(lists, f"ann@{domain}").free_provider


@pytest.mark.parametrize(
    "domain", ["example.org", "siemens.com", "duck.com", "x.gmail.com.example"]
)
def test_another_domain_is_no_free_provider(lists, domain):
    assert not signals_of(lists, f"ann@{domain}").free_provider


@pytest.mark.parametrize(
    "domain",
    ["gmail.com", "outlook.com", "hotmail.fr", "live.nl", "yahoo.co.uk", "aol.com", "icloud.com"],
)
def test_a_provider_that_blocks_probes_is_recognized(lists, domain):
    assert signals_of(lists, f"ann@{domain}").smtp_blocked


@pytest.mark.parametrize("domain", ["gmx.de", "yandex.ru", "proton.me", "example.org", "gmial.com"])
def test_a_provider_that_answers_probes_is_not_marked(lists, domain):
    assert not signals_of(lists, f"ann@{domain}").smtp_blocked


@pytest.mark.parametrize(("typed", "meant"), TYPOS)
def test_a_typo_of_a_big_domain_is_seen(lists, typed, meant):
    assert lists.suggestion(typed) == meant


def test_there_are_two_hundred_typos():
    assert len(TYPOS) >= 200


def test_a_small_domain_is_left_alone(lists):
    assert len(SMALL) >= 500
    assert {d: lists.suggestion(d) for d in SMALL if lists.suggestion(d)} == {}


def test_no_provider_is_taken_for_a_typo(lists):
    known = lists.free_providers | lists.smtp_blocked | lists.relays | lists.allowed
    assert [d for d in known if lists.suggestion(d)] == []


def test_a_typo_that_is_a_throwaway_too_is_both(lists):
    signals = signals_of(lists, "ann@gmial.com")
    assert signals.disposable
    assert signals.suggestion == "gmail.com"


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("gmаil.com", "gmail.com"),  # a Cyrillic a
        ("gmaíl.com", "gmail.com"),
        ("hοtmail.com", "hotmail.com"),  # a Greek omicron
        ("münchen.de", None),
        ("orangé.fr", None),
    ],
)
def test_an_international_domain_is_a_typo_only_if_it_looks_the_same(lists, typed, meant):
    assert lists.suggestion(typed.encode("idna").decode()) == meant


@pytest.mark.parametrize("domain", ["xn--.com", "xn--a.com", "localhost", "a.b", "-.com", "co"])
def test_odd_domains_do_no_harm(lists, domain):
    assert signals_of(lists, f"ann@{domain}") == Signals()


def test_the_signals_of_many_domains_are_kept_but_not_of_all(monkeypatch):
    """A domain is matched again once DOMAINS_REMEMBERED_MAX others followed it."""
    monkeypatch.setattr(lists_module, "DOMAINS_REMEMBERED_MAX", 100)
    lists = load_lists()
    matched: list[str] = []
    match = lists.typos.correct

    def counted(domain: str) -> str | None:
        matched.append(domain)
        return match(domain)

    monkeypatch.setattr(lists.typos, "correct", counted)
    domains = [f"d{number}.example.org" for number in range(101)]
    for domain in [*domains[:100], *domains[:100]]:
        signals_of(lists, f"ann@{domain}")
    assert matched == domains[:100]
    signals_of(lists, f"ann@{domains[100]}")
    signals_of(lists, f"ann@{domains[0]}")
    assert matched == [*domains, domains[0]]
