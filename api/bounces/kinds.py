"""Kinds of bounces, by their meaning for the address. Pure.

The reason stands in words and codes of many dialects. The reply rules of the engine read
them as they read a mail host's reply to a recipient. What no rule reads is `unknown`: it is
not counted as a mailbox that does not exist.
"""

import re
from collections.abc import Iterator
from typing import Literal

from mailprobe.engine.smtp.replies.rules import Meaning, Step, standard_rules
from mailprobe.engine.smtp.wire import SmtpReply

Kind = Literal["no_mailbox", "refused", "temporary", "unknown"]
Table = tuple[tuple[re.Pattern[str], Kind], ...]

KINDS: tuple[Kind, ...] = ("no_mailbox", "refused", "temporary", "unknown")  # gravest first
TEXT_MAX = 2_000  # of one reason
REASONS_MAX = 20  # passages of a text that are read

MEANINGS: dict[Meaning, Kind] = {
    Meaning.NO_MAILBOX: "no_mailbox",
    Meaning.DISABLED: "no_mailbox",
    Meaning.MAILBOX_FULL: "temporary",
    Meaning.GREYLISTED: "temporary",
    Meaning.RATE_LIMITED: "temporary",
    Meaning.TEMPORARY: "temporary",
    Meaning.BLOCKED_POLICY: "refused",
    Meaning.BAD_HELO_OR_RDNS: "refused",
    Meaning.RELAY_DENIED: "refused",
    Meaning.NEEDS_AUTH: "refused",
    Meaning.TLS_DEMANDED: "refused",
    Meaning.SENDER_REFUSED: "refused",
}
# A mail service's notice that it sent nothing: the address is on its list, whatever the status.
NOT_SENT = re.compile(
    r"\bsuppression[- ]list\b|\bhas suppressed sending\b|\bsuppressed sending to this address\b|"
    r"\bdid not send the message to this address\b|\baddress (?:was |is )?suppressed due to\b|"
    r"\bnot delivering to (?:a )?(?:previously bounced|unsubscribed|complained)\b",
    re.IGNORECASE,
)
# Sendmail's reply for a program that failed: the reason is what the program said.
PROGRAM_FAILED = re.compile(
    r"\b554 (?:5\.0\.0 )?(?:[^\n]{1,400}\.\.\. )?Service unavailable\b", re.IGNORECASE
)
# An empty line, or a heading as Sendmail has them: "----- Transcript of session follows -----".
PARAGRAPHS_END = re.compile(r"\n[ \t]*\n|^[ \t]*-{3,5} [^\n]{1,80} -{3,5}[ \t]*$", re.MULTILINE)
CODE_ALONE = re.compile(r"(?:(?:smtp|error|reply|status|code):? ){0,3}([45]\d\d)", re.IGNORECASE)
NO_WORDS = 554  # the code for a text without one: no rule reads it by itself
REPLY = re.compile(
    r"(?<!\d:)(?<![\d.,/-])([45]\d\d)[ -](?!\s*(?:bytes|octets|[kmg]i?b|seconds|minutes|hours|messages)\b)",
    re.IGNORECASE,
)
ENHANCED = re.compile(r"(?<![\d.])([45])\.(\d{1,3})\.(\d{1,3})(?![\d.])")
CONTINUED = re.compile(r"\s[45]\d\d-(?:[45]\.\d{1,3}\.\d{1,3} )?")  # in a reply of several lines

