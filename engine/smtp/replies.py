"""Reply -> Meaning, by the rules in data/replies.toml.

The first rule that matches wins, and their order is fixed: words about us,
greylisting and rate, quota, disabled, relaying, no such mailbox, then the enhanced
code (RFC 3463), then the bare code. Two things stand above the order: a positive
reply accepts, and only a reply to RCPT speaks of a mailbox.

Rules read words, and names are no words: addresses, host names and links are
taken out before a pattern sees the text, or `<spam.block@shop.test>: user unknown`
would be read by its address. Pure: no clock, no network.

To compile all patterns takes as long as a look-up in DNS, and a reply that accepts
needs none of them. So the table is read and each pattern compiled when it is first
needed, and whoever has a moment before that (the first question is under way) goes
through compile_rest().
"""

import re
import tomllib
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from pathlib import Path
from typing import Any

from engine.smtp.wire import Reply

TEXT_MAX = 1200  # characters that are read: the longest real reply has about 900
READINGS_MAX = 1024  # kept: hosts repeat themselves, and what they vary is mostly names
RULES = Path(__file__).parents[1] / "data" / "replies.toml"
LATIN_END = "\u0250"  # in other scripts an accent may be half the letter: й is no и


class Step(Enum):
    """What was asked when the reply came."""

    BANNER = "banner"
    HELLO = "hello"
    STARTTLS = "starttls"
    MAIL = "mail"
    RCPT = "rcpt"


class Meaning(Enum):
    """What a reply says; only NO_MAILBOX and DISABLED of a 5xx make an address undeliverable."""

    ACCEPTED = "accepted"
    NO_MAILBOX = "no_mailbox"
    DISABLED = "disabled"
    MAILBOX_FULL = "mailbox_full"
    GREYLISTED = "greylisted"
    RATE_LIMITED = "rate_limited"
    TEMPORARY = "temporary"
    BLOCKED_POLICY = "blocked_policy"
    BAD_HELO_OR_RDNS = "bad_helo_or_rdns"
    RELAY_DENIED = "relay_denied"
    NEEDS_AUTH = "needs_auth"
    TLS_DEMANDED = "tls_demanded"  # the host wants STARTTLS before it goes on
    SENDER_REFUSED = "sender_refused"  # this envelope sender is refused: another one may pass
    SYNTAX = "syntax"
    ANOTHER_RECIPIENT = "another_recipient"  # objects to one more recipient here: ask it by itself
    UNKNOWN = "unknown"


# What a reply to anything but RCPT never says.
OF_A_RECIPIENT = frozenset(
    {Meaning.NO_MAILBOX, Meaning.DISABLED, Meaning.MAILBOX_FULL, Meaning.ANOTHER_RECIPIENT}
)


@dataclass(frozen=True, slots=True)
class Reading:
    """What a reply was read as, and by which rule."""

    meaning: Meaning
    rule: str
    about_us: bool = False  # speaks of our address, name or standing: the host wants rest


ACCEPTED = Reading(Meaning.ACCEPTED, "accepted")
NOT_UNDERSTOOD = Reading(Meaning.UNKNOWN, "not-understood")


class Pattern:
    """A regular expression that is compiled when it is first used."""

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern

    @cached_property
    def _compiled(self) -> re.Pattern[str]:
        return re.compile(self.pattern)

    @cached_property  # once found, as fast as the compiled one's own
    def search(self) -> Callable[[str], re.Match[str] | None]:
        return self._compiled.search

    @cached_property
    def fullmatch(self) -> Callable[[str], re.Match[str] | None]:
        return self._compiled.fullmatch

    def compile(self) -> bool:
        """Compile it now; False where it was already. Raises re.error for one that is wrong."""
        return "_compiled" not in vars(self) and bool(self._compiled)


