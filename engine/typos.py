"""The domain that was meant: a typo of a big provider -> that provider's domain.

Two laws. A slip must be one that fingers make (letters swapped, lost, doubled,
a neighbouring key, an ending that does not exist), because any other word at
the same distance may be a firm's real name. And the surer a name is nobody
else's, the more is believed: see `data/typos.toml` for the three degrees.

Pure; nothing here says whether a domain is itself a provider: Lists asks that first.
"""

import re
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

FUZZY_LETTERS_MIN = 5  # "aol", "live": half of all words lie one slip away
FIRST_LETTER_LETTERS_MIN = 7  # a wrong first letter is believed of long names alone
TWO_SLIPS_LETTERS_MIN = {"mark": 7, "name": 8}  # "foodmail" is no "foxmail"
SQUEEZED_LETTERS_MIN = 8  # "g.mail.com"; shorter ones fall together with real names

# Endings that exist but are far oftener a slip: gmail.co, comcast.ne
COUNTRY_ENDING = re.compile(r"[a-z0-9]+|[a-z]{2,3}\.[a-z]{2}")
REAL_SECOND_LEVELS = ("ac", "ca", "go", "or", "org")
REAL_ENDING_SLIPS = {"com": ("co", "cm", "om"), "net": ("ne", "et")}

# letter -> the keys around it on a QWERTY keyboard
NEIGHBOURS = {
    "q": "wa",
    "w": "qase",
    "e": "wsdr",
    "r": "etdf",
    "t": "rfgy",
    "y": "tghu",
    "u": "yhji",
    "i": "ujko",
    "o": "iklp",
    "p": "ol",
    "a": "qwsz",
    "s": "weadzx",
    "d": "erfscx",
    "f": "rtdgcv",
    "g": "tyfhvb",
    "h": "yugjbn",
    "j": "uihknm",
    "k": "iojlm",
    "l": "opk",
    "z": "asx",
    "x": "zsdc",
    "c": "xdfv",
    "v": "cfgb",
    "b": "vghn",
    "n": "bhjm",
    "m": "njk",
    "-": "p0",
}
VOWELS = "aeiou"

# What an eye takes for a Latin letter; accents are taken off by decomposition.
LOOK_ALIKES = {
    ord(alike): letter
    for letter, alikes in {
        "a": "аα",
        "b": "вь",
        "c": "с",
        "d": "ԁ",
        "e": "е",
        "g": "ɡ",
        "h": "һн",
        "i": "іιıɩ",
        "j": "ј",
        "k": "кκ",
        "l": "ӏ",
        "m": "м",
        "o": "оοᴏ",
        "p": "рρ",
        "q": "ԛ",
        "s": "ѕ",
        "t": "тτ",
        "u": "υ",
        "v": "ν",
        "w": "ԝ",
        "x": "х",
        "y": "у",
    }.items()
    for alike in alikes
}


@dataclass(frozen=True, slots=True)
class TypoTable:
    """`typos.toml` as read: each name with the endings people have mailboxes under."""

    mark: Mapping[str, list[str]]
    name: Mapping[str, list[str]]
    word: Mapping[str, list[str]]
    known: Mapping[str, str]
    never: frozenset[str]


