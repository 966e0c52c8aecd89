"""Extracts the words of a reply, in the two forms that the rules read.

`fold` returns the words: lower case, no accents, no punctuation but full stops, `@` for
an address, `%` for a host, and words of other languages translated to English (the
lexicon). `mark_subjects` marks the subjects: a phrase that names the recipient's mailbox
becomes MAILBOX, a phrase that names the sender, the client or a part of the host
becomes ANOTHER, and auxiliary verbs are left out. `The user's account does not exist` is
`¤ not exist`, `sender address does not exist` is `‡ not exist`. So a rule that asks for
MAILBOX has the recipient as its subject, whatever its verb.

The work is linear in the text, and the text is bounded first: at most WORDS_MAX words
and TEXT_MAX characters are read. Pure: no clock, no network.
"""

import re
import unicodedata
from collections.abc import Iterable, Mapping

from msgspec import Struct, field

TEXT_MAX = 1200  # characters read; the longest real reply has about 900
WORDS_MAX = 60  # words read; a reply says what it means in the first ones
WORD_MAX = 80  # characters of a word that is searched for names; a longer word counts as a name
STEM_MIN, STEM_MAX = 4, 20  # characters of a stem in the lexicon
FAR_EAST_MAX = 300  # characters: WORDS_MAX words of two to five each
MAILBOX, ANOTHER = "¤", "‡"
BREAK = ","  # where a clause ends: `rejected: user unknown`
OF = frozenset({"of", "for"})
TOWARDS = OF | {"to"}
YOU_BEFORE = 6  # words in which `you` makes the mailbox behind `to` the recipient's
POSSESSIVES = frozenset({"your", "our", "from"})  # belong to the next phrase
OBSCURE = "·"  # replaces text that the lexicon does not know, in scripts without spaces

_NAME = re.compile(
    r"""(?P<link> (?:https?|ftp)://[^\s<>"]+ | \bwww\.[^\s<>"]+ )
    | (?P<address>
        <[^<>]*>
      | (?<![\w.*+-])[^<>()\[\]:;,"'=|@]{1,64}@[\w.*-]* )
    | (?P<code> (?<![\w.])[245]\.\d{1,3}\.\d{1,3}(?!\.?\w) )
    | (?P<host>
        (?<![\w.-]) (?:[A-Za-z0-9_*-]{1,63}\.){1,12}
        (?!(?:please|see|for|try|the|your|this|contact|visit|if|check|we|you)\b)
        (?:[a-z]{2,24}|[A-Z]{2,24}|\d{1,3}|xn--[\w-]+)(?![\w-])
      | \[(?:ipv6:)?[0-9A-Fa-f]{0,4}(?::[0-9A-Fa-f.]{0,15}){2,8}\] )""",
    re.VERBOSE,
)
_MARKED = re.compile(r"[@./:<\[]")  # a word without any of these contains no name
_IP_AFTER = re.compile(
    r"\baddress(?= [\[(<]?(?:(?:\d{1,3}\.){3}\d|(?:[0-9a-f]{0,4}:){2}))", re.IGNORECASE
)
QUOTED_ADDRESS = re.compile(r'<?"[^"]{1,64}"@[\w.*-]+>?')
# Sendmail names the user so: `spam... User unknown`.
_DOTTED = re.compile(r"^(?:[245]\.\d{1,3}\.\d{1,3} )?[^\s<>@]{1,64}\.\.\.(?= )")
_TICKET = re.compile(r"(?=[\w-]*\d)[\w-]{12,}")  # a queue id: unique, so it would defeat the cache


