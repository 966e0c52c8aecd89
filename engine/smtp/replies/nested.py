"""Finds the reply of another host that a reply quotes.

A host that asks another one about a recipient puts that one's words into its own reply: Exim's
callouts (`Callout verification failed:`), Postfix's address verification (`host x said:`,
`undeliverable address:`), gateways, milters and delivery reports (`smtp; 550 …`). Such a reply is
judged by the innermost words that it quotes. Where the host speaks of its check of the sender,
the quoted words are about us, and nothing is found here.

The work is linear in the text, of which at most TEXT_MAX characters are read. Pure.
"""

import re
from collections.abc import Sequence

from msgspec import Struct

from .text import QUOTED_ADDRESS, TEXT_MAX

_CODE = r"(?:4[2-5]\d|5[0-57]\d|585)"
# `550 messages per hour` is a count, not a reply.
_NO_COUNT = (
    r"(?![ -](?:e?-?mails?|messages?|recipients?|rcpts?|users?|addresses|connections?|sessions?"
    r"|errors?|bytes|octets|[kmg]i?b|per|seconds?|minutes?|hours?|days?|times|of)\b)"
)
_SAID = r"\b(?:said|says|returned|replied|responded|answered|(?:reply|response|answer) was)\s{1,3}"
_REPLY = rf"""(?:[:;]\s{{0,3}}|{_SAID})["'(<\[]{{0,2}}(?P<code>{_CODE})(?=[ :-]){_NO_COUNT}."""
_CHECKED = " address: "
_QUOTED = re.compile(rf"{_REPLY}|\b(?:undeliverable|unverified){_CHECKED}", re.DOTALL)
_MAY_QUOTE = re.compile(r"(?:^|[\s:;\"'(<\[])[45]\d\d[ :-]")
_LINE = re.compile(rf"\s{{0,3}}(?P<code>{_CODE}){_NO_COUNT}[ -](?P<rest>.*)", re.DOTALL)
_ENHANCED = re.compile(r"\s{0,3}#?[45]\.\d{1,3}\.\d{1,3}")
_OF_SENDER = re.compile(
    r"sender|from address|return.?path|call ?back|verification failed for"
    r"|while verifying|\bcalled:|originator",
    re.IGNORECASE,
)
_VERB = r"(RCPT|MAIL|EHLO|HELO|initial|DATA|end)\b"
_IN_REPLY_TO = re.compile(rf"\(in reply to (?:end of )?{_VERB}", re.IGNORECASE)
_AFTER = re.compile(
    rf"""\b(?:(?:after|in reply to|response to)\s["'(]{{0,2}}(?:pipelined )?{_VERB}|(MAIL) FROM\b)""",
    re.IGNORECASE,
)
_GREETED = re.compile(r"refused to talk to me\W{0,3}$|\bafter initial connection\b", re.IGNORECASE)
_WORD = re.compile(r"[^\W\d_]{2}")


class QuotedReply(Struct, frozen=True):
    """The innermost words that a reply quotes."""

    code: int | None  # None: no host's reply, but what the quoting host says of its own check
    lines: tuple[str, ...]
    answers: str = "RCPT"  # the verb of the command that the other host answered; `CONNECT`


class _QuotedLines(Struct, frozen=True):
    """Lines of a reply that begin with the code of another one."""

    code: int
    lines: list[str]  # without that code
    outer: str  # the other lines


def _quoted_lines(code: int, lines: Sequence[str]) -> _QuotedLines | None:
    """The first lines that begin with one code of their own: a whole reply within the reply.

    In the first line that code may be a number of another kind, unless it is the reply's own
    or an enhanced code follows it.
    """
    found = [_LINE.match(line) for line in lines]
    first = found[0] if found else None
    if first is not None and first["code"] != str(code) and not _ENHANCED.match(first["rest"]):
        found[0] = None
    begin = next((place for place, match in enumerate(found) if match is not None), None)
    if begin is None:
        return None
    inner: list[re.Match[str]] = []
    for match in found[begin:]:
        if match is None or (inner and match["code"] != inner[0]["code"]):
            break
        inner.append(match)
    outer = [*lines[:begin], *lines[begin + len(inner) :]]
    rest = [match["rest"] for match in inner]
    return _QuotedLines(int(inner[0]["code"]), rest, " ".join(outer)[:TEXT_MAX])


def quoted_reply(code: int, lines: Sequence[str]) -> QuotedReply | None:
    """Return what a reply with this code and these lines quotes, or None."""
    if len(lines) == 1 and _CHECKED not in lines[0] and not _MAY_QUOTE.search(lines[0]):
        return None
    block = _quoted_lines(code, lines)  # the other reply has lines of its own
    text = " ".join(lines if block is None else block.lines)[:TEXT_MAX]
    if '"@' in text:
        text = QUOTED_ADDRESS.sub(" @ ", text)
    last = None
    for last in _QUOTED.finditer(text):  # noqa: B007  the innermost one counts
        pass
    if last is None:
        if block is None or _is_of_sender(block.outer):
            return None
        return _quote(block.code, (text,), block.outer)
    before = text[: last.start()]
    if _is_of_sender(before if block is None else f"{block.outer} {before}"):
        return None
    quoted = last["code"]
    return _quote(int(quoted) if quoted else None, (text[last.end() :],), before)


def _is_of_sender(outer: str) -> bool:
    """Does the quoting host speak of its check of the sender? Names are left out."""
    words = [word for word in outer.split() if "@" not in word and "." not in word.rstrip(".:")]
    return _OF_SENDER.search(" ".join(words)) is not None


def _quote(code: int | None, lines: tuple[str, ...], before: str) -> QuotedReply | None:
    text = " ".join(lines)
    if not _WORD.search(text):
        return None
    if _GREETED.search(before):
        return QuotedReply(code, lines, "CONNECT")
    answered = _IN_REPLY_TO.search(text) or _AFTER.search(before)
    return QuotedReply(
        code, lines, answered[answered.lastindex or 0].upper() if answered else "RCPT"
    )
