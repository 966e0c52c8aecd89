"""Scores the reply rules on the collections of the tests, and measures how fast they read.

The collections (tests/engine/smtp/replies/replies*.tsv) have replies that were classified
by hand. The score is by class: how many replies are read rightly, and how many that do not
condemn the address would make it undeliverable.

The engine caches its latest readings, so a repeated reply costs less than a new one.
Replies vary by the names in them, which are removed in either case.
"""

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from msgspec import Struct, field

from mailprobe.engine.smtp.replies.rules import (
    CONDEMNING,
    CONDEMNING_WITH_WORDS,
    CONDEMNS,
    STATES_IT_WITH_WORDS,
    Meaning,
    ReplyMeaning,
    Rules,
    Step,
    load_rules,
)
from mailprobe.engine.smtp.wire import SmtpReply

from ..harness.figures import Figure, MissingRequirement
from ..harness.rounds import ratio, timed

COLLECTIONS = Path(__file__).resolve().parents[2] / "tests/engine/smtp/replies"
HOT = 10_000
COLD = 5  # rounds over all examples, each with an empty cache
AFRESH = 50  # rounds of the longest example
ACCEPTED = "250 2.1.5 Ok"
UNKNOWN = "550 5.1.1 <clara.nowak{n}@shop{n}.test>: Recipient address rejected: User unknown"
LINE = re.compile(r"(\d{3})[- ]?(.*)")

Row = Mapping[str, str]

# Meanings that the collections count to a wider class.
WIDER_CLASS = {
    Meaning.ANOTHER_RECIPIENT: Meaning.RATE_LIMITED,
    Meaning.SENDER_REFUSED: Meaning.BLOCKED_POLICY,
    Meaning.TLS_DEMANDED: Meaning.UNKNOWN,
}
STATED = re.compile(r"\d\.\d{1,3}\.\d{1,3}")


def run() -> list[Figure]:
    """Raises MissingRequirement without the collections: a wheel has no tests."""
    if not collections():
        raise MissingRequirement("the collections of replies are in the tests of a checkout")
    rules = load_rules()
    return [*_measure(rules), *_score(rules)]


# ------------------------------------------------ the collections


def collections() -> dict[str, list[Row]]:
    """Read the collections, by file name; empty if there are none."""
    return {path.name: read_collection(path) for path in sorted(COLLECTIONS.glob("replies*.tsv"))}


def read_collection(path: Path) -> list[Row]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))


def reply_of_row(row: Row) -> SmtpReply:
    r"""The reply of a row, whose lines are separated by `\n`, written so."""
    text = f"{row['enhanced_code']} {row['text']}".strip()
    return SmtpReply(int(row["code"]), tuple(text.split(r"\n")))


def class_of(meaning: Meaning) -> str:
    return WIDER_CLASS.get(meaning, meaning).value


def should_condemn(row: Row) -> bool:
    """Does the address become undeliverable? By the class, and the code is one that can."""
    if "condemns" in row:
        return row["condemns"] == "yes"
    if row["class"] not in {meaning.value for meaning in CONDEMNS} or row["code"] < "5":
        return False
    stated = STATED.search(f"{row['enhanced_code']} {row['text']}")
    return row["code"] in CONDEMNING + CONDEMNING_WITH_WORDS or (
        stated is not None and stated[0] in STATES_IT_WITH_WORDS
    )


def condemns(reply: SmtpReply, reading: ReplyMeaning) -> bool:
    return reply.code >= 500 and reading.meaning in CONDEMNS


class ClassScore(Struct):
    """Replies of one class, or of all: how many there are, and how many are read rightly."""

    count: int = 0
    right: int = 0
    falsely_undeliverable: list[str] = field(default_factory=list)

    def add(self, row: Row, rules: Rules) -> None:
        """Read one reply. One that is ambiguous counts only if it falsely condemns."""
        reply = reply_of_row(row)
        reading = rules.read(Step.RCPT, reply)
        condemned, should = condemns(reply, reading), should_condemn(row)
        if condemned and not should and row.get("class") not in ("no_mailbox", "disabled"):
            self.falsely_undeliverable.append(f"{reply.code} {reply.text}")
        if row.get("ambiguous"):
            return
        self.count += 1
        if "class" in row:
            self.right += class_of(reading.meaning) == row["class"] and condemned == should
        else:
            self.right += condemned == should

    @property
    def right_percent(self) -> float:
        return 100 * self.right / self.count if self.count else 100.0