@dataclass(frozen=True, slots=True)
class Rule:
    """One row of the table: everything that is given must match."""

    reading: Reading
    steps: frozenset[Step]
    codes: tuple[str, ...]  # beginnings: "5", "55", "550"; none: any
    enhanced: Pattern | None
    text: Pattern | None
    link: Pattern | None
    site: str | None
    source: str
    examples: tuple[str, ...]

    def claims(self, code: str, enhanced: str, words: str, links: str, site: str | None) -> bool:
        return (
            (not self.codes or code.startswith(self.codes))
            and (self.site is None or self.site == site)
            and (self.enhanced is None or self.enhanced.fullmatch(enhanced) is not None)
            and (self.text is None or self.text.search(words) is not None)
            and (self.link is None or self.link.search(links) is not None)
        )


class Rules:
    """The rules in their order, with the latest readings kept.

    They are taken from `rules` when they are first needed.
    """

    def __init__(self, rules: Iterable[Rule]) -> None:
        self._given = rules
        self._kept: dict[tuple[Step, int, str, str, str, str | None], Reading] = {}

    @cached_property
    def rules(self) -> tuple[Rule, ...]:
        return tuple(self._given)

    @cached_property
    def _by_step(self) -> dict[Step, tuple[Rule, ...]]:
        return {step: tuple(rule for rule in self.rules if step in rule.steps) for step in Step}

    @cached_property
    def _links(self) -> Pattern | None:
        links = "|".join(rule.link.pattern for rule in self.rules if rule.link)
        return Pattern(links) if links else None

    def compile_rest(self) -> Iterator[None]:
        """Compile what was not needed yet, a pattern a step: each takes 10 ms at most.

        Raises re.error for a pattern that is wrong.
        """
        for rule in self.rules:
            for pattern in (rule.enhanced, rule.text, rule.link):
                if pattern is not None and pattern.compile():
                    yield

    def compile_all(self) -> None:
        """Compile all that was not needed yet, at once. Raises re.error as well."""
        for _ in self.compile_rest():
            pass

    def read(self, step: Step, reply: Reply, site: str | None = None) -> Reading:
        """Say what the reply to this step means; never fails, whatever the text.

        A positive reply is ACCEPTED, whatever its words. A 4xx is read like a 5xx:
        that it condemns no address is for the caller to know.
        """
        if reply.positive:
            return ACCEPTED
        if not 400 <= reply.code < 600:
            return NOT_UNDERSTOOD
        names = Names()
        text = names.take_from(" ".join(reply.lines)[:TEXT_MAX])
        links = " ".join(names.links).lower()
        if self._links is None or not self._links.search(links):
            links = ""  # nothing that a rule would know
        key = (step, reply.code, names.enhanced, text, links, site)
        reading = self._kept.get(key)
        if reading is None:
            reading = self._search(step, str(reply.code), names.enhanced, fold(text), links, site)
            if len(self._kept) >= READINGS_MAX:
                self._kept.clear()
            self._kept[key] = reading
        return reading

    def _search(
        self, step: Step, code: str, enhanced: str, words: str, links: str, site: str | None
    ) -> Reading:
        for rule in self._by_step[step]:
            if rule.claims(code, enhanced, words, links, site):
                return rule.reading
        return NOT_UNDERSTOOD


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
_MARKED = re.compile(r"[@./:<\[]")  # a word without any of these holds no name
_QUOTED = re.compile(r'<?"[^"]{1,64}"@[\w.*-]+>?')
# Sendmail names the user so: `spam... User unknown`.
_DOTTED = re.compile(r"^(?:[245]\.\d{1,3}\.\d{1,3} )?[^\s<>@]{1,64}\.\.\.(?= )")
_TICKET = re.compile(r"(?=[\w-]*\d)[\w-]{12,}")  # a queue id: says nothing, never comes again