class Typos:
    """Every provider that may be suggested, and every single slip of its name."""

    def __init__(self, table: TypoTable, tlds: frozenset[str]) -> None:
        self._table = table
        self._tlds = tlds
        self._endings = {**table.word, **table.name, **table.mark}
        self.targets = frozenset(
            f"{name}.{ending}" for name, endings in self._endings.items() for ending in endings
        )
        self._squeezed = {
            _squeeze(target): target
            for target in sorted(self.targets)
            if len(target) > SQUEEZED_LETTERS_MIN and target.partition(".")[0] not in table.word
        }
        self._slips: dict[str, str] = {}
        self._long: dict[str, list[str]] = {}  # first letter -> names that bear two slips
        for name in sorted(self._endings):
            self._learn(name)

    def _learn(self, name: str) -> None:
        if len(name) < FUZZY_LETTERS_MIN:
            return
        for slip in _slips(name, mark=name in self._table.mark, word=name in self._table.word):
            self._slips.setdefault(slip, name)
        if name in self._table.word:
            return
        degree = "mark" if name in self._table.mark else "name"
        if len(name) >= TWO_SLIPS_LETTERS_MIN[degree]:
            self._long.setdefault(name[0], []).append(name)

    def correct(self, domain: str) -> str | None:
        """The provider's domain that was meant, or None when nothing sure can be said."""
        if domain in self.targets or domain in self._table.never:
            return None
        known = self._table.known.get(domain)
        if known is not None:
            return known
        if "xn--" in domain:
            return self._seen_as(domain)
        meant = self._squeezed.get(_squeeze(domain))
        if meant is not None:
            return meant
        label, _, ending = domain.removeprefix("www.").partition(".")
        if not ending:
            return None
        if label in self._endings:
            return self._with_ending(label, ending)
        name = self._named(label)
        if name is None:
            return None
        return self._with_mended_name(name, ending)

    def _seen_as(self, domain: str) -> str | None:
        """An international domain that looks exactly like a provider's."""
        seen = ".".join(_skeleton(label) for label in domain.split("."))
        meant = seen if seen in self.targets else None
        return meant if meant and meant.partition(".")[0] not in self._table.word else None

    def _with_ending(self, name: str, ending: str) -> str | None:
        """The name is right; what of the ending?"""
        endings = self._endings[name]
        if ending in endings:
            return f"{name}.{ending}"
        near = self._near_ending(endings, ending, word=name in self._table.word)
        if near is not None:
            return f"{name}.{near}"
        if name in self._table.word:
            return None
        for own in endings:
            if ending.startswith(own + ".") and "." not in ending[len(own) + 1 :]:
                return f"{name}.{own}"  # gmail.com.com, icloud.com.br
        if name not in self._table.mark or COUNTRY_ENDING.fullmatch(ending) is None:
            return None  # outlook.shop.example is somebody's host
        country = "." + ending.rpartition(".")[2]
        same = [own for own in endings if own.endswith(country)]  # hotmail.uk -> co.uk
        return f"{name}.{same[0] if same else endings[0]}"

    def _near_ending(self, endings: list[str], ending: str, *, word: bool) -> str | None:
        """An ending one slip away, provided that what stands there can be nobody's."""
        first, _, rest = ending.partition(".")
        if ending.rpartition(".")[2] in self._tlds:
            for own in endings:  # uol.con.br: below .br stand com, net, org, but never con
                of_same = rest and rest == own.partition(".")[2] and first not in REAL_SECOND_LEVELS
                if of_same and _is_one_edit(own, ending):
                    return own
            if word:
                return None
            return next((e for e in endings if ending in REAL_ENDING_SLIPS.get(e, ())), None)
        for own in endings:
            if _is_one_edit(own, ending):
                return own
        return None

    def _with_mended_name(self, name: str, ending: str) -> str | None:
        """The name was mended: then its ending must be right, or clearly nobody's."""
        endings = self._endings[name]
        if ending in endings:
            return f"{name}.{ending}"
        near = self._near_ending(endings, ending, word=name in self._table.word)
        return None if near is None else f"{name}.{near}"

    def _named(self, label: str) -> str | None:
        """The provider's name that this label is a slip of."""
        name = self._slips.get(label)
        if name is not None:
            return name
        for fold in (_fold(label, "l"), _fold(label, "i"), label.replace("-", "")):
            if fold != label and self._may_fold(fold):
                return fold
        bare = label.strip("0123456789")  # 07gmail.com: the year went to the wrong side of the @
        if bare in self._table.mark:
            return bare
        for suffix in ("com", "net"):  # gmailcom.com: a dot lost, and put in again
            if label.endswith(suffix) and self._may_fold(label[: -len(suffix)]):
                return label[: -len(suffix)]
        for name in self._long.get(label[:1], ()):
            near = abs(len(name) - len(label)) <= 1 and len(set(label) - set(name)) <= 2
            if not near or _is_one_edit(name, label):
                continue  # one edit that is no slip: earthling.net is no earthlink.net
            if any(self._slips.get(half) == name for half in _unslips(label)):
                return name
        return None

    def _may_fold(self, name: str) -> bool:
        return (
            len(name) >= FUZZY_LETTERS_MIN
            and name in self._endings
            and name not in self._table.word
        )