def scores(rules: Rules, rows: Sequence[Row]) -> dict[str, ClassScore]:
    """Score the rows by class; rows without a class by whether they condemn the address."""
    by_class: dict[str, ClassScore] = {}
    for row in rows:
        name = row.get("class") or ("condemns" if row["condemns"] == "yes" else "does not condemn")
        by_class.setdefault(name, ClassScore()).add(row, rules)
    return by_class


def total(by_class: Mapping[str, ClassScore]) -> ClassScore:
    return ClassScore(
        sum(score.count for score in by_class.values()),
        sum(score.right for score in by_class.values()),
        [line for score in by_class.values() for line in score.falsely_undeliverable],
    )


def table(by_class: Mapping[str, ClassScore]) -> Iterator[str]:
    yield f"{'class':18} {'replies':>7} {'right':>6} {'wrong':>6} {'right %':>8} {'false':>6}"
    for name, score in [*sorted(by_class.items()), ("all", total(by_class))]:
        yield (
            f"{name:18} {score.count:7} {score.right:6} {score.count - score.right:6}"
            f" {score.right_percent:8.1f} {len(score.falsely_undeliverable):6}"
        )


def _score(rules: Rules) -> list[Figure]:
    found = collections()
    rows = [row for part in found.values() for row in part]
    by_class = scores(rules, rows)
    for line in table(by_class):
        print(f"# {line}")
    for name, part in found.items():
        score = total(scores(rules, part))
        print(f"# {name}: {score.right} of {score.count} right, {score.right_percent:.1f} %")
    every = total(by_class)
    for line in every.falsely_undeliverable:
        print(f"# falsely undeliverable: {line}")
    return [
        Figure("replies of the collections", every.count, ""),
        Figure("right", every.right_percent, "%"),
        Figure("falsely undeliverable", len(every.falsely_undeliverable), ""),
    ]


# ------------------------------------------------ how fast they are read


def _measure(rules: Rules) -> list[Figure]:
    texts = [text for rule in rules.rules for text in rule.examples]
    # Each reply is a new object, as when it is read from a connection.
    accepted = [reply_of(ACCEPTED) for _ in range(HOT)]
    unknown = [reply_of(UNKNOWN.format(n=n)) for n in range(HOT)]
    examples = [reply_of(text) for text in texts]
    loading = timed(load_rules)
    positive = timed(lambda: read_all(rules, accepted))
    negative = timed(lambda: read_all(rules, unknown))
    cold = timed(lambda: read_afresh(rules, examples, COLD))
    longest = max(examples, key=lambda reply: len(reply.text))
    bulky = timed(lambda: read_afresh(rules, [longest], AFRESH))
    nothing = timed(lambda: read_afresh(rules, [], AFRESH))
    return [
        Figure("loading the rules", loading.wall_s * 1000, "ms", spread=loading.spread),
        Figure("rules", len(rules.rules), ""),
        Figure("examples", len(examples), ""),
        positive.figure("a 250", HOT),
        negative.figure("a 550 5.1.1, each with another address", HOT),
        cold.figure("an example, read the first time", COLD * len(examples)),
        Figure(
            "the longest example, read the first time",
            max(0.0, bulky.cpu_each_us(AFRESH) - nothing.cpu_each_us(AFRESH)),
            "µs",
            spread=bulky.cpu_spread,
        ),
        ratio(
            "a 550 5.1.1 beside one read the first time",
            negative,
            cold,
            HOT,
            COLD * len(examples),
        ),
    ]


def reply_of(text: str) -> SmtpReply:
    """Parse an example, whose lines are separated by newlines, into a reply."""
    found = [LINE.fullmatch(line) for line in text.splitlines()]
    assert all(found), text
    return SmtpReply(int(found[0][1]), tuple(line[2] for line in found))  # type: ignore[index]


def read_all(rules: Rules, replies: Sequence[SmtpReply]) -> None:
    for reply in replies:
        rules.read(Step.RCPT, reply)


def read_afresh(rules: Rules, replies: Sequence[SmtpReply], times: int) -> None:
    """Classify the replies `times` times by rules with an empty cache."""
    for _ in range(times):
        read_all(Rules(rules.table), replies)
