"""The client's half of SMTP without a socket (RFC 5321, 2034, 2920, 3207, 6531, 9422).

`Conversation` knows which command may follow which, how replies are framed and
which commands are still unanswered. It pairs a reply only with the oldest
unanswered command, and never writes control characters. It never waits, never
reads a clock and never repairs: a reply that does not parse raises
`RemoteProtocolError`, a command that is not allowed raises `LocalProtocolError`.

A reply must be complete within `read_s` seconds of its command's write or of the reply
before it, whichever is later. Octets that arrive slowly do not extend this. After any
failure the connection can only be closed: `usable` stays false, so that a late reply
is never paired with another command.
"""

import re
from collections import deque
from enum import Enum, auto
from functools import cached_property
from math import inf

import msgspec
from msgspec.structs import replace

REPLY_LINES_MAX = 100  # the longest EHLO reply seen has about 30
EMPTY_LINES_MAX = 500  # of a conversation
REPLY_OCTETS_MAX = 16 * 1024
COMMAND_OCTETS_MAX = 512 + 16  # RFC 5321 4.5.3.1.4, and room for SMTPUTF8 (RFC 6531 3.4)


class RemoteProtocolError(Exception):
    """The server sent something that is not SMTP, or a reply without a command."""


class LocalProtocolError(Exception):
    """A command that is not allowed at this stage: a bug of ours."""


class ReadTimedOut(Exception):
    """The read deadline passed before the reply was complete."""


class Overdue(ReadTimedOut):
    """The caller's own deadline passed; the host is not at fault."""


class ConnectionLost(Exception):
    """The server closed or reset the connection; the message says which."""


class ClosedUnasked(ConnectionLost):
    """The server closes with a 421 that answers no command (RFC 5321 3.8).

    A reply before it may still be an earlier command's, and the 421 that of the latest one.
    """


class Stage(Enum):
    """The state of a session."""

    BANNER = auto()  # connected, the banner has not come
    HELLO = auto()  # the banner came, EHLO is next
    READY = auto()  # EHLO or HELO accepted, no transaction
    MAIL = auto()  # in a transaction: RCPT is allowed
    HANDSHAKE = auto()  # STARTTLS accepted: no command before TLS is established
    CLOSED = auto()

    __hash__ = object.__hash__  # members are unique; Enum's own hash is slow Python code


# stage -> allowed verbs -> the stage after a positive reply
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
    Stage.HANDSHAKE: {},  # only SmtpState.begin_tls() leaves it
    Stage.CLOSED: {},
}

# RFC 2920 3.1: these may stand anywhere in a group; NOOP and QUIT only at its end.
PIPELINED = ("MAIL", "RCPT", "RSET")
IN_ONE_GROUP = frozenset(
    (verb, next_) for verb in PIPELINED for next_ in (*PIPELINED, "NOOP", "QUIT")
)


class Command(msgspec.Struct, frozen=True, gc=False):  # built for each recipient, in 0.1 µs
    """A command: its verb, and the whole line without CRLF."""

    verb: str
    line: str


# Codes that answer only these commands (RFC 5321 4.2.2, RFC 3207 4).
ANSWERED_BY = {220: ("CONNECT", "STARTTLS"), 221: ("QUIT",)}

CONNECT = Command("CONNECT", "")  # stands for opening the connection; the banner answers it
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
    teaser: tuple[str, ...] = ()  # lines of a greeting before those of its code, as they came

    @property
    def positive(self) -> bool:
        return 200 <= self.code < 300

    @cached_property
    def text(self) -> str:
        """All lines joined by spaces, without the enhanced code at the beginning of a line."""
        return " ".join(_without_enhanced(line) for line in self.lines)

    @cached_property
    def enhanced(self) -> str | None:
        """The first enhanced code that begins a line (RFC 2034), such as `5.1.1`, or None."""
        for line in self.lines:
            if found := _ENHANCED.match(line):
                return found[1]
        return None

    def __str__(self) -> str:
        last = len(self.lines) - 1
        lines = [
            f"{self.code}{'-' if place < last else ' '}{line}"
            for place, line in enumerate(self.lines)
        ]
        return "\n".join(line.rstrip() for line in (*self.teaser, *lines))


