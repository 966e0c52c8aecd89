"""The client's half of SMTP without a socket (RFC 5321, 2034, 2920, 3207, 6531, 9422).

`Conversation` knows which command may follow which, how replies are framed and
which commands are still unanswered. It promises that a reply is paired with the
oldest unanswered command and with nothing else, and that no octet outside
printable ASCII (or UTF-8 where SMTPUTF8 was declared) is ever written. It never
waits, never reads a clock and never repairs: whatever does not parse is
`RemoteProtocolError`, whatever we should not have said is `LocalProtocolError`.
"""

import re
from collections import deque
from dataclasses import dataclass, replace
from enum import Enum, auto
from functools import cached_property

import msgspec

REPLY_LINES_MAX = 100  # an EHLO answer of the wordiest host has about 30
REPLY_OCTETS_MAX = 16 * 1024
COMMAND_OCTETS_MAX = 512 + 16  # RFC 5321 4.5.3.1.4, and room for SMTPUTF8 (RFC 6531 3.4)


class RemoteProtocolError(Exception):
    """The server said something that is no SMTP, or spoke out of turn."""


class LocalProtocolError(Exception):
    """A command that may not be said here: a bug of ours."""


class Stage(Enum):
    """How far a session has come."""

    BANNER = auto()  # connected, not yet greeted
    HELLO = auto()  # greeted, not yet introduced
    READY = auto()  # introduced, no transaction
    MAIL = auto()  # in a transaction: recipients may be named
    HANDSHAKE = auto()  # STARTTLS was accepted: TLS comes next, and no command before it
    CLOSED = auto()

    __hash__ = object.__hash__  # a member is itself alone; Enum's own is Python code


_IN_MAIL = Stage.MAIL  # to look it up takes 0.12 µs in Python 3.11

# stage -> what we may say there -> where a positive reply takes us
TALK: dict[Stage, dict[str, Stage]] = {
    Stage.BANNER: {"CONNECT": Stage.HELLO, "QUIT": Stage.CLOSED},  # after a 554 (3.1)
    Stage.HELLO: {"EHLO": Stage.READY, "HELO": Stage.READY, "QUIT": Stage.CLOSED},
    Stage.READY: {
        "EHLO": Stage.READY,
        "MAIL": Stage.MAIL,
        "RSET": Stage.READY,
        "NOOP": Stage.READY,
        "STARTTLS": Stage.HANDSHAKE,
        "QUIT": Stage.CLOSED,
    },
    Stage.MAIL: {
        "RCPT": Stage.MAIL,
        "RSET": Stage.READY,
        "NOOP": Stage.MAIL,
        "QUIT": Stage.CLOSED,
    },
    Stage.HANDSHAKE: {},  # left by Conversation.secured() alone
    Stage.CLOSED: {},
}

# RFC 2920 3.1: these may stand anywhere in a group; QUIT only at its end.
PIPELINED = ("MAIL", "RCPT", "RSET")
IN_ONE_GROUP = frozenset((verb, next_) for verb in PIPELINED for next_ in (*PIPELINED, "QUIT"))


class Command(msgspec.Struct, frozen=True, gc=False):  # one for each recipient: built in 0.1 µs
    """One line of ours: its verb, and the whole line without its CRLF."""

    verb: str
    line: str


# These codes answer nothing else (RFC 5321 4.2.2, RFC 3207 4).
ANSWERED_BY = {220: ("CONNECT", "STARTTLS"), 221: ("QUIT",)}

CONNECT = Command("CONNECT", "")  # stands for the connection, which the banner answers
RSET = Command("RSET", "RSET")
NOOP = Command("NOOP", "NOOP")
STARTTLS = Command("STARTTLS", "STARTTLS")
QUIT = Command("QUIT", "QUIT")


def ehlo(name: str) -> Command:
    return Command("EHLO", f"EHLO {name}")


def helo(name: str) -> Command:
    return Command("HELO", f"HELO {name}")