class Names(Struct):
    """The enhanced code, links and host names that were removed from a reply's text."""

    enhanced: str = ""  # the first enhanced code anywhere in the text
    links: list[str] = field(default_factory=list)  # links and host names

    def remove_from(self, text: str) -> str:
        """Return the text without names: `@` stands for an address, `%` for a host."""
        if "..." in text:
            text = _DOTTED.sub(self._dotted, text)
        text = _IP_AFTER.sub("IP address", text)
        if '"' in text:
            text = QUOTED_ADDRESS.sub(" @ ", text)
        words = text.split(None, WORDS_MAX)[:WORDS_MAX]
        return " ".join(
            [word if word.isalpha() else self._remove_from_word(word) for word in words]
        )

    def _remove_from_word(self, word: str) -> str:
        if len(word) > WORD_MAX and word.isascii():
            return self._remove_long(word)
        if _MARKED.search(word):
            return _NAME.sub(self._replaced, word)
        return "" if _TICKET.fullmatch(word) else word

    def _remove_long(self, word: str) -> str:
        """Replace a long ASCII word: it is a link, an address or meaningless."""
        if "://" in word:
            self.links.append(word)
            return ""
        return "@" if "@" in word else ""

    def _dotted(self, found: re.Match[str]) -> str:
        return found[0].rpartition(" ")[0] + " @ "

    def _replaced(self, found: re.Match[str]) -> str:
        kind, name = found.lastgroup, found[0]
        if kind == "code":
            self.enhanced = self.enhanced or name
            return " "
        if kind == "address" and "://" not in name:
            return " @ "
        self.links.append(name)
        return " % " if kind == "host" else " "


# ------------------------------------------------ letters


def _without_accents() -> dict[int, str | None]:
    """Map Latin and Greek letters to plain ones. In other scripts an accent may change the letter."""
    latin = [*range(0x80, 0x250), *range(0x1E00, 0x1F00)]
    bare: dict[int, str | None] = {c: unicodedata.normalize("NFKD", chr(c))[0] for c in latin}
    bare |= {ord(c): plain for c, plain in zip("ßæœøłđðþıØŁĐÆŒ", _PLAIN, strict=True)}
    bare |= {c: unicodedata.normalize("NFKD", chr(c))[0] for c in range(0x388, 0x3CF)}  # Greek
    bare |= {0x386: "\u0391", 0x387: " "}
    bare |= {0x401: "\u0415", 0x451: "\u0435"}  # Cyrillic io, which most write as ie
    bare |= dict.fromkeys(range(0x300, 0x370))  # combining accents
    bare |= dict.fromkeys([0xAD, *range(0x200B, 0x2010), 0x2060, 0xFEFF])  # zero width
    bare |= {0xFF01 + n: chr(0x21 + n) for n in range(94)}  # full-width ASCII
    return bare | {0x3000: " ", 0x3001: " ", 0x3002: ".", 0xA4: " ", 0xB7: " ", 0x2021: " "}


_PLAIN = ["ss", "ae", "oe", "o", "l", "d", "d", "th", "i", "O", "L", "D", "AE", "OE"]
_BARE = _without_accents()
_FAR_EAST = re.compile("[\u0e00-\u0e7f\u3040-\u30ff\u4e00-\u9fff\uac00-\ud7a3]")
_FAR_EAST_RUN = re.compile(f"{_FAR_EAST.pattern}+")
_E_MAIL = re.compile(r"\be (?=mail)")
_CLAUSE_END = re.compile(r"[:,] | [-–—] ")
_MARKS = frozenset([".", "@", "%", BREAK])
_ELISION = re.compile(r"\b(?:[cdjlms]|qu|un|all|dell|nell|sull)'(?=\w)")  # l'adresse, dell'utente
_PUNCTUATION = str.maketrans(
    dict.fromkeys('"#$&()*+,-/:<=>[\\]^_{|}~\u2013\u2014\u201c\u201d\u00ab\u00bb', " ")
    | dict.fromkeys("!?;", ".")
    | dict.fromkeys("`\u2018\u2019\u00b4", "'")
)


