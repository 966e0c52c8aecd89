"""Suggests the domain that was meant: a typo of a big provider -> that provider's domain.

Two rules. A slip must be a typing error (letters swapped, lost, doubled, a neighbouring
key, an ending that does not exist), because any other word at the same distance may be a
company's real name. And the more distinctive a provider's name is, the more slips are
accepted: `data/typos.toml` has the degrees. Under a top-level domain that does not exist
there are no mailboxes, so there every known provider may be suggested, even for ordinary
words.

Pure. Lists checks first that the domain is not itself a provider.
"""

import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property

from msgspec import Struct

DOUBLED_LETTERS_MIN = 3  # "livve", "aoll"; of two letters, every triple is a company
SWAPPED_LETTERS_MIN = 4  # "lvie"; all three-letter names are in use
FUZZY_LETTERS_MIN = 5  # "aol", "live": half of all words are one slip away
FUZZY_WORD_LETTERS_MIN = 6  # "orang", but "nave" and "tera" are words too
FIRST_LETTER_LETTERS_MIN = 7  # a wrong first letter is accepted in long names only
TWO_SLIPS_LETTERS_MIN = {"mark": 7, "brand": 8, "name": 9}  # "quicken" is no "quicknet"
SQUEEZED_LETTERS_MIN = 8  # "g.mail.com"; shorter ones collide with real names

COUNTRY_ENDING = re.compile(r"[a-z0-9]+|[a-z]{2,3}\.[a-z]{2}")
REAL_SECOND_LEVELS = ("ac", "ca", "go", "or", "org")
OLD_ENDINGS = ("com", "net", "org", "info", "biz")  # newer ones are not typed by habit
# Endings that exist but are a slip far more often: gmail.cm, comcast.ne
REAL_ENDING_SLIPS = {"com": ("cm", "om"), "net": ("ne", "et", "bet")}
CO = "co"  # Colombia's, also used by many companies: a slip of "com" only where the table allows it
# Top-level domains that do not exist but are used in internal networks: outlook.lan
INTERNAL_ENDINGS = frozenset({"corp", "home", "host", "lan", "priv", "test"})
NO_ENDING_LETTERS_MAX = 4  # "gmail.conm" is a slip; "gmail.internal" is not