def mail(sender: str, *, smtputf8: bool = False) -> Command:
    return Command("MAIL", f"MAIL FROM:<{sender}>" + (" SMTPUTF8" if smtputf8 else ""))


def rcpt(mailbox: str) -> Command:
    return Command("RCPT", f"RCPT TO:<{mailbox}>")


_CODE = re.compile(r"[2-5][0-9]{2}")
_ENHANCED = re.compile(r"\s*[#(\[]?([245]\.\d{1,3}\.\d{1,3})(?!\.?\d)")


class SmtpReply(msgspec.Struct, frozen=True, dict=True):
    """A complete reply: its code, and the text of each line without the code."""

    code: int
    lines: tuple[str, ...] = ("",)

    @property
    def positive(self) -> bool:
        return 200 <= self.code < 300

    @cached_property
    def text(self) -> str:
        """All lines' words in one, the enhanced code left out where it leads a line."""
        return " ".join(_without_enhanced(line) for line in self.lines)

    @cached_property
    def enhanced(self) -> str | None:
        """The enhanced status code that leads a line (RFC 2034), `5.1.1`, or None."""
        for line in self.lines:
            if found := _ENHANCED.match(line):
                return found[1]
        return None

    def __str__(self) -> str:
        last = len(self.lines) - 1
        return "\n".join(
            f"{self.code}{'-' if place < last else ' '}{line}".rstrip()
            for place, line in enumerate(self.lines)
        )


def _without_enhanced(line: str) -> str:
    found = _ENHANCED.match(line)
    return line[found.end() :].lstrip(" )]-") if found else line.lstrip()


class ReplyReader:
    """Octets in, whole replies out; bounded."""

    def __init__(self) -> None:
        self._buffer = b""
        self._at = 0  # what is before has been read
        self._lines: list[str] = []
        self._code = 0
        self._octets = 0  # of the reply under way, complete lines alone
        self._latest_line: bytes | None = None  # of a reply of one line; hosts repeat themselves
        self._latest_octets: bytes | None = None  # of the latest, where they came by themselves
        self._latest = SmtpReply(0)

    @property
    def empty(self) -> bool:
        """Nothing is buffered, not even a part of a line."""
        return self._at >= len(self._buffer) and not self._lines

    def feed(self, octets: bytes | bytearray) -> None:
        self._buffer = self._buffer[self._at :] + octets if self._buffer else bytes(octets)
        self._at = 0

    def whole_reply(self, octets: bytes) -> SmtpReply | None:
        """The reply that these octets are, no less and no more; else None, and they are fed.

        The next_reply() of the usual case, in which nothing is left over before or after.
        """
        if self._lines or self._at < len(self._buffer):
            self.feed(octets)
            return None
        if octets == self._latest_octets:
            return self._latest
        self.feed(octets)
        if octets.find(b"\n") != len(octets) - 1:
            return None
        reply = self.next_reply()
        if reply is not None and octets[:-1] == self._latest_line:
            self._latest_octets = octets
        return reply

    def next_reply(self) -> SmtpReply | None:
        """The next whole reply, None until more octets come, or TheirMistake."""
        while (end := self._buffer.find(b"\n", self._at)) >= 0:
            line, octets = self._buffer[self._at : end], end + 1 - self._at
            self._at = end + 1
            if not self._lines and line == self._latest_line:
                return self._latest
            self._octets += octets
            if self._octets > REPLY_OCTETS_MAX:
                raise RemoteProtocolError(f"a reply of more than {REPLY_OCTETS_MAX} octets")
            if not self._read_line(line):
                return self._whole(line)
        if self._at:
            self._buffer, self._at = self._buffer[self._at :], 0
        if self._octets + len(self._buffer) > REPLY_OCTETS_MAX:
            raise RemoteProtocolError(f"a reply of more than {REPLY_OCTETS_MAX} octets")
        return None

    def _whole(self, last_line: bytes) -> SmtpReply:
        reply = SmtpReply(self._code, tuple(self._lines))
        if len(self._lines) == 1:
            self._latest_line, self._latest = last_line, reply
            self._latest_octets = None
        self._lines.clear()
        self._octets = 0
        return reply

    def _read_line(self, octets: bytes) -> bool:
        """Add one line to the reply under way; say whether another one follows."""
        line = _decode(octets).rstrip("\r")
        code, mark = line[:3], line[3:4]
        if not (_CODE.fullmatch(code) and mark in ("", " ", "-")):
            raise RemoteProtocolError(f"not a reply: {line[:80]!r}")
        if self._lines and int(code) != self._code:
            raise RemoteProtocolError(f"a reply that changes its code from {self._code} to {code}")
        if len(self._lines) >= REPLY_LINES_MAX:
            raise RemoteProtocolError(f"a reply of more than {REPLY_LINES_MAX} lines")
        self._code = int(code)
        self._lines.append(line[4:])
        return mark == "-"


