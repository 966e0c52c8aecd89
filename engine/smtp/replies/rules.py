"""Maps an SMTP reply to its meaning, by the rules in data/replies.toml.

The first rule that matches wins, and their order is fixed: words about our client,
greylisting and rate, quota, disabled, relaying, no such mailbox, then the enhanced
code (RFC 3463), then the bare code. Two rules precede this order: a positive reply
always accepts, and only a reply to RCPT can describe a mailbox. A rule can say that a
mailbox does not exist only for the codes in CONDEMNING; for other codes only if an
enhanced code of STATES_IT_WITH_WORDS says so as well as the words (dev/judging.md).

Addresses, host names and links are removed before a pattern is matched. Otherwise the
address in `<spam.block@shop.test>: user unknown` would match a rule about spam. text.py
extracts the words and marks their subjects.

The work is bounded. A pattern begins at a word, so an index by first letters selects
the rules to try at each word. A reply that needs more than TRIES_MAX tries is not
understood. Every repetition in a pattern is bounded, so one try costs microseconds.
Pure: no clock, no network.

Compiling all patterns takes as long as a DNS look-up, and a positive reply needs none
of them. So the table is read and each pattern compiled on first use. A caller that has
time before that, while its first command is unanswered, runs compile_remaining().
"""

import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from msgspec import Struct

from ..wire import SmtpReply
from .nested import QuotedReply, quoted_reply
from .prefilter import first_letters
from .text import TEXT_MAX, Lexicon, Names, Subjects, fold, joined

TRIES_MAX = 500  # of rules at words; none of 3,300 collected replies needs more than 166
READINGS_MAX = 1024  # cached: a host repeats its replies, and mostly only the names in them vary
RULES = Path(__file__).parents[2] / "data" / "replies.toml"


class Step(Enum):
    """The command that the reply answers."""

    BANNER = "banner"
    HELLO = "hello"
    STARTTLS = "starttls"
    MAIL = "mail"
    RCPT = "rcpt"


class Meaning(Enum):
    """What a reply says. Only NO_MAILBOX or DISABLED with a 5xx makes an address undeliverable."""

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
    TLS_DEMANDED = "tls_demanded"  # the host requires STARTTLS first
    SENDER_REFUSED = "sender_refused"  # another envelope sender may be accepted
    SYNTAX = "syntax"
    ANOTHER_RECIPIENT = "another_recipient"  # this transaction is full: probe it by itself
    UNKNOWN = "unknown"


# Meanings that only a reply to RCPT can have.
OF_A_RECIPIENT = frozenset(
    {Meaning.NO_MAILBOX, Meaning.DISABLED, Meaning.MAILBOX_FULL, Meaning.ANOTHER_RECIPIENT}
)


class ReplyMeaning(Struct, frozen=True):
    """The meaning of a reply, and the rule that found it."""

    meaning: Meaning
    rule: str
    about_us: bool = False  # it concerns our address, name or reputation: back off from the host
    of_recipient: bool = False  # what it limits is this recipient's alone


# "No such mailbox" needs one of these codes (RFC 5321 4.2.3). No caller takes a 4xx as final.
CONDEMNING = ("4", "550", "551", "552", "553", "554", "555", "556")
# With words about the recipient these do, too. 525 is a disabled account (RFC 5248); 524, 540
# and 585 have no other meaning, and hosts use them so (OpenSMTPD: 524, Rambler: 540).
CONDEMNING_WITH_WORDS = ("524", "525", "540", "585")
CONDEMNS = frozenset({Meaning.NO_MAILBOX, Meaning.DISABLED})

# These codes prove it regardless of the words (RFC 3463 3.2, 3.3) ...
STATES_IT = frozenset({"5.1.1", "5.1.6", "5.1.10", "5.2.1", "4.1.1"})
# ... and with words about the recipient, whatever the reply code (511, 521, 571).
STATES_IT_WITH_WORDS = frozenset({"5.1.1", "5.1.10", "5.2.1"})

ACCEPTED = ReplyMeaning(Meaning.ACCEPTED, "accepted")
NOT_UNDERSTOOD = ReplyMeaning(Meaning.UNKNOWN, "not-understood")

