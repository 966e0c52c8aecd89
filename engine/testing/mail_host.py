"""A mail host as a script: what it knows, how fast it is, and how it can go wrong.

The description is frozen; what it has seen is in its `record`. It talks over
any trio stream: in memory under virtual time, or on a real socket in the lab.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from math import inf
from random import Random

import trio

from mailprobe.engine.testing.faults import Fault, ReplyWriter, ResetConnection, as_octets
from mailprobe.engine.testing.host_log import HostLog, HostLogSession, LoggedCommand, rcpt_mailbox
from mailprobe.engine.testing.smtp_script import ScriptReply, SmtpScript
from mailprobe.engine.testing.tls import UpgradableStream

READ_OCTETS = 64 * 1024
WAITING_MAX = 5_000  # commands heard and not yet answered: more than any real server buffers
UNENDED_OCTETS_MAX = 64 * 1024  # octets without a line's end, then the host hangs up

EHLO_LINES = (
    "PIPELINING",
    "SIZE 10240000",
    "ETRN",
    "ENHANCEDSTATUSCODES",
    "8BITMIME",
    "DSN",
    "SMTPUTF8",
    "CHUNKING",
)


class HostAddress(Enum):
    """What becomes of a connection before the host can speak."""

    OPEN = "open"
    REFUSED = "refused"  # nobody listens there
    SILENT = "silent"  # the connect is never answered
    UNREACHABLE = "unreachable"  # no route (in memory only)


@dataclass(frozen=True, slots=True)
class MailHost:
    """One mail host, described; every default is a friendly Postfix.

    `replies` is keyed by a whole address, a local part or "@domain"; keys are
    lower case. `faults` is keyed by a verb (CONNECT stands for the banner, TLS for the
    handshake, in whose place the trouble comes, and the host hangs up after it), a
    verb and which one of the session it is ("RCPT 3"), a whole address or a local
    part. `{name}`, `{rcpt}` and the recipient's `{local}` part are filled in.
    """

    name: str = "mx.host.test"
    address: HostAddress = HostAddress.OPEN
    connect_s: float = 0.0  # until the connect succeeds (in memory only)

    # what it says
    banner: str = "220 {name} ESMTP Postfix"
    ehlo_lines: tuple[str, ...] = EHLO_LINES
    ehlo_reply: str | None = None  # in place of the lines above, "502 …" to want HELO
    helo_reply: str = "250 {name}"
    mail_reply: str = "250 2.1.0 Ok"
    mail_again_reply: str | None = None  # to a MAIL after `mails_accepted` of them; 421 hangs up
    mails_accepted: int = 1
    stale_reply: str | None = None  # to a MAIL after `stale_s` without a command; 421 hangs up
    stale_s: float = 1.0
    null_sender_reply: str | None = None  # a refusal of `MAIL FROM:<>`
    named_sender_reply: str | None = None  # a refusal of every other sender
    judges_sender_at_rcpt: bool = False  # these two refusals are said to RCPT
    tls_demanded_at: str | None = None  # "MAIL" or "RCPT": refused until TLS is spoken
    tls_demand: str = "530 5.7.0 Must issue a STARTTLS command first"
    starttls_reply: str = "220 2.0.0 Ready to start TLS"  # where `ehlo_lines` offer STARTTLS
    encoding: str = "utf-8"  # of its replies; "latin-1" in the field

    # whom it knows; whatever begins with "known" is known everywhere
    mailboxes: frozenset[str] = frozenset()
    domains: frozenset[str] | None = None  # None: it takes mail for any domain
    replies: Mapping[str, str | Sequence[str]] = field(default_factory=dict)
    default_known: str = "250 2.1.5 Ok"
    default_unknown: str = "550 5.1.1 <{rcpt}>: Recipient address rejected: User unknown"
    relay_reply: str = "554 5.7.1 <{rcpt}>: Relay access denied"
    catch_all: bool | frozenset[str] = False  # or the domains for which it is
    greylist_s: float | None = None  # an address is refused until so long after its first RCPT
    greylist_reply: str = "450 4.7.1 <{rcpt}>: Recipient address rejected: Greylisted"

    # how fast it is
    latency_s: float = 0.0  # a reply leaves so long after its command came: a round trip
    reply_s: float = 0.0  # each reply takes so long, one after the other: work
    unknown_delay_s: float = 0.0  # a tarpit: each refusal of an unknown mailbox takes so long
    slow_s: Mapping[str, float] = field(default_factory=dict)
    # ^ beginning of a local part -> its reply takes so long; infinite: it never comes

    # how it limits
    one_command_a_write: bool = False  # OpenSMTPD
    recipients_max: int | None = None  # in one transaction
    recipients_reply: str = "452 4.5.3 Error: too many recipients"
    transactions_max: int | None = None
    refusals_free: int | None = None  # refusals before each takes `refusal_delay_s`: Postfix, 10
    refusal_delay_s: float = 1.0
    refusals_max: int | None = None  # then 421: Postfix, 20
    nonmail_max: int | None = None  # EHLO, RSET and the like, then 554: Exim, 11 in all
    commands_max: int | None = None  # then 421
    connections_max: int | None = None
    connections_reply: str = "421 4.7.0 Error: too many connections from you"
    idle_s: float | None = None  # without a command for so long: 421 and hung up

    # how it goes wrong
    faults: Mapping[str, Fault] = field(default_factory=dict)
    troubled_sessions: int | None = None  # only the first so many sessions have troubles
    weather: tuple[tuple[float, Fault], ...] = ()  # (chance at each reply, trouble)
    splits: bool = False  # replies fall into pieces at random

    record: HostLog = field(init=False, default_factory=HostLog, compare=False, repr=False)

    def offers(self, keyword: str) -> bool:
        return self.ehlo_reply is None and any(
            line.split(" ", 1)[0].upper() == keyword for line in self.ehlo_lines
        )

    def has_mailbox(self, local: str) -> bool:
        return local.startswith("known") or local in self.mailboxes

    async def serve(self, stream: trio.abc.Stream, rng: Random | None = None) -> None:
        """Hold one session; the stream is closed at the end, however that comes.

        Ends as soon as the client has gone. `rng` decides what chance decides.
        """
        session = self.record.open_session(trio.current_time())
        if self.offers("STARTTLS"):
            stream = UpgradableStream(stream)
        try:
            async with trio.open_nursery() as nursery:
                line = _HostSession(
                    self, session, ReplyWriter(stream, rng or Random(0), self.splits)
                )
                nursery.start_soon(line.receive, nursery.cancel_scope)
                await line.reply()
                nursery.cancel_scope.cancel()
        finally:
            self.record.close_session(session)
            await stream.aclose()


@dataclass(frozen=True, slots=True)
class _PendingCommand:
    """A command under way through the host."""

    at_s: float
    line: str
    together: bool  # it was not alone in its write
    spoken: LoggedCommand


class _HostSession:
    """One session on a stream: an ear that never waits, a mouth that keeps the order."""

    def __init__(self, host: MailHost, session: HostLogSession, reply_writer: ReplyWriter) -> None:
        self._host = host
        self._session = session
        self._writer = reply_writer
        self._script = SmtpScript(host, session)
        self._upgradable = (
            reply_writer.stream if isinstance(reply_writer.stream, UpgradableStream) else None
        )
        self._verbs: Counter[str] = Counter()  # answered, those of a mailbox's own trouble left out
        self._received, self._next = trio.open_memory_channel[_PendingCommand](WAITING_MAX)
        self._troubled = host.troubled_sessions is None or session.number <= host.troubled_sessions

    async def receive(self, gone: trio.CancelScope) -> None:
        """Take commands as they come; cancel the session when the client has gone."""
        buffer = bytearray()
        how = "client"
        try:
            while octets := await self._writer.stream.receive_some(READ_OCTETS):
                buffer += octets
                *lines, rest = bytes(buffer).split(b"\n")
                buffer[:] = rest
                if len(rest) > UNENDED_OCTETS_MAX:
                    self._session.blame("a line without an end")
                    how = "host"
                    break
                self._session.turnarounds += bool(lines)
                for line in lines:
                    await self._process(line, together=len(lines) > 1 or bool(rest))
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            how = "reset"
        self._session.closed = self._session.closed or how
        gone.cancel()

    async def _process(self, octets: bytes, *, together: bool) -> None:
        session, now = self._session, trio.current_time()
        if not octets.endswith(b"\r"):
            session.blame(f"a line that ends without CR: {octets[:80]!r}")
        line = octets.removesuffix(b"\r").decode("utf-8", "replace")
        spoken = session.log_command(now, line)
        session.quit |= line.upper() == "QUIT"
        if self._upgradable is not None and line.upper() == "STARTTLS":
            self._upgradable.hold()
        if (mailbox := rcpt_mailbox(line)) is not None:
            session.recipients.append(mailbox)
            self._host.record.count(mailbox, now)
        await self._received.send(_PendingCommand(now, line, together, spoken))

    async def reply(self) -> None:
        """Greet, then answer each command in its order, until somebody hangs up."""
        connected = LoggedCommand(self._session.opened_at_s, "")
        try:
            if not await self._answer(connected, self._script.greet(), "CONNECT"):
                return
            while (received := await self._next_received()) is not None:
                said = self._script.receive(
                    received.line, received.at_s, together=received.together
                )
                if not await self._answer(received.spoken, said, received.line):
                    return
                if self._upgradable is not None and received.line.upper() == "STARTTLS":
                    if said.text.startswith("220") and not await self._shake_hands():
                        return
                    self._upgradable.release()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self._session.closed = self._session.closed or "reset"

    async def _shake_hands(self) -> bool:
        """Change to TLS; False where the session is over with that."""
        assert self._upgradable is not None
        if (fault := self._fault("TLS")) is not None:
            await fault.answer(self._writer, b"")
            self._session.closed = "reset" if isinstance(fault, ResetConnection) else "host"
            return False
        await self._upgradable.start_tls()
        self._script.secured()
        return True

    async def _next_received(self) -> _PendingCommand | None:
        """The next command; None when the host is tired of waiting, which it says."""
        if self._host.idle_s is None:
            return await self._next.receive()
        with trio.move_on_after(self._host.idle_s):
            return await self._next.receive()
        self._session.closed = "host"
        await self._writer.send(as_octets("421 4.4.2 Error: timeout exceeded"))
        return None

    async def _answer(self, spoken: LoggedCommand, said: ScriptReply, line: str) -> bool:
        """Send one reply at its time, or what goes wrong instead; say if the session goes on."""
        host, session = self._host, self._session
        spoken.reply = said.text
        if said.wait_s == inf:
            await trio.sleep_forever()
        due = max(spoken.at_s + host.latency_s, trio.current_time()) + host.reply_s + said.wait_s
        if due > trio.current_time():
            await trio.sleep_until(due)
        fault = self._fault(line)
        octets = as_octets(said.text, host.encoding)
        if fault is None:
            await self._writer.send(octets)
            goes_on = not said.close
        else:
            spoken.fault = type(fault).__name__
            goes_on = await fault.answer(self._writer, octets) and not said.close
        spoken.answered_at_s = trio.current_time()
        if not goes_on:
            polite = session.quit and fault is None and said.text.startswith("221")
            how = "quit" if polite else "reset" if isinstance(fault, ResetConnection) else "host"
            session.closed = session.closed or how
        return goes_on

    def _fault(self, line: str) -> Fault | None:
        """What goes wrong at this command: by its mailbox, by its verb, by chance."""
        host = self._host
        if not self._troubled:
            return None
        if (mailbox := rcpt_mailbox(line)) is not None:
            for key in (mailbox.lower(), mailbox.lower().rpartition("@")[0]):
                if key in host.faults:
                    return host.faults[key]
        verb = line.split(" ", 1)[0].upper()
        self._verbs[verb] += 1
        for key in (f"{verb} {self._verbs[verb]}", verb):
            if (fault := host.faults.get(key)) is not None:
                return fault
        for chance, fault in host.weather:
            if self._writer.rng.random() < chance:
                return fault
        return None