@dataclass(slots=True)
class Names:
    """The names that a reply holds, once they are taken out of its text."""

    enhanced: str = ""  # the first enhanced code, wherever it stands
    links: list[str] = field(default_factory=list)  # links and host names

    def take_from(self, text: str) -> str:
        """The text without them: `@` stands for an address, `%` for a host."""
        if "..." in text:
            text = _DOTTED.sub(self._dotted, text)
        if '"' in text:
            text = _QUOTED.sub(" @ ", text)
        return " ".join(
            [word if word.isalpha() else self._take_from_word(word) for word in text.split()]
        )

    def _take_from_word(self, word: str) -> str:
        if _MARKED.search(word):
            return _NAME.sub(self._replaced, word)
        return "" if _TICKET.fullmatch(word) else word

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


_E_MAIL = re.compile(r"\be mail")
_STOPS = re.compile(r" *\.[ .]*")
_NAMES_IN_A_ROW = re.compile(r"([@%])(?: [@%])+")
_PUNCTUATION = str.maketrans(
    dict.fromkeys('"#$&()*+,-/:<=>[\\]^_{|}~\u2013\u2014\u201c\u201d', " ")
    | dict.fromkeys("!?;", ".")
    | dict.fromkeys("`\u2018\u2019\u00b4", "'")
)


def fold(text: str) -> str:
    """Lower case, no accents, no punctuation but full stops, `not` for `n't`."""
    if not text.isascii():
        text = "".join([_bare(letter) if letter < LATIN_END else letter for letter in text])
    text = text.lower().translate(_PUNCTUATION).replace("n't", " not").replace("'", "")
    text = _E_MAIL.sub("email", " ".join(text.split()))
    return _NAMES_IN_A_ROW.sub(r"\1", _STOPS.sub(". ", text).strip())


def _bare(letter: str) -> str:
    return unicodedata.normalize("NFKD", letter)[0]


def parse_rules(toml: str) -> Rules:
    """Rules from a TOML text; raises KeyError, ValueError or re.error for one that is wrong."""
    rules = Rules(_parse(toml))
    rules.compile_all()
    return rules


def load_rules() -> Rules:
    """The rules that come with the engine: nothing of them is read before it is needed."""
    return Rules(Table(RULES))


@dataclass(frozen=True, slots=True)
class Table:
    """The rules of a file, read each time they are gone through."""

    path: Path

    def __iter__(self) -> Iterator[Rule]:
        return _parse(self.path.read_text("utf-8"))


def _parse(toml: str) -> Iterator[Rule]:
    table = tomllib.loads(toml)
    for row in table["rule"]:
        yield _rule(row, table.get("words", {}))


KEYS = frozenset(
    {"id", "step", "code", "enhanced", "text", "link", "site"}
    | {"meaning", "about_us", "source", "examples"}
)


def _rule(row: Mapping[str, Any], words: Mapping[str, str]) -> Rule:
    if strange := row.keys() - KEYS:
        raise ValueError(f"rule {row['id']}: no such keys: {', '.join(sorted(strange))}")
    meaning = Meaning(row["meaning"])
    steps = frozenset(Step(step) for step in _several(row.get("step", [])))
    return Rule(
        reading=Reading(meaning, row["id"], row.get("about_us", False)),
        steps=frozenset({Step.RCPT}) if meaning in OF_A_RECIPIENT else steps or frozenset(Step),
        codes=tuple(_several(row.get("code", []))),
        enhanced=_pattern(row.get("enhanced"), {}),
        text=_pattern(row.get("text"), words),
        link=_pattern(row.get("link"), {}),
        site=row.get("site"),
        source=row["source"],
        examples=tuple(row["examples"]),
    )


def _several(value: str | list[str]) -> list[str]:
    return [value] if isinstance(value, str) else value


def _pattern(value: str | list[str] | None, words: Mapping[str, str]) -> Pattern | None:
    """One pattern of all alternatives; `{name}` stands for one of the table of words."""
    if value is None:
        return None
    pattern = "|".join(_several(value))
    for name, alternatives in words.items():
        pattern = pattern.replace(f"{{{name}}}", f"(?:{alternatives})")
    return Pattern(pattern)