# If a quoted host objects to the host that quotes it, this says nothing about us, and no other
# terms of ours would change it. Each is read as the wider class of its meaning.
QUOTED_TROUBLE = ReplyMeaning(Meaning.TEMPORARY, "quoted.trouble")
QUOTED_POLICY = ReplyMeaning(Meaning.BLOCKED_POLICY, "quoted.policy")
QUOTED_LIMIT = ReplyMeaning(Meaning.RATE_LIMITED, "quoted.limit", of_recipient=True)
QUOTED_DEMAND = ReplyMeaning(Meaning.UNKNOWN, "quoted.demand")
QUOTED = (QUOTED_TROUBLE, QUOTED_POLICY, QUOTED_LIMIT, QUOTED_DEMAND)
STEPS = {
    "CONNECT": Step.BANNER,
    "EHLO": Step.HELLO,
    "HELO": Step.HELLO,
    "MAIL": Step.MAIL,
}  # of a command whose reply is quoted; any other: RCPT
# Beginnings of the ids of rules that read no words, or words about a check.
NOT_OF_USER = ("code.", "enhanced.", "no-mailbox.verify")


class Pattern:
    """A regular expression that is compiled when it is first used."""

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern

    @cached_property
    def compiled(self) -> re.Pattern[str]:
        return re.compile(self.pattern)

    @cached_property
    def first_letters(self) -> frozenset[str]:
        return first_letters(self.pattern)

    @cached_property  # after the first access as fast as the compiled pattern's own
    def match(self) -> Callable[[str, int], re.Match[str] | None]:
        return self.compiled.match

    @cached_property
    def search(self) -> Callable[[str], re.Match[str] | None]:
        return self.compiled.search

    @cached_property
    def fullmatch(self) -> Callable[[str], re.Match[str] | None]:
        return self.compiled.fullmatch

    def compile(self) -> bool:
        """Compile it now; False if it was compiled before. Raises re.error if it is invalid."""
        return "compiled" not in vars(self) and bool(self.compiled)


class ReplyContext(Struct, frozen=True):
    """What is known of a reply besides its words."""

    step: Step
    code: str
    enhanced: str
    links: str
    operator: str | None

    @property
    def states_it(self) -> bool:
        """Do the codes alone prove that the mailbox does not exist or is disabled?"""
        return self.enhanced in STATES_IT and self.code.startswith(CONDEMNING)


class Rule(Struct, frozen=True):
    """One row of the table. All conditions must match; of `text` and `subject`, one."""

    reading: ReplyMeaning
    steps: frozenset[Step]
    codes: tuple[str, ...]  # prefixes: "5", "55", "550"; empty: any code
    enhanced: Pattern | None
    text: Pattern | None  # matched against the words
    subject: Pattern | None  # matched against the words with their subjects marked
    also: Pattern | None  # must be found in the words too
    unless: Pattern | None  # must not be found in the words
    link: Pattern | None
    operator: str | None
    any_code: bool  # any 5yz fits, too, if its enhanced code is in STATES_IT_WITH_WORDS
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
        """Does everything match but the words?"""
        return (
            asked.step in self.steps
            and (
                not self.codes
                or asked.code.startswith(self.codes)
                or (self.any_code and asked.enhanced in STATES_IT_WITH_WORDS)
            )
            and (self.operator is None or self.operator == asked.operator)
            and (self.enhanced is None or self.enhanced.fullmatch(asked.enhanced) is not None)
            and (self.link is None or self.link.search(asked.links) is not None)
        )

    def allows(self, words: str) -> bool:
        """Once a word pattern matched: do `also` and `unless` match as well?"""
        return (self.also is None or self.also.search(words) is not None) and (
            self.unless is None or self.unless.search(words) is None
        )


class Index:
    """The rules to try at a word, by the letters that their patterns begin with."""

    def __init__(self, patterns: Iterable[Pattern | None]) -> None:
        found: dict[str, list[tuple[int, Pattern]]] = {}
        for number, pattern in enumerate(patterns):
            if pattern is not None:
                for head in pattern.first_letters:
                    found.setdefault(head, []).append((number, pattern))
        self.by_head = {head: tuple(rules) for head, rules in found.items()}
        self.lengths = sorted({len(head) for head in found})