def _decode(octets: bytes) -> str:
    """Replies are ASCII by the book, UTF-8 by RFC 6531, Latin-1 in the field."""
    try:
        return octets.decode("utf-8")
    except UnicodeDecodeError:
        return octets.decode("latin-1")


@dataclass(frozen=True, slots=True)
class Offer:
    """What the server's EHLO answer offers."""

    pipelining: bool = False
    smtputf8: bool = False
    starttls: bool = False
    recipients_max: int | None = None  # LIMITS RCPTMAX, in one transaction (RFC 9422)
    transactions_max: int | None = None  # LIMITS MAILMAX, in one session
    domains_max: int | None = None  # LIMITS RCPTDOMAINMAX, in one transaction


NO_OFFER = Offer()


def read_offer(reply: SmtpReply) -> Offer:
    """Read an EHLO answer; what it does not spell rightly is not offered."""
    words = {}
    for line in reply.lines[1:]:
        keyword, _, rest = line.strip().partition(" ")
        words[keyword.upper()] = rest
    limits = {}
    for item in words.get("LIMITS", "").split():
        name, _, value = item.partition("=")
        if value.isascii() and value.isdigit() and int(value[:9]) > 0:
            limits[name.upper()] = int(value[:9])
    return Offer(
        pipelining="PIPELINING" in words,
        smtputf8="SMTPUTF8" in words,
        starttls="STARTTLS" in words,
        recipients_max=limits.get("RCPTMAX"),
        transactions_max=limits.get("MAILMAX"),
        domains_max=limits.get("RCPTDOMAINMAX"),
    )


class CommandReply(msgspec.Struct, frozen=True, gc=False):
    """A command and the reply that answers it."""

    command: Command
    reply: SmtpReply