def _without_enhanced(line: str) -> str:
    found = _ENHANCED.match(line)
    return line[found.end() :].lstrip(" )]-") if found else line.lstrip()


class ReplyReader:
    """Splits octets into whole replies. Raises RemoteProtocolError beyond its limits.

    All lines of a reply have one code. Only lines of 220, a greeting's, may be followed by lines
    of another: postscreen sends `220-` at once, decides later, and its last line counts.
    """

    def __init__(self) -> None:
        self._buffer = b""
        self._teaser: list[str] = []
        self._at = 0  # everything before it has been read
        self._lines: list[str] = []
        self.empty = True  # nothing is buffered, not even a part of a line
        self._code = 0
        self._octets = 0  # of the incomplete reply, whole lines only
        self._empty_lines = 0  # between replies, in all
        self._latest_line: bytes | None = None  # of a one-line reply; hosts repeat their replies
        self._latest_octets: bytes | None = None  # of the latest reply, if they came in one read
        self._latest = SmtpReply(0)

    def feed(self, octets: bytes | bytearray) -> None:
        self._buffer = self._buffer[self._at :] + octets if self._buffer else bytes(octets)
        self._at = 0
        self.empty = self.empty and not octets

    def next_reply(self, octets: bytes = b"") -> SmtpReply | None:
        """Return the next whole reply; None until more octets come. Raises RemoteProtocolError.

        `octets` have just come, and are fed before.
        """
        if octets:
            if octets == self._latest_octets and self.empty:
                return self._latest
            self.feed(octets)
        if not self._lines:
            self._skip_empty_lines()
        while (end := self._buffer.find(b"\n", self._at)) >= 0:
            line, size = self._buffer[self._at : end], end + 1 - self._at
            self._at = end + 1
            if not self._lines and line == self._latest_line:
                self._skip_empty_lines()
                return self._latest
            self._octets += size
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
        reply = SmtpReply(self._code, tuple(self._lines), tuple(self._teaser))
        if self._teaser:
            self._teaser.clear()
        elif len(self._lines) == 1:
            self._latest_line, self._latest = last_line, reply
            self._latest_octets = self._buffer if len(last_line) + 1 == len(self._buffer) else None
        self._lines.clear()
        self._octets = 0
        self._skip_empty_lines()
        return reply

    def _skip_empty_lines(self) -> None:
        """Pass over empty lines between replies, which some hosts send behind a greeting."""
        while self._buffer.startswith(b"\r\n", self._at):
            self._at += 2
            self._empty_lines += 1
            if self._empty_lines > EMPTY_LINES_MAX:
                raise RemoteProtocolError(f"more than {EMPTY_LINES_MAX} empty lines")
        self.empty = self._at == len(self._buffer)

    def _read_line(self, octets: bytes) -> bool:
        """Add one line to the incomplete reply; return whether another one follows."""
        line = _decode(octets).rstrip("\r")
        code, mark = line[:3], line[3:4]
        # The last: a greeting of PIX MailGuard.
        if not (_CODE.fullmatch(code) and mark in ("", " ", "-")) and not line.startswith("220*"):
            raise RemoteProtocolError(f"not a reply: {line[:80]!r}")
        if self._lines and int(code) != self._code:
            if self._code != 220:
                was = self._code
                raise RemoteProtocolError(f"a reply that changes its code from {was} to {code}")
            self._teaser = [f"220-{text}" for text in self._lines]
            self._lines.clear()
        if len(self._lines) + len(self._teaser) >= REPLY_LINES_MAX:
            raise RemoteProtocolError(f"a reply of more than {REPLY_LINES_MAX} lines")
        self._code = int(code)
        self._lines.append(line[4:])
        return mark == "-"


GB_SHARE = 0.5  # of the letters beyond ASCII; the rest may be rarer ones, or traditional