# letter -> the keys around it on a QWERTY keyboard, digits too
NEIGHBOURS = {
    "q": "wa12",
    "w": "qase23",
    "e": "wsdr34",
    "r": "etdf45",
    "t": "rfgy56",
    "y": "tghu67",
    "u": "yhji78",
    "i": "ujko89",
    "o": "iklp90",
    "p": "ol0",
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

# Characters that look like a Latin letter; accents are removed by decomposition.
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


class TypoTable(Struct, frozen=True):
    """`typos.toml`: each name with the endings under which it has mailboxes."""

    mark: Mapping[str, list[str]]
    brand: Mapping[str, list[str]]
    name: Mapping[str, list[str]]
    word: Mapping[str, list[str]]
    known: Mapping[str, str]
    co: frozenset[str]
    ordinary: frozenset[str]


class Typos:
    """Every provider that may be suggested, with the slips of its name.

    `tlds` are the top-level domains that exist. `providers` are domains that may be
    suggested where only the ending is wrong and does not exist.
    """

    def __init__(
        self, table: TypoTable, tlds: frozenset[str], providers: Iterable[str] = ()
    ) -> None:
        self.table = table
        self._tlds = tlds
        self._providers = providers
        self._endings = {**table.word, **table.name, **table.brand, **table.mark}
        self.targets = frozenset(
            f"{name}.{ending}" for name, endings in self._endings.items() for ending in endings
        )
        self._squeezed = {
            _squeeze(target): target
            for target in sorted(self.targets)
            if len(target) > SQUEEZED_LETTERS_MIN and target.partition(".")[0] not in table.word
        }

    @cached_property
    def _slips(self) -> Mapping[str, str]:
        """Slip -> the name that was meant. A slip of two names counts for the better known one."""
        slips: dict[str, str] = {}
        table = self.table
        for degree in (table.mark, table.brand, table.name, table.word):
            for name in sorted(degree):
                for slip in _slips(name, self._degree(name)):
                    slips.setdefault(slip, name)
        return slips

    @cached_property
    def _long(self) -> Mapping[tuple[str, int], list[str]]:
        """A label's first letter and length -> the names it may be two slips from."""
        long: dict[tuple[str, int], list[str]] = {}
        for name in sorted(self._endings):
            letters_min = TWO_SLIPS_LETTERS_MIN.get(self._degree(name))
            if letters_min is not None and len(name) >= letters_min:
                for length in range(len(name) - 1, len(name) + 2):
                    long.setdefault((name[0], length), []).append(name)
        return long

    @cached_property
    def _provider_endings(self) -> Mapping[str, list[str]]:
        """Name of a provider -> its endings, the shortest first."""
        endings: dict[str, list[str]] = {}
        for domain in sorted(self._providers, key=lambda domain: (len(domain), domain)):
            name, _, ending = domain.partition(".")
            endings.setdefault(name, []).append(ending)
        return endings

    def _degree(self, name: str) -> str:
        if name in self.table.mark:
            return "mark"
        if name in self.table.brand:
            return "brand"
        return "name" if name in self.table.name else "word"

    def correct(self, domain: str) -> str | None:
        """The provider's domain that was meant, or None if that is not certain."""
        if domain in self.targets:
            return None
        known = self.table.known.get(domain)
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
        exists = ending.rpartition(".")[2] in self._tlds
        meant = self._with_ending(label, ending) if label in self._endings else None
        if meant is None and not exists:
            near = _nearest(self._provider_endings.get(label, ()), ending)
            meant = None if near is None else f"{label}.{near}"
        if meant is None and (not exists or label not in self.table.ordinary):
            name = self._named(label)
            meant = None if name is None else self._with_mended_name(name, ending)
        return meant

    def _seen_as(self, domain: str) -> str | None:
        """An international domain that looks exactly like a provider's."""
        seen = ".".join(_skeleton(label) for label in domain.split("."))
        meant = seen if seen in self.targets else None
        return meant if meant and meant.partition(".")[0] not in self.table.word else None

    def _with_ending(self, name: str, ending: str) -> str | None:
        """The name is right: return the domain with the right ending, or None."""
        endings = self._endings[name]
        if ending in endings:
            return f"{name}.{ending}"
        near = self._near_ending(name, ending)
        if near is not None:
            return f"{name}.{near}"
        if name in self.table.word:
            return None
        famous = self._degree(name) in ("mark", "brand")
        slip = next((own for own in endings if "." in own and _is_slip(own, ending)), None)
        if famous and slip is not None and ending.rpartition(".")[2] not in self._tlds:
            return f"{name}.{slip}"  # yahoo.co.yk; but yahoo.co.ke means Kenya, and yahoo.com
        for own in endings:
            if ending.startswith(own + ".") and "." not in ending[len(own) + 1 :]:
                return f"{name}.{own}"  # gmail.com.com, icloud.com.br
        if not famous or not self._is_foreign(endings, ending):
            return None
        country = "." + ending.rpartition(".")[2]
        same = [own for own in endings if own.endswith(country)]  # hotmail.uk -> co.uk
        return f"{name}.{same[0] if same else endings[0]}"

    def _is_foreign(self, endings: list[str], ending: str) -> bool:
        """Whether people who mean this provider might write this ending, which it does not have.

        outlook.shop.example is a host of another domain, outlook.lan an internal name.
        """
        if COUNTRY_ENDING.fullmatch(ending) is None:
            return False
        last = ending.rpartition(".")[2]
        if last not in self._tlds:
            return last not in INTERNAL_ENDINGS and len(last) <= NO_ENDING_LETTERS_MAX
        slip = "com" in endings and _is_one_edit("com", last)  # gmail.cam
        return len(last) == 2 or last in OLD_ENDINGS or slip

    def _near_ending(self, name: str, ending: str) -> str | None:
        """An ending one slip away, if the present ending can have no mailboxes, or hardly any."""
        endings = self._endings[name]
        first, _, rest = ending.partition(".")
        for own in endings:
            if ending in (own + own, f"{own}.{own}"):  # written twice
                return own
        if ending.rpartition(".")[2] not in self._tlds:
            return "com" if ending == "c" and "com" in endings else _nearest(endings, ending)
        for own in endings:  # uol.con.br: .br has com, net and org, but not con
            of_same = rest and rest == own.partition(".")[2] and first not in REAL_SECOND_LEVELS
            if of_same and _is_one_edit(own, ending):
                return own
        if ending == CO and "com" in endings:
            return "com" if name in self.table.co or name not in self.table.word else None
        return next((e for e in endings if ending in REAL_ENDING_SLIPS.get(e, ())), None)

    def _with_mended_name(self, name: str, ending: str) -> str | None:
        """The name was corrected: then its ending must be right, or clearly a slip."""
        if ending in self._endings[name]:
            return f"{name}.{ending}"
        near = self._near_ending(name, ending)
        return None if near is None else f"{name}.{near}"

    def _named(self, label: str) -> str | None:
        """The provider's name that this label is a slip of."""
        name = self._slips.get(label)
        if name is not None:
            return name
        for fold in (_fold(label, "l"), _fold(label, "i"), label.replace("-", "")):
            if fold != label and self._may_fold(fold):
                return fold
        bare = label.strip("0123456789")  # 07gmail.com: digits on the wrong side of the @
        if bare in self.table.mark:
            return bare
        for suffix in ("com", "net"):  # gmailcom.com: the dot was lost, and an ending added
            if label.endswith(suffix) and self._may_fold(label[: -len(suffix)]):
                return label[: -len(suffix)]
        letters = set(label)
        for name in self._long.get((label[:1], len(label)), ()):
            near = len(letters.difference(name)) <= 2 and len(set(name) - letters) <= 2
            if not near or _is_one_edit(name, label):
                continue  # one edit that is not a slip: earthling.net is not earthlink.net
            if any(self._slips.get(half) == name for half in _unslips(label)):
                return name
        return None

    def _may_fold(self, name: str) -> bool:
        return (
            len(name) >= FUZZY_LETTERS_MIN and name in self._endings and name not in self.table.word
        )


def _slips(name: str, degree: str) -> Iterator[str]:
    """Every single slip of this name that its degree allows."""
    if len(name) >= DOUBLED_LETTERS_MIN:
        for i, letter in enumerate(name):
            yield name[:i] + letter * 2 + name[i + 1 :]
            yield name[:i] + letter * 3 + name[i + 1 :]
    if len(name) >= SWAPPED_LETTERS_MIN:
        yield from _swapped(name)
    if len(name) >= FUZZY_LETTERS_MIN:
        yield from _other_doubled(name)
    if len(name) >= (FUZZY_WORD_LETTERS_MIN if degree == "word" else FUZZY_LETTERS_MIN):
        yield from _missed(name, degree)
        yield from _added(name, degree)


def _swapped(name: str) -> Iterator[str]:
    for i in range(len(name) - 1):
        if name[i] != name[i + 1]:
            yield name[:i] + name[i + 1] + name[i] + name[i + 2 :]


def _other_doubled(name: str) -> Iterator[str]:
    """The wrong letter doubled: yahho."""
    for i in range(len(name) - 1):
        if name[i] == name[i + 1]:
            single = name[:i] + name[i + 1 :]
            for j in range(len(single)):
                yield single[:j] + single[j] * 2 + single[j + 1 :]


def _missed(name: str, degree: str) -> Iterator[str]:
    """A letter lost, or replaced by another."""
    word = degree == "word"
    first = 0 if len(name) > FUZZY_LETTERS_MIN and not word else 1
    for i in range(first, len(name)):
        yield name[:i] + name[i + 1 :]
    first = 0 if len(name) >= FIRST_LETTER_LETTERS_MIN and not word else 1
    for i in range(first, len(name)):
        for other in NEIGHBOURS.get(name[i], ""):
            yield name[:i] + other + name[i + 1 :]
    if word:
        return
    for i in range(1, len(name)):
        if name[i] in VOWELS:
            for other in VOWELS:
                yield name[:i] + other + name[i + 1 :]


def _added(name: str, degree: str) -> Iterator[str]:
    """A letter too many: a neighbouring key (in a word only inside it), or in a mark any letter."""
    ends = degree != "word"
    for i, letter in enumerate(name):
        for other in NEIGHBOURS.get(letter, ""):
            if i or ends:
                yield name[:i] + other + name[i:]
            if i < len(name) - 1 or ends:
                yield name[: i + 1] + other + name[i + 1 :]
    if degree == "mark":
        for i in range(1, len(name) + 1):
            for other in "abcdefghijklmnopqrstuvwxyz":
                yield name[:i] + other + name[i:]


def _unslips(label: str) -> Iterator[str]:
    """The label before its last slip, if that was a swap, a wrong letter or an extra letter."""
    for i in range(len(label) - 1):
        yield label[:i] + label[i + 1] + label[i] + label[i + 2 :]
    for i in range(1, len(label)):
        yield label[:i] + label[i + 1 :]
        for other in NEIGHBOURS.get(label[i], ""):
            yield label[:i] + other + label[i + 1 :]


def _is_one_edit(one: str, other: str) -> bool:
    """Whether a single letter is lost, added, changed, or swapped with its neighbour."""
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


def _is_slip(meant: str, typed: str) -> bool:
    """Whether this edit is a typing error: letters swapped, lost, doubled, a neighbouring key."""
    if not _is_one_edit(meant, typed):
        return False
    if len(meant) != len(typed):
        return len(typed) < len(meant) or set(typed) <= set(meant)
    changed = [(a, b) for a, b in zip(meant, typed, strict=True) if a != b]
    return len(changed) == 2 or changed[0][1] in NEIGHBOURS.get(changed[0][0], "")


def _nearest(endings: Iterable[str], typed: str) -> str | None:
    """The first ending of which this is a typing error, else the first one edit away."""
    near = [own for own in endings if _is_one_edit(own, typed)]
    return next((own for own in near if _is_slip(own, typed)), near[0] if near else None)


def _squeeze(domain: str) -> str:
    return domain.replace(".", "").replace("-", "")


def _fold(label: str, one: str) -> str:
    """Replace characters that look alike: gmai1, 0utlook, grnail, hotrnail."""
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
