"""The evidence for a verdict: connection attempts, the conversation and cache hits.

Collected only on request. Times are milliseconds since the address was submitted; lines
are as they were sent, without CRLF.

Mail hosts write most of it, so it is bounded where it is made: `shown()` cuts a text and
replaces unprintable characters, `Evidence` holds a limited number of lines, and
`EvidenceBudget` limits the evidence in one response.
"""

from typing import Literal

import msgspec

from .verdict import Blame, Reason

LINE_OCTETS_MAX = 512  # RFC 5321 4.5.3.1.5; hosts send longer lines, but no more is needed
CONVERSATION_LINES_MAX = 100  # as many as a reply may have (RFC 5321 has no bound)
# 50 results without evidence take about 30 KiB, so the whole response stays within 256 KiB.
ANSWER_OCTETS_MAX = 224 * 1024
NOT_ASKED = "not asked"  # begins the result of an exchange that is left alone

_encode = msgspec.json.Encoder().encode


class ConnectionAttempt(msgspec.Struct, frozen=True):
    """One attempt to reach an exchange."""

    exchange: str
    address: str | None  # the IP address; None if the exchange has none that may be used
    result: str  # "answered", or the failure in a few words


class ConversationLine(msgspec.Struct, frozen=True):
    """One line of the conversation; a reply of several lines is several of these."""

    at_ms: float
    who: Literal["client", "server"]
    text: str


class Evidence(msgspec.Struct):
    """Everything that explains one verdict."""

    exchanges: list[ConnectionAttempt] = []
    conversation: list[ConversationLine] = []
    rule: str | None = None  # id of the rule that decided, of replies.toml or the engine's own
    reason: Reason | None = None
    blame: Blame | None = None
    cached: list[str] = []  # of "mx", "addresses", "catch_all", "connection", "rest"
    truncated: bool = False  # a line or a part of one was left out


def is_tried(evidence: Evidence) -> bool:
    """Whether a connection to an exchange was tried: one that is left alone was not."""
    return any(not each.result.startswith(NOT_ASKED) for each in evidence.exchanges)


def is_reached(evidence: Evidence) -> bool:
    """Whether a mail host has answered the connection, even if with nothing but its end."""
    return evidence.reason == "host_error" or any(
        line.who == "server" for line in evidence.conversation
    )


def shown(text: str) -> str:
    """At most LINE_OCTETS_MAX octets of UTF-8, all of them printable."""
    text = text[:LINE_OCTETS_MAX]
    if not text.isprintable():
        text = "".join(each if each.isprintable() else "?" for each in text)
    if text.isascii():
        return text
    return text.encode("utf-8", "replace")[:LINE_OCTETS_MAX].decode("utf-8", "ignore")


class EvidenceBudget(msgspec.Struct):
    """Limits the evidence in one response to a client, in octets of JSON."""

    _left: int = ANSWER_OCTETS_MAX

    def fit(self, evidence: Evidence) -> Evidence:
        """Return the evidence, or as much of it as the response has room for."""
        octets = len(_encode(evidence))
        if octets > self._left:
            evidence = self._cut(evidence)
            octets = len(_encode(evidence))
        self._left -= octets
        return evidence

    def _cut(self, evidence: Evidence) -> Evidence:
        """Keep the first lines, as many as fit."""
        bare = Evidence(
            rule=evidence.rule,
            reason=evidence.reason,
            blame=evidence.blame,
            cached=evidence.cached,
            truncated=True,
        )
        left = self._left - len(_encode(bare))
        for name in ("exchanges", "conversation"):
            kept = getattr(bare, name)
            for each in getattr(evidence, name):
                left -= len(_encode(each)) + 1
                if left < 0:
                    return bare
                kept.append(each)
        return bare