class Rules:
    """The rules in their order, with a cache of at most READINGS_MAX readings.

    The rules are read from `table` on first use.
    """

    def __init__(self, table: "RuleTable") -> None:
        self.table = table
        self.kept: dict[tuple[Step, int, str, str, str, str | None], ReplyMeaning] = {}

    @property
    def rules(self) -> tuple[Rule, ...]:
        return self.table.rules

    @cached_property
    def readings(self) -> Mapping[str, ReplyMeaning]:
        """What each rule says, by its id."""
        read = {rule.reading.rule: rule.reading for rule in self.rules}
        return read | {reading.rule: reading for reading in QUOTED}

    @cached_property
    def _links(self) -> Pattern | None:
        links = "|".join(rule.link.pattern for rule in self.rules if rule.link)
        return Pattern(links) if links else None

    def compile_remaining(self) -> Iterator[None]:
        """Compile the remaining patterns, one for each step: each takes 10 ms at most.

        Raises re.error for an invalid pattern.
        """
        for rule in self.rules:
            for pattern in rule.patterns():
                if pattern.compile():
                    yield

    def compile_all(self) -> None:
        """Compile all remaining patterns now. Raises re.error for an invalid one."""
        for _ in self.compile_remaining():
            pass

    def read(self, step: Step, reply: SmtpReply, site: str | None = None) -> ReplyMeaning:
        """Return what the reply to this step means. Never fails, whatever the text.

        A positive reply is ACCEPTED, whatever its words. A 4xx is read like a 5xx;
        the caller must not take a 4xx as final. A reply that quotes another host's is read by
        what it quotes.
        """
        if reply.positive:
            return ACCEPTED
        if not 400 <= reply.code < 600:
            return NOT_UNDERSTOOD
        if step is Step.RCPT:
            quoted = quoted_reply(reply.code, reply.lines)
            if quoted is not None:
                return self._read_quoted(reply.code, quoted)
        return self._read(step, reply, site)

    def _read_quoted(self, code: int, quoted: QuotedReply) -> ReplyMeaning:
        """Only words about the user condemn, and only if the other host's refusal is final."""
        inner = quoted.code or 550
        if not str(code).startswith(CONDEMNING + CONDEMNING_WITH_WORDS):
            inner = code
        reading = self._read(
            STEPS.get(quoted.answers, Step.RCPT), SmtpReply(inner, quoted.lines), None
        )
        meaning = reading.meaning
        if meaning in CONDEMNS:
            if (quoted.code or 550) < 500 <= code:
                return QUOTED_TROUBLE
            if quoted.code is None and reading.rule.startswith(NOT_OF_USER):
                return QUOTED_TROUBLE
            return reading
        if quoted.code is None and meaning is not Meaning.MAILBOX_FULL:
            return reading if meaning is Meaning.TEMPORARY else QUOTED_TROUBLE
        if meaning is Meaning.TLS_DEMANDED:
            return QUOTED_DEMAND
        if meaning in (Meaning.RATE_LIMITED, Meaning.ANOTHER_RECIPIENT):
            return QUOTED_LIMIT
        is_ours = reading.about_us or meaning is Meaning.SENDER_REFUSED
        return QUOTED_POLICY if is_ours else reading

    def _read(self, step: Step, reply: SmtpReply, site: str | None) -> ReplyMeaning:
        names = Names()
        text = names.remove_from(" ".join(reply.lines)[:TEXT_MAX])
        # Only what a rule matches of the links: the rest must not split the cache.
        every = " ".join(names.links).lower()
        links = " ".join(self._links.compiled.findall(every)) if self._links else ""
        key = (step, reply.code, names.enhanced, text, links, site)
        reading = self.kept.get(key)
        if reading is None:
            asked = ReplyContext(step, str(reply.code), names.enhanced, links, site)
            reading = self._search(asked, text)
            if len(self.kept) >= READINGS_MAX:
                self.kept.clear()
            self.kept[key] = reading
        return reading

    def _search(self, asked: ReplyContext, text: str) -> ReplyMeaning:
        words = fold(text, self.table.lexicon)
        search = Search(self.rules, asked, joined(words), self.table.doubt)
        spoken = self.table.subjects.mark_subjects(words)
        try:
            search.by_words(search.words, self.table.text_index)
            search.by_words(spoken, self.table.subject_index)
        except TooManyTriesError:
            return NOT_UNDERSTOOD
        search.by_other_rules(self.table.wordless)
        return search.reading


