"""Reads bounces: delivery reports in an mbox, or a list that a mail service exports.

A report says why, in words and codes of many dialects; the reply rules of the engine read
them as they read a mail host's reply.
"""

import email
import logging
import mailbox
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from email.message import Message
from pathlib import Path
from typing import Literal

from mailprobe.api.cli.listfile import BadList, ReadOptions, open_list
from mailprobe.api.cli.output.terminal import plain
from mailprobe.engine.address import NotAnAddress, parse
from mailprobe.engine.smtp.replies.rules import Meaning, Step, standard_rules
from mailprobe.engine.smtp.wire import SmtpReply

Kind = Literal["no_mailbox", "refused", "temporary"]

GRAVEST_FIRST: tuple[Kind, ...] = ("no_mailbox", "refused", "temporary")
MBOX = b"From "
MESSAGE_OCTETS_MAX = 1 << 20  # a report is short; what it returns of our message is not read
TEXT_MAX = 2_000
ROW_TEXT_MAX = 4_000

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
REPLY = re.compile(r"(?<![\d.])([45]\d\d)[ -]")
ENHANCED = re.compile(r"(?<![\d.])([45])\.(\d{1,3})\.(\d{1,3})(?![\d.])")
WORDS: tuple[tuple[re.Pattern[str], Kind], ...] = (
    (re.compile(r"\b(?:soft|transient|temporar\w*|defer\w*|delayed|full|quota|greylist\w*)\b"), "temporary"),
    (re.compile(r"\b(?:spam|polic\w+|block(?:ed)?|blacklist\w*|blocklist\w*|reputation|complaint)\b"), "refused"),
)  # fmt: skip


@dataclass(slots=True)
class Bounces:
    """Bounced addresses, each with the gravest of its bounces."""

    kinds: dict[str, Kind] = field(default_factory=dict)  # by the address as `key_of` writes it
    unread: int = 0  # messages of which no bounce could be read

    def add(self, address: str, kind: Kind) -> None:
        key = key_of(address)
        self.kinds[key] = min(self.kinds.get(key, kind), kind, key=GRAVEST_FIRST.index)


def key_of(address: str) -> str:
    """What two spellings of an address have in common; reports often change its case."""
    try:
        return parse(address).mailbox.lower()
    except NotAnAddress:
        return address.strip().lower()


def read_bounces(path: Path, reading: ReadOptions | None = None) -> Bounces:
    """Read a file of bounces. Raises BadList."""
    try:
        with path.open("rb") as file:
            is_mbox = file.read(len(MBOX)) == MBOX
    except OSError as error:
        raise BadList(f"{plain(str(path))} cannot be read: {error.strerror}") from None
    bounces = Bounces()
    if is_mbox:
        for message in _messages(path):
            found = dict(_reported(message))
            bounces.unread += not found
            for address, kind in found.items():
                bounces.add(address, kind)
        return bounces
    with open_list(path, reading) as source:
        for row in source.rows():
            if row.address:
                cells = [cell for cell in row.cells() if row.address not in cell]
                bounces.add(row.address, kind_of(" | ".join(cells)[:ROW_TEXT_MAX]))
    return bounces


def _messages(path: Path) -> Iterator[Message]:
    box = mailbox.mbox(path, create=False)
    try:
        for key in box.iterkeys():
            with box.get_file(key) as file:
                yield email.message_from_bytes(file.read(MESSAGE_OCTETS_MAX))
    finally:
        box.close()


def _reported(message: Message) -> Iterator[tuple[str, Kind]]:
    """The bounced addresses of one message."""
    reasons = dict(_status_blocks(message))
    temporary, permanent = _scan(message)
    for octets in permanent:
        address = octets.decode("ascii", "replace")
        yield address, kind_of(reasons.get(address.lower(), ""))
    for octets in temporary - permanent:
        yield octets.decode("ascii", "replace"), "temporary"


def _scan(message: Message) -> tuple[frozenset[bytes], frozenset[bytes]]:
    """The addresses with temporary and with permanent failures; none if a message is too odd."""
    from flufl.bounce import all_failures

    logging.getLogger("flufl.bounce").setLevel(logging.CRITICAL)
    try:
        temporary, permanent = all_failures(message)
    except Exception:  # its detectors meet text that nobody has thought of
        return frozenset(), frozenset()
    return frozenset(temporary) - {b""}, frozenset(permanent) - {b""}


def _status_blocks(message: Message) -> Iterator[tuple[str, str]]:
    """Each recipient of a delivery report (RFC 3464) with its status and diagnostic text."""
    for part in message.walk():
        if part.get_content_type() != "message/delivery-status" or not part.is_multipart():
            continue
        for block in part.get_payload():
            if not isinstance(block, Message):
                continue
            text = f"{block.get('Diagnostic-Code', '')} {block.get('Status', '')}"
            for name in ("Original-Recipient", "Final-Recipient"):
                if recipient := str(block.get(name, "")):
                    yield recipient.rpartition(";")[2].strip(" <>").lower(), text[:TEXT_MAX]


def kind_of(text: str) -> Kind:
    """What a report's words say: that there is no such mailbox, unless they say something else."""
    if (found := REPLY.search(text)) is not None:
        reply = SmtpReply(int(found[1]), (text[found.end() :][:TEXT_MAX],))
        kind = MEANINGS.get(standard_rules().read(Step.RCPT, reply).meaning)
        if kind is not None:
            return "temporary" if found[1].startswith("4") else kind
    if (code := ENHANCED.search(text)) is not None:
        if code[1] == "4" or (code[2] == "2" and code[3] == "2"):
            return "temporary"
        return "refused" if code[2] == "7" else "no_mailbox"
    folded = text.lower()
    return next((kind for pattern, kind in WORDS if pattern.search(folded)), "no_mailbox")