def _slips(name: str, *, mark: bool, word: bool) -> Iterator[str]:
    """Every way in which fingers miss this name once."""
    for i in range(len(name) - 1):
        if name[i] != name[i + 1]:
            yield name[:i] + name[i + 1] + name[i] + name[i + 2 :]
    for i, letter in enumerate(name):
        yield name[:i] + letter * 2 + name[i + 1 :]
        yield name[:i] + letter * 3 + name[i + 1 :]
    for i in range(len(name) - 1):
        if name[i] == name[i + 1]:  # the other letter doubled: yahho
            single = name[:i] + name[i + 1 :]
            for j in range(len(single)):
                yield single[:j] + single[j] * 2 + single[j + 1 :]
    if word:
        return
    first = 0 if len(name) > FUZZY_LETTERS_MIN else 1
    for i in range(first, len(name)):
        yield name[:i] + name[i + 1 :]
    first = 0 if len(name) >= FIRST_LETTER_LETTERS_MIN else 1
    for i in range(first, len(name)):
        for other in NEIGHBOURS.get(name[i], ""):
            yield name[:i] + other + name[i + 1 :]
    for i in range(1, len(name)):
        if name[i] in VOWELS:
            for other in VOWELS:
                yield name[:i] + other + name[i + 1 :]
    for i, letter in enumerate(name):
        for other in NEIGHBOURS.get(letter, ""):
            yield name[:i] + other + name[i:]
            yield name[: i + 1] + other + name[i + 1 :]
    if mark:
        for i in range(1, len(name) + 1):
            for other in "abcdefghijklmnopqrstuvwxyz":
                yield name[:i] + other + name[i:]


def _unslips(label: str) -> Iterator[str]:
    """What stood here before the last slip, if that was a swap, a miss or a letter too many."""
    for i in range(len(label) - 1):
        yield label[:i] + label[i + 1] + label[i] + label[i + 2 :]
    for i in range(1, len(label)):
        yield label[:i] + label[i + 1 :]
        for other in NEIGHBOURS.get(label[i], ""):
            yield label[:i] + other + label[i + 1 :]


def _is_one_edit(one: str, other: str) -> bool:
    """Is a single letter lost, added, changed, or swapped with its neighbour?"""
    shorter = min(len(one), len(other))
    start = 0
    while start < shorter and one[start] == other[start]:
        start += 1
    end = 0
    while end < shorter - start and one[-1 - end] == other[-1 - end]:
        end += 1
    left, right = one[start : len(one) - end], other[start : len(other) - end]
    if len(left) == len(right) == 2:
        return left == right[::-1]
    return max(len(left), len(right)) == 1


def _squeeze(domain: str) -> str:
    return domain.replace(".", "").replace("-", "")


def _fold(label: str, one: str) -> str:
    """What a hasty eye reads: gmai1, 0utlook, grnail, hotrnail."""
    return label.replace("0", "o").replace("1", one).replace("rn", "m").replace("vv", "w")


def _skeleton(label: str) -> str:
    """The Latin letters that this label looks like."""
    if not label.startswith("xn--"):
        return label
    try:
        text = label[4:].encode("ascii").decode("punycode")
    except UnicodeError:
        return label
    bare = (c for c in unicodedata.normalize("NFKD", text) if not unicodedata.combining(c))
    return "".join(bare).translate(LOOK_ALIKES)