def _decode(octets: bytes) -> str:
    """Decode as UTF-8 (ASCII, or RFC 6531), else as GBK if it looks so, else as Latin-1."""
    try:
        return octets.decode("utf-8")
    except UnicodeDecodeError:
        return _decode_gbk(octets) or octets.decode("latin-1")


def _decode_gbk(octets: bytes) -> str:
    """Return the text if most of what is not ASCII is common Chinese, at least two letters."""
    try:
        text = octets.decode("gbk")
    except UnicodeDecodeError:
        return ""
    beyond = [letter for letter in text if letter > "\x7f"]
    common = sum(_is_common(letter) for letter in beyond)
    return text if common >= max(2, GB_SHARE * len(beyond)) else ""


def _is_common(letter: str) -> bool:
    """Is it of the first level of GB 2312, or a mark? Latin-1 text read as GBK has few of these."""
    octets = letter.encode("gbk")
    leads = b"\xb0" <= octets[:1] <= b"\xd7" or b"\xa1" <= octets[:1] <= b"\xa3"
    return leads and octets[1:] >= b"\xa1"


class Offer(msgspec.Struct, frozen=True):
    """The extensions that the server's EHLO reply offers."""

    pipelining: bool = False
    smtputf8: bool = False
    starttls: bool = False
    recipients_max: int | None = None  # LIMITS RCPTMAX, for one transaction (RFC 9422)
    transactions_max: int | None = None  # LIMITS MAILMAX, for one session
    domains_max: int | None = None  # LIMITS RCPTDOMAINMAX, for one transaction


NO_OFFER = Offer()


def read_offer(reply: SmtpReply) -> Offer:
    """Read an EHLO reply. Misspelt keywords and limits count as not offered."""
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


class SmtpState(msgspec.Struct, eq=False):
    """How far a session has come, what its server offers, and whether it can go on."""

    stage: Stage = Stage.BANNER
    offer: Offer = NO_OFFER
    opening_reply: SmtpReply | None = None  # the latest positive one, except to RCPT
    secure: bool = False  # TLS is established
    failed: bool = False  # the connection can only be closed

    def advance(self, command: Command, reply: SmtpReply) -> None:
        """A command other than RCPT was accepted."""
        self.opening_reply = reply
        self.stage = TALK[self.stage].get(command.verb, self.stage)
        if command.verb == "EHLO":
            self.offer = read_offer(reply)
            if self.secure and self.offer.starttls:  # once is enough (RFC 3207 4.2)
                self.offer = replace(self.offer, starttls=False)
        elif command.verb == "HELO":
            self.offer = NO_OFFER

    def begin_tls(self) -> None:
        """The TLS handshake follows: what was offered in plain text is discarded (RFC 3207 4.2)."""
        if self.stage is not Stage.HANDSHAKE:
            raise LocalProtocolError(f"TLS in stage {self.stage.name}")
        self.stage, self.offer, self.secure = Stage.HELLO, NO_OFFER, True

    def close(self) -> None:
        """The server closes, or does not speak SMTP: no command may follow, not even QUIT."""
        self.stage = Stage.CLOSED

    def fail(self) -> None:
        """The connection can only be closed."""
        self.failed = True