class Conversation:
    """One session, from the banner to QUIT, as bytes in and bytes out.

    `send` takes a group of commands and gives the octets to write; `receive`
    takes octets read; `next_exchange` pairs replies with commands, oldest first.
    """

    def __init__(self) -> None:
        self.stage = Stage.BANNER
        self.offer = NO_OFFER
        self.opening_reply: SmtpReply | None = None  # the latest that accepts a command but RCPT
        self.secure = False  # TLS is spoken
        self.unanswered: deque[Command] = deque([CONNECT])
        self._reader = ReplyReader()
        self._ahead = Stage.BANNER  # the stage once all that is unanswered is accepted

    @property
    def quiet(self) -> bool:
        """Nothing is unanswered and nothing unread: another question may be asked."""
        return not self.unanswered and self._reader.empty

    def send(self, *commands: Command) -> bytes:
        """The octets of these commands, which are unanswered from now on.

        Raises OurMistake where one may not be said here, where octets of an
        earlier reply are left, or where a line holds a control character.
        """
        if not self.unanswered:
            self._ahead = self.stage
            if not self._reader.empty:
                raise LocalProtocolError("asked while octets nobody asked for are waiting")
        ahead, before = self._ahead, self.unanswered[-1] if self.unanswered else None
        talk, pipelining = TALK[ahead], self.offer.pipelining
        for command in commands:
            verb = command.verb
            if verb not in talk:
                raise LocalProtocolError(f"{verb} in stage {ahead.name}")
            if before is not None and not (pipelining and (before.verb, verb) in IN_ONE_GROUP):
                raise LocalProtocolError(f"{verb} before {before.verb} was answered")
            self._check(command)
            before = command
            if talk[verb] is not ahead:
                ahead = talk[verb]
                talk = TALK[ahead]
        self._ahead = ahead
        self.unanswered.extend(commands)
        return "".join([f"{command.line}\r\n" for command in commands]).encode()

    def send_rcpt(self, mailbox: str) -> bytes | None:
        """As send() does with one RCPT in a transaction, where nothing is unanswered or unread.

        None where that isn't so, and nothing was done. Raises OurMistake as send() does.
        """
        if self.unanswered or self.stage is not _IN_MAIL or not self._reader.empty:
            return None
        command = Command("RCPT", f"RCPT TO:<{mailbox}>")
        self._check(command)
        self._ahead = _IN_MAIL
        self.unanswered.append(command)
        return f"{command.line}\r\n".encode()

    @staticmethod
    def _check(command: Command) -> None:
        line = command.line
        octets = len(line) if line.isascii() else len(line.encode())
        if octets > COMMAND_OCTETS_MAX or not line.isprintable():
            raise LocalProtocolError(f"a line that no server may be sent: {line!r}")

    @property
    def unread(self) -> bool:
        """Octets have come that belong to no reply taken yet."""
        return not self._reader.empty

    def receive(self, octets: bytes | bytearray) -> None:
        self._reader.feed(octets)

    def next_exchange(self) -> CommandReply | None:
        """The oldest command with its reply, or None until more octets come.

        Raises TheirMistake for what is no reply and for a reply nobody asked for.
        """
        reply = self._reader.next_reply()
        return None if reply is None else self._answer(reply)

    def complete_exchange(self, octets: bytes) -> CommandReply | None:
        """The oldest command and its reply, which these octets are, no less and no more.

        As receive() and next_turn() do, where nothing was left over before and nothing is
        after. None where that isn't so: the octets are received then. Raises TheirMistake.
        """
        reply = self._reader.whole_reply(octets)
        return None if reply is None else self._answer(reply)

    def _answer(self, reply: SmtpReply) -> CommandReply:
        if not self.unanswered:
            raise RemoteProtocolError(f"a reply nobody asked for: {str(reply)[:80]!r}")
        command = self.unanswered.popleft()
        if 220 <= reply.code <= 221 and command.verb not in ANSWERED_BY[reply.code]:
            raise RemoteProtocolError(f"{reply.code} in answer to {command.verb}")
        if reply.code == 421:  # RFC 5321 3.8: the server closes, whatever it was asked
            self.stage = Stage.CLOSED
        # A RCPT leaves the stage as it is. One accepted after its MAIL was refused is
        # the server's confusion: the caller sees both replies.
        elif command.verb != "RCPT" and reply.positive:
            self._advance(command, reply)
            self.opening_reply = reply
        return CommandReply(command, reply)

    def secured(self) -> None:
        """The TLS handshake follows: forget what was said in plain text (RFC 3207 4.2).

        Raises TheirMistake for octets behind the reply to STARTTLS. They were not sent within
        TLS, and would be read as if they had been (CVE-2011-0411).
        """
        if self.stage is not Stage.HANDSHAKE:
            raise LocalProtocolError(f"TLS in stage {self.stage.name}")
        if not self._reader.empty:
            raise RemoteProtocolError("plain text behind the reply to STARTTLS")
        self.stage = Stage.HELLO
        self.offer = NO_OFFER
        self.secure = True

    def _advance(self, command: Command, reply: SmtpReply) -> None:
        self.stage = TALK[self.stage].get(command.verb, self.stage)
        if command.verb == "EHLO":
            self.offer = read_offer(reply)
            if self.secure and self.offer.starttls:  # once is enough (RFC 3207 4.2)
                self.offer = replace(self.offer, starttls=False)
        elif command.verb == "HELO":
            self.offer = NO_OFFER
