"""Why a verdict is what it is: what was tried, said and remembered.

Collected only when asked for. Times are milliseconds since the address was
taken up; lines are as they went over the wire, without CRLF.

A mail host writes most of it, so it is bounded where it is made: `shown()` cuts a
text and replaces what cannot be printed, `Evidence` keeps a number of lines, and
`EvidenceBudget` bounds what one answer to a caller holds in all.
"""

from typing import Literal

import msgspec

LINE_OCTETS_MAX = 512  # RFC 5321 4.5.3.1.5; hosts may say more, and nothing more is needed
CONVERSATION_LINES_MAX = 100  # as many as a reply may have (RFC 5321 has no bound)
# 50 results without evidence have some 30 KiB: so the whole answer stays within 256 KiB.
ANSWER_OCTETS_MAX = 224 * 1024

_encode = msgspec.json.Encoder().encode


class ConnectionAttempt(msgspec.Struct, frozen=True):
    """One attempt to reach an exchange."""

    exchange: str
    address: str | None  # the IP address; None where the exchange has none that may be used
    result: str  # "answered", or in a few words what went wrong


class ConversationLine(msgspec.Struct, frozen=True):
    """One line of the conversation; a reply of several lines is several of these."""

    at_ms: float
    who: Literal["client", "server"]
    text: str


class Evidence(msgspec.Struct):
    """Everything that explains one verdict."""

    exchanges: list[ConnectionAttempt] = []
    conversation: list[ConversationLine] = []
    rule: str | None = None  # id of the rule that decided, of replies.toml or of ours
    cached: list[str] = []  # of "mx", "addresses", "catch_all", "connection", "rest"
    truncated: bool = False  # something was left out: a line, or a part of one


def shown(text: str) -> str:
    """At most LINE_OCTETS_MAX octets of UTF-8, all of them printable."""
    text = text[:LINE_OCTETS_MAX]
    if not text.isprintable():
        text = "".join(each if each.isprintable() else "?" for each in text)
    if text.isascii():
        return text
    return text.encode("utf-8", "replace")[:LINE_OCTETS_MAX].decode("utf-8", "ignore")


class EvidenceBudget:
    """What the evidence in one answer may hold; one for each answer to a caller."""

    def __init__(self, octets_max: int = ANSWER_OCTETS_MAX) -> None:
        self._left = octets_max

    def fit(self, evidence: Evidence) -> Evidence:
        """The evidence, or as much of it as the answer has room for."""
        octets = len(_encode(evidence))
        if octets > self._left:
            evidence = self._cut(evidence)
            octets = len(_encode(evidence))
        self._left -= octets
        return evidence

    def _cut(self, evidence: Evidence) -> Evidence:
        """Without the lines that have no room; from the first on, so that what is left is in order."""
        bare = Evidence(rule=evidence.rule, cached=evidence.cached, truncated=True)
        left = self._left - len(_encode(bare))
        for name in ("exchanges", "conversation"):
            kept = getattr(bare, name)
            for each in getattr(evidence, name):
                left -= len(_encode(each)) + 1
                if left < 0:
                    return bare
                kept.append(each)
        return bare