class Conversation:
    """One session, from the banner to QUIT, as octets and times in and octets out.

    `send` adds the octets of a group of commands to `outgoing`, which the caller writes at once.
    `receive` and `pass_time` begin a step at a time of the caller's clock. `next_exchange` pairs
    replies with commands, oldest first.
    """

    def __init__(self, read_s: float = inf, now: float = 0.0) -> None:
        self.state = SmtpState()
        self.unread = False  # octets have come that belong to no reply returned so far
        self.unanswered: deque[Command] = deque([CONNECT])
        self.outgoing: list[bytes] = []  # whoever writes them clears the list
        self.now = now  # of the present step
        self.sent_at = now  # of the latest commands
        self.received_at = now  # when the latest reply had come
        self.silent_s = 0.0  # at least so long nothing came after the latest octets
        self.lost = ""  # why no more octets come: the server closed, or reset the connection
        self._read_s = read_s
        self._reader = ReplyReader()
        self._fresh = b""  # octets that the reader was not fed yet
        self._came = False  # octets have come in this step
        self._arrived_at = now  # of the latest octets
        self._ahead = Stage.BANNER  # the stage if every unanswered command is accepted

    @property
    def usable(self) -> bool:
        """True if another command may be sent: nothing failed, nothing is unanswered or unread."""
        state = self.state
        gone = state.failed or self.lost or state.stage is Stage.CLOSED
        return not (gone or self.unanswered or self.unread)

    # -- sending -------------------------------------------------------------------------------

    def send(self, *commands: Command) -> None:
        """Add the octets of these commands, which are unanswered from now on, to `outgoing`.

        Raises RemoteProtocolError if the server sent a reply without a command, and
        LocalProtocolError if a command is not allowed here, or if a line is too long or contains
        a control character.
        """
        if not self.unanswered:
            self._ahead = self.state.stage
            if self.unread:
                self.state.fail()
                raise RemoteProtocolError("it spoke without being asked")
        ahead, before = self._ahead, self.unanswered[-1] if self.unanswered else None
        talk, pipelining, octets = TALK[ahead], self.state.offer.pipelining, ""
        for command in commands:
            verb = command.verb
            if verb not in talk:
                raise LocalProtocolError(f"{verb} in stage {ahead.name}")
            if before is not None and not (pipelining and (before.verb, verb) in IN_ONE_GROUP):
                raise LocalProtocolError(f"{verb} before {before.verb} was answered")
            line = command.line
            if len(line) > COMMAND_OCTETS_MAX or not (line.isascii() and line.isprintable()):
                self._check(command)
            octets += f"{line}\r\n"
            before = command
            if talk[verb] is not ahead:
                ahead = talk[verb]
                talk = TALK[ahead]
        self._ahead = ahead
        self.unanswered.extend(commands)
        self.outgoing.append(octets.encode())
        self.sent_at = self.now

    @staticmethod
    def _check(command: Command) -> None:
        """Raise LocalProtocolError for a bad line. Callers let plain ones pass without a call."""
        line = command.line
        octets = len(line) if line.isascii() else len(line.encode())
        if octets > COMMAND_OCTETS_MAX or not line.isprintable():
            raise LocalProtocolError(f"a line that no server may be sent: {line!r}")

    # -- receiving -----------------------------------------------------------------------------

    def read_clock(self, now: float) -> None:
        """Another step of the same turn begins."""
        self.now = now

    def pass_time(self, now: float) -> None:
        """A step begins, and nothing has come."""
        self.now, self._came = now, False

    def receive(
        self, octets: bytes, now: float = 0.0, arrived_at: float = 0.0, silent_s: float = 0.0
    ) -> None:
        """A step begins: these have come at `arrived_at`, and then nothing for `silent_s` at least."""
        self.now, self._came, self.unread = now, True, True
        self._arrived_at, self.silent_s = arrived_at, silent_s
        self._fresh = self._fresh + octets if self._fresh else octets

    def end(self, now: float, words: str) -> None:
        """A step begins: the server has closed the connection, or reset it, as `words` say."""
        self.now, self._came, self.lost = now, False, words

    def next_exchange(self) -> CommandReply | None:
        """Return the oldest command with its reply, or None until more octets come.

        Raises RemoteProtocolError for a malformed reply, and for a reply without a command, but
        ClosedUnasked if that is 421.
        """
        octets, self._fresh = self._fresh, b""
        try:
            reply = self._reader.next_reply(octets)
        except RemoteProtocolError:
            self._end()
            raise
        self.unread = not self._reader.empty
        if reply is None:
            return None
        if not self.unanswered:
            self._end()
            if reply.code == 421:
                raise ClosedUnasked(f"closed by the server: 421 {reply.text[:80]}")
            raise RemoteProtocolError(f"an unsolicited reply: {str(reply)[:80]!r}")
        command = self.unanswered.popleft()
        if 220 <= reply.code <= 221 and command.verb not in ANSWERED_BY[reply.code]:
            self._end()
            raise RemoteProtocolError(f"{reply.code} in answer to {command.verb}")
        if reply.teaser and command is not CONNECT:
            self._end()
            raise RemoteProtocolError(f"220 and {reply.code} in answer to {command.verb}")
        if reply.code == 421:  # RFC 5321 3.8: the server closes, whatever the command was
            self.state.close()
        # RCPT does not change the stage. If the server accepts one after it refused MAIL,
        # the caller sees both replies.
        elif command.verb != "RCPT" and reply.positive:
            self.state.advance(command, reply)
        self.received_at = self._arrived_at
        return CommandReply(command, reply)

    def reply_behind(self, goodbye: CommandReply) -> CommandReply | None:
        """Return the next reply that has come, as one to the command that got this 421.

        The 421 came unasked then. None if no whole reply has come. Raises RemoteProtocolError
        for a malformed one.
        """
        self.unanswered.appendleft(goodbye.command)
        behind = self.next_exchange()
        if behind is None:
            self.unanswered.popleft()
        return behind

    # -- the clock -----------------------------------------------------------------------------

    @property
    def since(self) -> float:
        """When the oldest unanswered command began to wait: at its write, or the reply before."""
        return self.sent_at if self.sent_at > self.received_at else self.received_at

    def deadline(self, until: float = inf, within_s: float = inf) -> float:
        """Return when the reply to the oldest unanswered command must be complete.

        At `until` at the latest, or when it has waited for `within_s`.
        """
        latest = self.sent_at if self.sent_at > self.received_at else self.received_at
        deadline = latest + (within_s if within_s < self._read_s else self._read_s)
        return deadline if deadline < until else until

    def check_clock(self, until: float = inf) -> None:
        """The reply is not whole: raise if it will not come, or if nothing came and it is too late.

        ConnectionLost if the server has closed, ReadTimedOut if the deadline has passed, or
        Overdue if the deadline was `until`.
        """
        if self._came:
            return
        if self.lost:
            self.state.fail()
            raise ConnectionLost(self.lost)
        deadline = self.deadline(until)
        if self.now >= deadline:
            self.state.fail()
            raise Overdue if deadline == until else ReadTimedOut

    # -- TLS -----------------------------------------------------------------------------------

    def secured(self) -> None:
        """The reply to STARTTLS was positive: the TLS handshake follows.

        Raises RemoteProtocolError for octets after that reply. They were sent in plain text and
        would be read as if sent within TLS (CVE-2011-0411).
        """
        if self.unread and self.state.stage is Stage.HANDSHAKE:
            raise RemoteProtocolError("plain text behind the reply to STARTTLS")
        self.state.begin_tls()

    def shaken_hands(self, now: float) -> None:
        """TLS is established: the next reply is due from now on."""
        self.now = self.received_at = now

    def _end(self) -> None:
        """The server does not speak SMTP: no command may follow, not even QUIT."""
        self.state.close()
        self._ahead = Stage.CLOSED

    # -- for an explanation --------------------------------------------------------------------

    def lines_of(self, turn: CommandReply) -> list[tuple[float, bool, str]]:
        """Return the exchange as lines for an explanation: (time, sent by us, text)."""
        lines = [(self.received_at, False, line) for line in str(turn.reply).split("\n")]
        if turn.command is not CONNECT:
            lines.insert(0, (self.sent_at, True, turn.command.line))
        return lines

    def unanswered_lines(self, recipient: str = "") -> list[tuple[float, bool, str]]:
        """Return the commands without a reply, as lines_of() does; no RCPT but the recipient's."""
        own = rcpt(recipient)
        lines = [
            command.line
            for command in self.unanswered
            if command is not CONNECT and (command.verb != "RCPT" or command == own)
        ]
        return [(self.sent_at, True, line) for line in dict.fromkeys(lines)]