# Words that the sender's own mail server uses, never about the sender, and codes of which the
# rules say nothing.
OF_SERVERS: Table = (
    (re.compile(r"^(?!.*\bsender\b).*?(?:host unknown \((?:authoritative|name server)|host or domain name not found|couldn'?t find any host|"
                r"no such domain|domain (?:name )?(?:\S+\.\S+ )?(?:does ?n[o']t exist|not found)|"
                r"wasn't found at|unrouteable (?:mail )?domain|null ?mx)"), "no_mailbox"),
    (re.compile(r"messages? (?:size )?(?:exceeds|is too large|too big)|"
                r"(?:exceeds|larger than) .{0,30}(?:message|size)"), "refused"),
    (re.compile(r"have been failing for a long time|could not deliver for the last|retry time(?:out)? (?:not|exceeded)|"
                r"(?:message|envelope|delivery(?: time)?|lifetime|lease) (?:has )?expired|too long in (?:the )?queue|"
                r"in the queue too long|connection (?:timed out|refused)|"
                r"could ?n[o']t (?:connect|establish)|no route to host|domain is not reachable|"
                r"did not accept our requests? to connect|network (?:is )?unreachable"),
     "temporary"),
)  # fmt: skip
# SparkPost's classes of bounces; what is not here is none, such as 60, an automatic reply.
SPARKPOST_CLASSES: dict[str, Kind] = {
    "1": "unknown", "10": "no_mailbox", "20": "temporary", "21": "temporary", "22": "temporary",
    "23": "refused", "24": "temporary", "25": "temporary", "30": "unknown", "40": "temporary",
    "50": "refused", "51": "refused", "52": "refused", "53": "refused", "54": "refused",
    "70": "temporary", "100": "temporary",
}  # fmt: skip
CODES: dict[str, Kind] = {
    "1.2": "no_mailbox", "1.3": "no_mailbox", "1.6": "no_mailbox", "4.4": "no_mailbox",
    "4.310": "no_mailbox", "1.7": "refused", "1.8": "refused", "2.2": "temporary",
    "2.3": "refused", "3.4": "refused", "4.7": "temporary", "4.316": "temporary",
    # Replies without words (RFC 5321 4.2.3, RFC 4954): the others of 5yz say nothing.
    "421": "temporary", "450": "temporary", "451": "temporary", "452": "temporary",
    "530": "refused", "535": "refused", "552": "temporary",
}  # fmt: skip


def kind_of_bounce(word: Kind, reason: str) -> Kind:
    """The kind of a bounce that a mail service calls `word`.

    The reason decides where the service says that the bounce is final; its word holds where the
    reason says nothing.
    """
    return word if word in ("temporary", "refused") else kind_of_reason(reason) or word


def kind_of_reason(text: str) -> Kind | None:
    """What the reason in a report says; None if it says nothing that is understood."""
    if NOT_SENT.search(" ".join(text[:TEXT_MAX].split())):
        return "temporary"
    return next(filter(None, map(_kind_of_passage, _passages(text))), None)


def _passages(text: str) -> Iterator[str]:
    """The paragraphs with a reply in them, then the others, and last a status without words.

    The words of a program behind the mail server come without a code. They say more than the status
    that the server made of them: "over quota" under 5.1.1 is a full mailbox.
    """
    paragraphs = (
        " ".join(part.split()) for part in PARAGRAPHS_END.split(PROGRAM_FAILED.sub("", text))
    )
    for part in sorted(filter(None, paragraphs), key=_place)[:REASONS_MAX]:
        yield part[:TEXT_MAX]


def _place(paragraph: str) -> int:
    """Which paragraph is read first: that of the lowest number."""
    has_code = REPLY.search(paragraph) or ENHANCED.search(paragraph)
    return 2 if ENHANCED.fullmatch(paragraph.partition(" (")[0]) else 0 if has_code else 1


def _kind_of_passage(text: str) -> Kind | None:
    for found in list(REPLY.finditer(text))[:REASONS_MAX]:
        if found[1].startswith("4"):
            return "temporary"
        reply = CONTINUED.sub(" ", text[found.end() :]).replace(f"; {found[1]} ", " ")
        if (kind := _read(int(found[1]), reply)) is not None:
            return kind
    if (kind := _first_match(OF_SERVERS, text)) is not None:
        return kind
    if (code := ENHANCED.search(text)) is not None:
        if code[1] == "4":
            return "temporary"
        if (kind := CODES.get(f"{code[2]}.{code[3]}")) is not None:
            return kind
    if (code := CODE_ALONE.fullmatch(text)) is not None:
        return CODES.get(code[1])
    return _read(NO_WORDS, text)


def _read(code: int, text: str) -> Kind | None:
    """Read a text as a reply to a recipient. The code alone says nothing: it may answer DATA."""
    text = text[:TEXT_MAX]
    if _first_match(OF_SERVERS, text) == "no_mailbox":  # the rules take a domain for our own
        return "no_mailbox"
    reading = standard_rules().read(Step.RCPT, SmtpReply(code, (text,)))
    return None if reading.rule.startswith("code.") else MEANINGS.get(reading.meaning)


def _first_match(table: Table, text: str) -> Kind | None:
    folded = text.lower()
    return next((kind for pattern, kind in table if pattern.search(folded)), None)
