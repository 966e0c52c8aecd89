"""Reply -> Meaning, by the rules in data/replies.toml.

The first rule that matches wins, and their order is fixed: words about us,
greylisting and rate, quota, disabled, relaying, no such mailbox, then the enhanced
code (RFC 3463), then the bare code. Two things stand above the order: a positive
reply accepts, and only a reply to RCPT speaks of a mailbox. Whatever a rule says, only
a code of CONDEMNING lets it say that a mailbox does not exist.

Rules read words, and names are no words: addresses, host names and links are
taken out before a pattern sees the text, or `<spam.block@shop.test>: user unknown`
would be read by its address. What the words are and who is spoken of: wording.py.

The work is bounded. A pattern begins at a word, so an index by first letters says which
rules are tried at which word, and at most TRIES_MAX are; what has more is not understood.
A pattern repeats nothing without a bound, and so one try costs microseconds.
Pure: no clock, no network.

To compile all patterns takes as long as a look-up in DNS, and a reply that accepts
needs none of them. So the table is read and each pattern compiled when it is first
needed, and whoever has a moment before that (the first question is under way) goes
through compile_rest().
"""

import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from pathlib import Path
from typing import Any

from mailprobe.engine.smtp.replies.prefilter import first_letters
from mailprobe.engine.smtp.replies.text import TEXT_MAX, Lexicon, Names, Subjects, fold, joined
from mailprobe.engine.smtp.wire import SmtpReply

TRIES_MAX = 500  # of rules at words: of 900 real replies none needs more than 110
READINGS_MAX = 1024  # kept: hosts repeat themselves, and what they vary is mostly names
RULES = Path(__file__).parents[2] / "data" / "replies.toml"


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
class ReplyMeaning:
    """What a reply was read as, and by which rule."""

    meaning: Meaning
    rule: str
    about_us: bool = False  # speaks of our address, name or standing: the host wants rest


# "No such mailbox" needs one of these codes (RFC 5321 4.2.3); a 4xx condemns no address anyway.
CONDEMNING = ("4", "550", "551", "552", "553", "554", "555", "556")
CONDEMNS = frozenset({Meaning.NO_MAILBOX, Meaning.DISABLED})

# These say it themselves, whatever the words (RFC 3463 3.2, 3.3).
STATES_IT = frozenset({"5.1.1", "5.1.6", "5.1.10", "5.2.1", "4.1.1"})

ACCEPTED = ReplyMeaning(Meaning.ACCEPTED, "accepted")
NOT_UNDERSTOOD = ReplyMeaning(Meaning.UNKNOWN, "not-understood")


class Pattern:
    """A regular expression that is compiled when it is first used."""

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern

    @cached_property
    def _compiled(self) -> re.Pattern[str]:
        return re.compile(self.pattern)

    @cached_property
    def first_letters(self) -> frozenset[str]:
        return first_letters(self.pattern)

    @cached_property  # once found, as fast as the compiled one's own
    def match(self) -> Callable[[str, int], re.Match[str] | None]:
        return self._compiled.match

    @cached_property
    def search(self) -> Callable[[str], re.Match[str] | None]:
        return self._compiled.search

    @cached_property
    def fullmatch(self) -> Callable[[str], re.Match[str] | None]:
        return self._compiled.fullmatch

    def compile(self) -> bool:
        """Compile it now; False where it was already. Raises re.error for one that is wrong."""
        return "_compiled" not in vars(self) and bool(self._compiled)


@dataclass(frozen=True, slots=True)
class ReplyContext:
    """What a reply came with, besides its words."""

    step: Step
    code: str
    enhanced: str
    links: str
    operator: str | None


@dataclass(frozen=True, slots=True)
class Rule:
    """One row of the table: everything that is given must match, of the words one pattern."""

    reading: ReplyMeaning
    steps: frozenset[Step]
    codes: tuple[str, ...]  # beginnings: "5", "55", "550"; none: any
    enhanced: Pattern | None
    text: Pattern | None  # of the words
    subject: Pattern | None  # of the words with their subjects marked
    also: Pattern | None  # must be among the words too
    unless: Pattern | None  # must not be
    link: Pattern | None
    operator: str | None
    source: str
    examples: tuple[str, ...]

    @property
    def wordless(self) -> bool:
        return self.text is None and self.subject is None

    def patterns(self) -> Iterator[Pattern]:
        for pattern in (self.enhanced, self.text, self.subject, self.also, self.unless, self.link):
            if pattern is not None:
                yield pattern

    def fits(self, asked: ReplyContext) -> bool:
        """Could it claim this reply, as far as words do not tell?"""
        return (
            asked.step in self.steps
            and (not self.codes or asked.code.startswith(self.codes))
            and (self.operator is None or self.operator == asked.operator)
            and (self.enhanced is None or self.enhanced.fullmatch(asked.enhanced) is not None)
            and (self.link is None or self.link.search(asked.links) is not None)
        )

    def allows(self, words: str) -> bool:
        """Of a reply with a pattern that matches: is the rest as it must be?"""
        return (self.also is None or self.also.search(words) is not None) and (
            self.unless is None or self.unless.search(words) is None
        )