class TooManyTriesError(Exception):
    """The words of a reply need more than TRIES_MAX tries."""


class Search:
    """Finds the first rule that matches a reply."""

    def __init__(
        self, rules: tuple[Rule, ...], asked: ReplyContext, words: str, doubt: Pattern | None
    ) -> None:
        self.words = words
        self._doubt = doubt
        self.tries = 0
        self._rules = rules
        self._context = asked
        self._first = len(rules)  # the first rule found to match, so far
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
        """Try the rules that need no words."""
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
        """Does the rule condemn by words alone while another word casts doubt on them?"""
        return (
            self._doubt is not None
            and rule.reading.meaning in CONDEMNS
            and not self._context.states_it
            and self._doubt.search(self.words) is not None
        )


class RuleTable:
    """The rules of a TOML text and what is derived from them, read on first use."""

    def __init__(self, toml: Callable[[], str]) -> None:
        self._toml = toml

    @cached_property
    def data(self) -> dict[str, Any]:
        return tomllib.loads(self._toml())

    @cached_property
    def rules(self) -> tuple[Rule, ...]:
        words = self.data.get("words", {})
        return tuple(_rule(row, words) for row in self.data["rule"])

    @cached_property
    def lexicon(self) -> Lexicon:
        return Lexicon.of(self.data.get("lexicon", {}))

    @cached_property
    def subjects(self) -> Subjects:
        return Subjects.of(self.data.get("subjects", {}))

    @cached_property
    def doubt(self) -> Pattern | None:
        words = self.data.get("doubt", {}).get("words")
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


def load_rules() -> Rules:
    """Return the rules that come with the engine. The file is read on first use."""
    return Rules(RuleTable(lambda: RULES.read_text("utf-8")))


standard_rules = cache(load_rules)  # those that all engines of this process share


KEYS = frozenset(
    {"id", "step", "code", "enhanced", "text", "subject", "with", "unless", "link", "site"}
    | {"meaning", "about_us", "of_recipient", "source", "examples"}
)


def _rule(row: Mapping[str, Any], words: Mapping[str, str]) -> Rule:
    if strange := row.keys() - KEYS:
        raise ValueError(f"rule {row['id']}: no such keys: {', '.join(sorted(strange))}")
    meaning = Meaning(row["meaning"])
    steps = frozenset(Step(step) for step in _several(row.get("step", [])))
    codes = tuple(_several(row.get("code", [])))
    any_code = False
    if meaning in CONDEMNS:
        reads_words = "text" in row or "subject" in row
        known = CONDEMNING + (CONDEMNING_WITH_WORDS if reads_words else ())
        if strange_codes := set(codes) - set(known):
            raise ValueError(f"rule {row['id']}: {meaning.value} by {', '.join(strange_codes)}")
        any_code = not codes and reads_words
        codes = codes or CONDEMNING + (CONDEMNING_WITH_WORDS if any_code else ())
    return Rule(
        reading=ReplyMeaning(
            meaning, row["id"], row.get("about_us", False), row.get("of_recipient", False)
        ),
        steps=frozenset({Step.RCPT}) if meaning in OF_A_RECIPIENT else steps or frozenset(Step),
        codes=codes,
        enhanced=_pattern(row.get("enhanced"), {}),
        text=_pattern(row.get("text"), words),
        subject=_pattern(row.get("subject"), words),
        also=_pattern(row.get("with"), words),
        unless=_pattern(row.get("unless"), words),
        link=_pattern(row.get("link"), {}),
        operator=row.get("site"),
        any_code=any_code,
        source=row["source"],
        examples=tuple(row["examples"]),
    )


def _several(value: str | list[str]) -> list[str]:
    return [value] if isinstance(value, str) else value


def _pattern(value: str | list[str] | None, words: Mapping[str, str]) -> Pattern | None:
    """Join all alternatives into one pattern; `{name}` stands for an entry of `words`."""
    if value is None:
        return None
    pattern = "|".join(_several(value))
    for name, alternatives in words.items():
        pattern = pattern.replace(f"{{{name}}}", f"(?:{alternatives})")
    return Pattern(pattern)
