"""Slips made by rule, and how many of them are seen.

The typos that a person collected are in typos.tsv, the innocent names that get
no suggestion in small_domains.txt; see test_lists.py. Here every way of missing a
key is made for the providers that people have their mailboxes at, so that the
rules are held to the whole class and not to the examples.
"""

from collections.abc import Callable, Iterator

import pytest

from mailprobe.engine.lists.lists import Lists, load_lists

# The providers by how surely a slip of their name is nobody else's.
FAMOUS = [
    "gmail.com",
    "googlemail.com",
    "yahoo.com",
    "yahoo.co.uk",
    "yahoo.fr",
    "yahoo.de",
    "yahoo.com.br",
    "hotmail.com",
    "hotmail.co.uk",
    "hotmail.fr",
    "hotmail.it",
    "outlook.com",
    "outlook.de",
    "protonmail.com",
    "icloud.com",
    "rocketmail.com",
    "rediffmail.com",
]
RARE = [
    "comcast.net",
    "verizon.net",
    "sbcglobal.net",
    "bellsouth.net",
    "earthlink.net",
    "btinternet.com",
    "t-online.de",
    "wanadoo.fr",
    "laposte.net",
    "tiscali.it",
    "ziggo.nl",
    "yandex.ru",
    "seznam.cz",
    "interia.pl",
    "bluewin.ch",
    "optusnet.com.au",
    "sympatico.ca",
    "tutanota.com",
    "fastmail.com",
    "posteo.de",
]
WORDS = [
    "orange.fr",
    "libero.it",
    "virgilio.it",
    "telenet.be",
    "skynet.be",
    "planet.nl",
    "freenet.de",
    "charter.net",
    "rogers.com",
    "frontier.com",
    "talktalk.net",
    "windstream.net",
    "centrum.cz",
    "rambler.ru",
]
SHORT = [
    "aol.com",
    "live.com",
    "live.fr",
    "msn.com",
    "mail.com",
    "mail.ru",
    "mac.com",
    "me.com",
    "gmx.de",
    "gmx.net",
    "web.de",
    "free.fr",
    "att.net",
    "cox.net",
    "sky.com",
    "zoho.com",
    "qq.com",
    "163.com",
    "126.com",
    "naver.com",
    "ymail.com",
    "pm.me",
    "proton.me",
    "hey.com",
    "bk.ru",
    "list.ru",
    "wp.pl",
    "o2.pl",
]

KEY_ROWS = ("qwertyuiop", "asdfghjkl", "zxcvbnm")


@pytest.fixture(scope="module")
def lists() -> Lists:
    return load_lists()


def swapped(text: str) -> Iterator[str]:
    for i in range(len(text) - 1):
        if text[i] != text[i + 1] and "." not in text[i : i + 2]:
            yield text[:i] + text[i + 1] + text[i] + text[i + 2 :]


def doubled(text: str) -> Iterator[str]:
    for i, letter in enumerate(text):
        if letter != ".":
            yield text[:i] + letter + text[i:]


def lost(text: str) -> Iterator[str]:
    """A letter lost; of the first one only a careless reader could say what was meant."""
    for i in range(1, len(text)):
        if text[i] != ".":
            yield text[:i] + text[i + 1 :]


def beside(text: str) -> Iterator[str]:
    """The key to the left or to the right struck instead."""
    for i in range(1, len(text)):
        for row in KEY_ROWS:
            at = row.find(text[i])
            if at >= 0:
                for other in (row[at - 1 : at], row[at + 1 : at + 2]):
                    if other:
                        yield text[:i] + other + text[i + 1 :]


def both_keys(text: str) -> Iterator[str]:
    """A neighbour's key struck along with the right one, inside the name."""
    for i in range(1, len(text) - 1):
        for row in KEY_ROWS:
            at = row.find(text[i])
            if at >= 0 and row[at + 1 : at + 2]:
                yield text[:i] + row[at + 1] + text[i:]


def ending_missed(ending: str) -> Iterator[str]:
    yield from swapped(ending)
    yield from doubled(ending)
    yield from lost(ending)
    if ending == "com":
        yield from [
            "con",
            "cmo",
            "ocm",
            "cm",
            "om",
            "vom",
            "xom",
            "cim",
            "cpm",
            "comm",
            "coom",
            "comn",
            "ccom",
        ]


Make = Callable[[str], Iterator[str]]
NAME_SLIPS: dict[str, Make] = {
    "swapped": swapped,
    "doubled": doubled,
    "lost": lost,
    "beside": beside,
    "both keys": both_keys,
}


def share_seen(lists: Lists, domains: list[str], make: Make, *, ending: bool = False) -> float:
    """The share of the slips for which the right domain is suggested."""
    seen = asked = 0
    for domain in domains:
        name, _, rest = domain.partition(".")
        for slip in make(rest) if ending else make(name):
            typed = f"{name}.{slip}" if ending else f"{slip}.{rest}"
            if typed in lists.free_providers | lists.relays or typed == domain:
                continue
            asked += 1
            seen += lists.suggestion(typed) == domain
    assert asked >= 25
    return seen / asked


@pytest.mark.parametrize(
    ("domains", "kind", "least"),
    [
        *((FAMOUS, kind, 0.97) for kind in NAME_SLIPS),
        *((RARE, kind, 0.97) for kind in NAME_SLIPS),
        *((WORDS, kind, 0.95) for kind in NAME_SLIPS if kind != "lost"),
        (WORDS, "lost", 0.8),  # the others are words themselves: orage, libro, plant
        (SHORT, "doubled", 0.75),
    ],
)
def test_a_slip_in_the_name_is_seen(lists, domains, kind, least):
    assert share_seen(lists, domains, NAME_SLIPS[kind]) >= least


@pytest.mark.parametrize(
    ("domains", "least"), [(FAMOUS, 0.95), (RARE, 0.95), (WORDS, 0.95), (SHORT, 0.9)]
)
def test_a_slip_in_the_ending_is_seen(lists, domains, least):
    assert share_seen(lists, domains, ending_missed, ending=True) >= least


def test_an_ending_that_does_not_exist_is_mended_for_every_provider(lists):
    """Nobody has a mailbox below a top-level domain that is none, so nothing can be lost."""
    com = [d for d in sorted(lists.free_providers) if d.endswith(".com") and d.count(".") == 1]
    assert len(com) > 1000
    assert [d for d in com if lists.suggestion(f"{d[:-4]}.con") != d] == []


def test_an_ambiguous_typo_gets_no_suggestion(lists):
    assert lists.suggestion("posteo.xyzzy") is None
    assert lists.suggestion("acme.con") is None