class Index:
    """Which rules are worth a try at a word: by the letters that their patterns begin with."""

    def __init__(self, patterns: Iterable[Pattern | None]) -> None:
        found: dict[str, list[tuple[int, Pattern]]] = {}
        for number, pattern in enumerate(patterns):
            if pattern is not None:
                for head in pattern.first_letters:
                    found.setdefault(head, []).append((number, pattern))
        self.by_head = {head: tuple(rules) for head, rules in found.items()}
        self.lengths = sorted({len(head) for head in found})


class Rules:
    """The rules in their order, with the latest readings kept.

    They are taken from `table` when they are first needed.
    """

    def __init__(self, table: "RuleTable") -> None:
        self._table = table
        self._kept: dict[tuple[Step, int, str, str, str, str | None], ReplyMeaning] = {}

    @property
    def rules(self) -> tuple[Rule, ...]:
        return self._table.rules

    def forgetful(self) -> "Rules":
        """The same rules, nothing kept."""
        return Rules(self._table)

    @cached_property
    def _links(self) -> Pattern | None:
        links = "|".join(rule.link.pattern for rule in self.rules if rule.link)
        return Pattern(links) if links else None

    def compile_remaining(self) -> Iterator[None]:
        """Compile what was not needed yet, a pattern a step: each takes 10 ms at most.

        Raises re.error for a pattern that is wrong.
        """
        for rule in self.rules:
            for pattern in rule.patterns():
                if pattern.compile():
                    yield

    def compile_all(self) -> None:
        """Compile all that was not needed yet, at once. Raises re.error as well."""
        for _ in self.compile_remaining():
            pass

    def read(self, step: Step, reply: SmtpReply, site: str | None = None) -> ReplyMeaning:
        """Say what the reply to this step means; never fails, whatever the text.

        A positive reply is ACCEPTED, whatever its words. A 4xx is read like a 5xx:
        that it condemns no address is for the caller to know.
        """
        if reply.positive:
            return ACCEPTED
        if not 400 <= reply.code < 600:
            return NOT_UNDERSTOOD
        names = Names()
        text = names.remove_from(" ".join(reply.lines)[:TEXT_MAX])
        links = " ".join(names.links).lower()
        if self._links is None or not self._links.search(links):
            links = ""  # nothing that a rule would know
        key = (step, reply.code, names.enhanced, text, links, site)
        reading = self._kept.get(key)
        if reading is None:
            asked = ReplyContext(step, str(reply.code), names.enhanced, links, site)
            reading = self._search(asked, text)
            if len(self._kept) >= READINGS_MAX:
                self._kept.clear()
            self._kept[key] = reading
        return reading

    def _search(self, asked: ReplyContext, text: str) -> ReplyMeaning:
        words = fold(text, self._table.lexicon)
        search = Search(self.rules, asked, joined(words), self._table.doubt)
        spoken = self._table.subjects.mark_subjects(words)
        try:
            search.by_words(search.words, self._table.text_index)
            search.by_words(spoken, self._table.subject_index)
        except TooManyTriesError:
            return NOT_UNDERSTOOD
        search.by_other_rules(self._table.wordless)
        return search.reading


class TooManyTriesError(Exception):
    """The words of a reply call for more work than it is worth."""


