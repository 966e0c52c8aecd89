"""Measures how fast the rules classify replies: common ones and rare ones.

The engine caches its latest results, so a repeated reply costs less than a new one.
Replies vary by the names in them, which are removed in either case.
"""

import re
from collections.abc import Sequence

from mailprobe.bench.harness.figures import Figure
from mailprobe.bench.harness.rounds import ratio, timed
from mailprobe.engine.smtp.replies.rules import Rules, Step, load_rules
from mailprobe.engine.smtp.wire import SmtpReply

HOT = 10_000
COLD = 5  # rounds over all examples, each with an empty cache
AFRESH = 50  # rounds of the longest example
ACCEPTED = "250 2.1.5 Ok"
UNKNOWN = "550 5.1.1 <clara.nowak{n}@shop{n}.test>: Recipient address rejected: User unknown"
LINE = re.compile(r"(\d{3})[- ]?(.*)")


def run() -> list[Figure]:
    rules = load_rules()
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
        read_all(rules.forgetful(), replies)
