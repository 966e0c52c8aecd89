"""Detects the encoding of a file from all of its bytes.

Text in other encodings is hardly ever valid UTF-8 by accident. A file that is UTF-8
except for a few lines is damaged, and is refused with the first such line. Other
encodings are detected by charset-normalizer from the lines that are not ASCII.
"""

import codecs
import re
from collections.abc import Iterator

from msgspec import Struct, field

SAMPLE_PIECE_OCTETS = 1 << 14  # per piece, so that the sample spans the file
SAMPLE_OCTETS_MAX = 1 << 17

HIGH_OCTET = re.compile(rb"[\x80-\xff]")
LINE_END = re.compile(rb"[\r\n]|\Z")
INVALID = re.compile("[\udc80-\udcff]")
HIGH = re.compile("[^\x00-\x7f\udc80-\udcff]+")

# The encodings of lists. A superset stands for its subsets: cp932 for Shift-JIS.
CANDIDATES = (
    *("cp1252", "cp1250", "cp1251", "cp1253", "cp1254", "cp1255", "cp1256", "cp1257", "cp874"),
    *("cp932", "euc_jp", "gb18030", "big5", "cp949", "koi8_r", "cp866", "mac_roman", "cp850"),
)  # fmt: skip
CHAOS_MAX = 0.15  # charset-normalizer's measure of nonsense; real text has nearly none

# Single-byte encodings, in which two bytes that look like UTF-8 make no sense.
SINGLE = frozenset(name for name in CANDIDATES if name.startswith("cp125"))

# Encodings that differ in few letters are distinguished by the addresses' countries.
BY_COUNTRY = {
    **dict.fromkeys((b"cz", b"sk", b"pl", b"hu", b"hr", b"si", b"ro"), "cp1250"),
    **dict.fromkeys((b"ru", b"by", b"bg", b"rs", b"ua"), "cp1251"),
    **dict.fromkeys((b"lt", b"lv", b"ee"), "cp1257"),
    b"gr": "cp1253",
    b"tr": "cp1254",
    b"th": "cp874",
}
COUNTRY = re.compile(rb"@[\w.-]+\.([a-z]{2})\b", re.IGNORECASE)

# How Western text looks in cp1252: letters that French to Danish use, and typographic marks.
WESTERN_LOWER = "àáâãäåæçèéêëìíîïñòóôõöøùúûüßœÿ"
WESTERN_LETTERS = frozenset(WESTERN_LOWER + WESTERN_LOWER.replace("ß", "").upper())
WESTERN_MARKS = frozenset("–—‘’‚“”„…•€°§´`·«»¡¿ªº©®™²³½¼¾£\u00a0\u00ad")
CAPITAL_INSIDE = re.compile(r"[a-zà-öø-ÿ][À-ÖØ-ÞŒŸ][a-zà-öø-ÿ]")
# `£ukasz` and `Micha³` are Polish names in another encoding.
SIGN_IN_WORD = re.compile(r"[£¹³¼½¾¯][^\W\d_]|[^\W\d_]{2}[£¹³¼½¾¡¿¯]")
WORD = re.compile(r"[^\W\d_]+")

# How Thai text looks in cp874, however short: each mark stands on a letter, each leading vowel before
# one (Unicode, chapter 16.1). Text in another encoding that decodes as Thai breaks these rules.
THAI = re.compile("[\u0e01-\u0e5b]")
THAI_VOWELS = re.compile("[\u0e30-\u0e39\u0e40-\u0e44\u0e47-\u0e4c]")
THAI_RARE = re.compile("[\u0e06\u0e0c\u0e0f\u0e11\u0e2c\u0e2e]")
THAI_MARKS = frozenset("\u2013\u2014\u2018\u2019\u201c\u201d\u2022\u2026\u20ac\u00a0")
NOT_THAI = re.compile(
    "(?<![\u0e01-\u0e2e\u0e31\u0e34-\u0e39\u0e47-\u0e4c])[\u0e31\u0e34-\u0e39\u0e47-\u0e4c]"  # a mark on nothing
    "|[\u0e31\u0e34-\u0e39\u0e47][\u0e31\u0e34-\u0e39\u0e47]"  # two vowels on one letter
    "|[\u0e48-\u0e4c][\u0e31\u0e34-\u0e39\u0e47-\u0e4c]"  # a mark above a tone
    "|(?<![\u0e01-\u0e2e\u0e31\u0e32\u0e48-\u0e4c])[\u0e30\u0e32\u0e33]"
    "|[\u0e40-\u0e44](?![\u0e01-\u0e2e])"  # a leading vowel before no letter
    "|[A-Za-z][\u0e01-\u0e4e]|[\u0e01-\u0e4e][A-Za-z]|[\u0e50-\u0e59][\u0e01-\u0e4e]"
    "|(?<![\u0e01-\u0e4e])[\u0e2f\u0e46]"
    "|[\u0e03\u0e05\u0e3a\u0e3f\u0e4d-\u0e4f\u0e5a\u0e5b]"  # no longer written, or a sign
)


def line_ends(text: str) -> int:
    """The number of line ends in a text: line feed, carriage return or both."""
    returns = text.count("\r")
    return text.count("\n") + (returns - text.count("\r\n") if returns else 0)