class Search:
    """Which rule is the first to claim a reply."""

    def __init__(
        self, rules: tuple[Rule, ...], asked: ReplyContext, words: str, doubt: Pattern | None
    ) -> None:
        self.words = words
        self._doubt = doubt
        self.tries = 0
        self._rules = rules
        self._context = asked
        self._first = len(rules)  # the first rule that claims it, so far
        self._fits: dict[int, bool] = {}

    @property
    def reading(self) -> ReplyMeaning:
        return (
            self._rules[self._first].reading if self._first < len(self._rules) else NOT_UNDERSTOOD
        )

    def by_words(self, text: str, index: "Index") -> None:
        """Try at each word the rules with a pattern that can begin there.

        Raises TooManyTriesError.
        """
        fits, by_head = self._fits, index.by_head
        at = 0
        while True:
            for length in index.lengths:
                for number, pattern in by_head.get(text[at : at + length], ()):
                    if number >= self._first:
                        break
                    if number not in fits:
                        fits[number] = self._rules[number].fits(self._context)
                    if not fits[number]:
                        continue
                    self.tries += 1
                    if self.tries > TRIES_MAX:
                        raise TooManyTriesError
                    if pattern.match(text, at) is not None:
                        self._claimed(number)
            at = text.find(" ", at) + 1
            if not at:
                return

    def by_other_rules(self, numbers: Iterable[int]) -> None:
        """Those that ask for no words."""
        for number in numbers:
            if number < self._first and self._rules[number].fits(self._context):
                self._claimed(number)

    def _claimed(self, number: int) -> None:
        rule = self._rules[number]
        if rule.allows(self.words) and not self._is_doubtful(rule):
            self._first = number
        else:
            self._fits[number] = False

    def _is_doubtful(self, rule: Rule) -> bool:
        """Would it condemn by words alone, and is there one that speaks of something else?"""
        return (
            self._doubt is not None
            and rule.reading.meaning in CONDEMNS
            and self._context.enhanced not in STATES_IT
            and self._doubt.search(self.words) is not None
        )


class RuleTable:
    """The rules of a TOML text and what is derived from them, read when it is first needed."""

    def __init__(self, toml: Callable[[], str]) -> None:
        self._toml = toml

    @cached_property
    def _data(self) -> dict[str, Any]:
        return tomllib.loads(self._toml())

    @cached_property
    def rules(self) -> tuple[Rule, ...]:
        words = self._data.get("words", {})
        return tuple(_rule(row, words) for row in self._data["rule"])

    @cached_property
    def lexicon(self) -> Lexicon:
        return Lexicon.of(self._data.get("lexicon", {}))

    @cached_property
    def subjects(self) -> Subjects:
        return Subjects.of(self._data.get("subjects", {}))

    @cached_property
    def doubt(self) -> Pattern | None:
        words = self._data.get("doubt", {}).get("words")
        return Pattern(rf"\b(?:{words})(?!\w)") if words else None

    @cached_property
    def text_index(self) -> Index:
        return Index(rule.text for rule in self.rules)

    @cached_property
    def subject_index(self) -> Index:
        return Index(rule.subject for rule in self.rules)

    @cached_property
    def wordless(self) -> tuple[int, ...]:
        return tuple(number for number, rule in enumerate(self.rules) if rule.wordless)


def parse_rules(toml: str) -> Rules:
    """Rules from a TOML text; raises KeyError, ValueError or re.error for one that is wrong."""
    rules = Rules(RuleTable(lambda: toml))
    rules.compile_all()
    return rules


def load_rules() -> Rules:
    """The rules that come with the engine: nothing of them is read before it is needed."""
    return Rules(RuleTable(lambda: RULES.read_text("utf-8")))


KEYS = frozenset(
    {"id", "step", "code", "enhanced", "text", "subject", "with", "unless", "link", "site"}
    | {"meaning", "about_us", "source", "examples"}
)


def _rule(row: Mapping[str, Any], words: Mapping[str, str]) -> Rule:
    if strange := row.keys() - KEYS:
        raise ValueError(f"rule {row['id']}: no such keys: {', '.join(sorted(strange))}")
    meaning = Meaning(row["meaning"])
    steps = frozenset(Step(step) for step in _several(row.get("step", [])))
    codes = tuple(_several(row.get("code", [])))
    if meaning in CONDEMNS:
        codes = codes or CONDEMNING
        if strange_codes := set(codes) - set(CONDEMNING):
            raise ValueError(f"rule {row['id']}: {meaning.value} by {', '.join(strange_codes)}")
    return Rule(
        reading=ReplyMeaning(meaning, row["id"], row.get("about_us", False)),
        steps=frozenset({Step.RCPT}) if meaning in OF_A_RECIPIENT else steps or frozenset(Step),
        codes=codes,
        enhanced=_pattern(row.get("enhanced"), {}),
        text=_pattern(row.get("text"), words),
        subject=_pattern(row.get("subject"), words),
        also=_pattern(row.get("with"), words),
        unless=_pattern(row.get("unless"), words),
        link=_pattern(row.get("link"), {}),
        operator=row.get("site"),
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