class Lexicon(Struct, frozen=True):
    """Translates words of other languages to English."""

    words: Mapping[str, str]
    stems: Mapping[str, str]  # beginnings of words
    phrases: re.Pattern[str] | None  # for scripts without spaces between words
    of_phrase: Mapping[str, str]
    # Of several words: by the first one its further words and the translation, longest first.
    spaced: Mapping[str, tuple[tuple[list[str], str], ...]]

    @classmethod
    def of(cls, table: Mapping[str, str]) -> "Lexicon":
        """Build from English -> others, separated by spaces; `*` ends a stem, `_` is a space."""
        words: dict[str, str] = {}
        stems: dict[str, str] = {}
        phrases: dict[str, str] = {}
        spaced: dict[str, list[tuple[list[str], str]]] = {}
        for english, others in table.items():
            for other in others.split():
                if _FAR_EAST.search(other):
                    phrases[other.replace("_", " ")] = english
                elif "_" in other:
                    first, *further = other.split("_")
                    spaced.setdefault(first, []).append((further, english))
                elif other.endswith("*"):
                    stems[other[:-1]] = english
                else:
                    words[other] = english
        longest_first = sorted(phrases, key=len, reverse=True)
        pattern = re.compile("|".join(map(re.escape, longest_first)))
        for several in spaced.values():
            several.sort(key=lambda phrase: -len(phrase[0]))
        by_first = {first: tuple(several) for first, several in spaced.items()}
        return cls(words, stems, pattern if phrases else None, phrases, by_first)

    def english(self, word: str) -> str:
        known = self.words.get(word)
        if known is not None:
            return known
        for length in range(min(len(word), STEM_MAX), STEM_MIN - 1, -1):
            known = self.stems.get(word[:length])
            if known is not None:
                return known
        return word

    def phrase_at(self, words: list[str], at: int) -> tuple[str, int] | None:
        """Return the translation of the longest phrase that begins here, and its words' count."""
        for further, english in self.spaced.get(words[at], ()):
            if words[at + 1 : at + 1 + len(further)] == further:
                return english, 1 + len(further)
        return None

    def part(self, text: str) -> str:
        """Translate Chinese, Japanese, Korean or Thai text to English words, unknown text to OBSCURE."""
        if self.phrases is None or not _FAR_EAST.search(text):
            return text
        text = self.phrases.sub(self._phrase, text[:FAR_EAST_MAX])
        return _FAR_EAST_RUN.sub(lambda run: " " if len(run[0]) == 1 else f" {OBSCURE} ", text)

    def _phrase(self, found: re.Match[str]) -> str:
        return f" {self.of_phrase[found[0]]} "


NO_LEXICON = Lexicon({}, {}, None, {}, {})


def fold(text: str, lexicon: Lexicon = NO_LEXICON) -> list[str]:
    """Split into words: `n't` becomes `not`, full stops and BREAKs are words of their own."""
    if not text.isascii():
        text = lexicon.part(text.translate(_BARE))
    text = _CLAUSE_END.sub(" \uffff ", text.lower()).translate(_PUNCTUATION)
    text = text.replace("\uffff", BREAK).replace("n't", " not")
    if "'" in text:
        text = _ELISION.sub(" ", text).replace("'", "")
    words: list[str] = []
    count = 0
    last = "."  # drops a full stop at the beginning
    given = _E_MAIL.sub("e", text.replace(".", " . ")).split()
    at = 0
    while at < len(given) and count < WORDS_MAX:
        word, at = given[at], at + 1
        if word in _MARKS and (word == last or (word in "@%" and last in "@%")):
            continue
        last = word
        if word in lexicon.spaced and (phrase := lexicon.phrase_at(given, at - 1)) is not None:
            english, at = phrase[0].split(), at - 1 + phrase[1]
        else:
            english = lexicon.english(word).split()
        words += english
        count += len(english) if word not in _MARKS else word in "@%"
    return words


def joined(words: list[str]) -> str:
    return " ".join([word for word in words if word != BREAK]).replace(" .", ".")


# ------------------------------------------------ subjects

SENDER_WORDS = frozenset({"send", "sending", "sent", "use", "using"})
FROM = frozenset({"from", "as"})