class Octets(Struct):
    """Statistics of a file that may be UTF-8; fed with its pieces in order."""

    valid: int = 0  # octets of well-formed characters beyond ASCII
    invalid: int = 0
    first_invalid_line: int = 0
    first_valid_line: int = 0
    sample: bytearray = field(default_factory=bytearray)
    _line: int = 1
    _decoder: codecs.IncrementalDecoder = field(
        default_factory=lambda: codecs.getincrementaldecoder("utf-8")("surrogateescape")
    )

    def feed(self, piece: bytes, *, final: bool = False) -> None:
        text = self._decoder.decode(piece, final)
        if not text.isascii():
            self._count(text, piece)
        self._line += line_ends(text)

    def _count(self, text: str, piece: bytes) -> None:
        if self.invalid or INVALID.search(text):
            found = [match.start() for match in INVALID.finditer(text)]
            if found and not self.invalid:
                self.first_invalid_line = self._line + line_ends(text[: found[0]])
            self.invalid += len(found)
        if (first := HIGH.search(text)) is not None:
            self.valid += len(text.encode("utf-8", "ignore")) - sum(map(len, _ASCII.findall(text)))
            self.first_valid_line = self.first_valid_line or (
                self._line + line_ends(text[: first.start()])
            )
        room = min(SAMPLE_PIECE_OCTETS, SAMPLE_OCTETS_MAX - len(self.sample))
        for line in _high_lines(piece):
            if room <= 0:
                break
            self.sample += line[:room] + b"\n"
            room -= len(line) + 1

    @property
    def is_utf8(self) -> bool:
        return not self.invalid

    @property
    def is_nearly_utf8(self) -> bool:
        """Whether most of the text beyond ASCII is valid: by accident hardly a fifth is.

        Of a few Thai names in cp874 more may be: two letters in a row may be one in UTF-8.
        """
        if not self.valid > self.invalid > 0:
            return False
        sample = bytes(self.sample)
        in_utf8 = 3 * (sample.count(b"\xe0\xb8") + sample.count(b"\xe0\xb9"))  # Thai letters
        return 2 * in_utf8 >= self.valid or not _is_thai(sample)


_ASCII = re.compile("[\x00-\x7f]+")


def _high_lines(piece: bytes) -> Iterator[bytes]:
    """The lines with an octet beyond ASCII. Each octet is looked at a few times at most."""
    begin = 0
    while (high := HIGH_OCTET.search(piece, begin)) is not None:
        first = max(piece.rfind(end, begin, high.start()) for end in (b"\r", b"\n"))
        end = LINE_END.search(piece, high.end())
        assert end is not None
        yield piece[begin if first < 0 else first + 1 : end.start()]
        begin = end.end()


def guess(octets: Octets) -> str | None:
    """The encoding of a file that is not UTF-8; None if it cannot be detected."""
    sample = bytes(octets.sample)
    if _is_thai(sample):
        return "cp874"
    from charset_normalizer import from_bytes

    plausible = {
        found.encoding: found.chaos
        for found in from_bytes(sample, cp_isolation=list(CANDIDATES), enable_fallback=False)
        if found.chaos <= CHAOS_MAX
    }
    country = _by_country(sample)
    if country in plausible and plausible[country] <= min(plausible.values()):
        return country
    if _is_western(sample):
        return "cp1252"
    plausible.pop("cp1252", None)
    best = min(plausible.values(), default=None)
    return next((name for name, chaos in plausible.items() if chaos == best), None)


def _by_country(sample: bytes) -> str | None:
    """The encoding that most countries in the sample's addresses suggest."""
    votes: dict[str, int] = {}
    total = 0
    for country in COUNTRY.findall(sample):
        total += 1
        if (name := BY_COUNTRY.get(country.lower())) is not None:
            votes[name] = votes.get(name, 0) + 1
    name = max(votes, key=votes.__getitem__, default="")
    return name if name and 2 * votes[name] > total else None


def _is_thai(sample: bytes) -> bool:
    """Whether letters, vowels and tones stand where Thai has them; a name is enough."""
    try:
        text = sample.decode("cp874")
    except UnicodeDecodeError:
        return False
    letters = len(THAI.findall(text))
    if not letters or not {c for c in text if not c.isascii() and not THAI.match(c)} <= THAI_MARKS:
        return False
    if 100 * len(NOT_THAI.findall(text)) > letters:
        return False
    if _by_country(sample) == "cp874":
        return True
    vowels, rare = len(THAI_VOWELS.findall(text)), len(THAI_RARE.findall(text))
    return 100 * vowels >= 15 * letters and 100 * rare <= 3 * letters


def _is_western(sample: bytes) -> bool:
    """Whether letters and their neighbours look like Western European text."""
    try:
        text = sample.decode("cp1252")
    except UnicodeDecodeError:
        return False
    high = {c for c in text if not c.isascii()}
    if not high <= WESTERN_LETTERS | WESTERN_MARKS:
        return False
    if CAPITAL_INSIDE.search(text) or SIGN_IN_WORD.search(text):
        return False
    words = [word for word in WORD.findall(text) if not word.isascii()]
    accents = [sum(not c.isascii() for c in word) for word in words]
    # Words of another script are accents throughout; ours have one, rarely two or three.
    strange = sum(2 * count > len(word) for word, count in zip(words, accents, strict=True))
    return 4 * strange <= len(words)