def _is_sent_from(clause: list[str], behind: list[str]) -> bool:
    """Is it the sender: `you are sending from`, `sent as`, or `account de envío`?"""
    sending = False
    for word in clause + behind:
        if sending and word in FROM:
            return True
        sending = sending or word in SENDER_WORDS
    return bool(clause) and clause[-1] == "sending"


class Subjects(Struct, frozen=True):
    """Words by their role in a phrase that names a mailbox or its owner."""

    mailbox: frozenset[str]  # names a mailbox
    recipient: frozenset[str]  # names the recipient, even beside a word of `others`
    about: frozenset[str]  # adjectives that change nothing: `local user`
    stores: frozenset[str]  # before a noun: no mailbox: `database user`, `spam email`
    others: frozenset[str]  # the sender, the client, the host: their mailbox is not the recipient's
    machinery: frozenset[str]  # after a noun: a part of the host: `user database`
    auxiliary: frozenset[str]  # left out
    clause: frozenset[str]  # after a noun only: `that you tried to reach`

    @classmethod
    def of(cls, table: Mapping[str, str]) -> "Subjects":
        return cls(
            **{name: frozenset(table.get(name, "").split()) for name in cls.__struct_fields__}
        )

    def mark_subjects(self, words: list[str]) -> str:
        """Return the text with its subjects marked."""
        spoken: list[str] = []
        owner_follows = False  # of a phrase that is another's: `forwarding address of`
        at = 0
        while at < len(words):
            if words[at] in self.auxiliary or words[at] == BREAK:
                at += 1
                continue
            noun, end = self._phrase(words, at)
            if noun > at:
                start, mark = at, self._mark(words[at:noun])
                at, owned = self._after(words, noun)
                owned = owned or self._is_of_another(spoken) or self._keeps(words, start)
                spoken.append(ANOTHER if owned or owner_follows else mark)
                owner_follows = spoken[-1] == ANOTHER and not OF.isdisjoint(words[noun:at])
            else:
                spoken += words[at:end]
                at = end
                owner_follows = False
        return " ".join(spoken)

    def _phrase(self, words: list[str], at: int) -> tuple[int, int]:
        """Return the place after the phrase's last noun (`at` if none), and the phrase's end."""
        noun = place = at
        while place < len(words):
            word = words[place]
            if word in self.mailbox or word == "@":
                noun = place + 1
            elif word not in self.about and (noun > at or word not in self.others):
                break
            place += 1
        return noun, max(place, at + 1)

    def _mark(self, phrase: Iterable[str]) -> str:
        seen = frozenset(phrase)
        return ANOTHER if seen & self.others and not seen & self.recipient else MAILBOX

    def _is_of_another(self, spoken: list[str]) -> bool:
        """Does the text before a phrase end in `the server of`, `folder for`, `spam to`?

        Then the phrase is no subject, unless what is the phrase's is a mailbox itself, or
        `you` wrote to it.
        """
        is_behind = len(spoken) > 1 and spoken[-1] in TOWARDS and spoken[-2] != MAILBOX
        return is_behind and (spoken[-1] in OF or "you" not in spoken[-YOU_BEFORE:])

    def _keeps(self, words: list[str], start: int) -> bool:
        """Is the phrase that begins here `directory users`, `database user`?"""
        return start > 0 and words[start - 1] in self.stores

    def _after(self, words: list[str], at: int) -> tuple[int, bool]:
        """Return the place after a phrase's clauses, and whether it belongs to another."""
        if at < len(words) and words[at] in self.machinery:
            return at + 1, True
        begin = at
        while at < len(words) and (words[at] in self.clause or words[at] in self.auxiliary):
            at += 1
        if _is_sent_from(words[begin:at], words[at : at + 1]):
            return at, True
        if at == len(words) or words[at] not in self.others or words[at] in POSSESSIVES:
            return at, False
        return at, words[at - 1] != "or" and words[at - 1 : at + 1] != ["in", "reply"]
