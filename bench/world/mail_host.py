"""A mail host as a script, over any trio stream: in memory with virtual time, or a real socket."""

import socket
from collections import Counter
from dataclasses import dataclass
from functools import partial
from math import inf
from random import Random

import trio
from msgspec import Struct

from .faults import ReplyFault, ReplyWriter, ResetConnection, as_octets
from .host_description import EHLO_LINES, HostAddress, HostDescription
from .host_log import HostLogSession, LoggedCommand, rcpt_mailbox
from .smtp_script import ScriptReply, SmtpScript
from .tls import UpgradableStream

__all__ = ["EHLO_LINES", "HostAddress", "MailHost"]

TCP_ESTABLISHED = 1  # the first octet of Linux' struct tcp_info (include/net/tcp_states.h)
READ_OCTETS = 64 * 1024
WAITING_MAX = 5_000  # commands read and not yet answered: more than any real server buffers
UNENDED_OCTETS_MAX = 64 * 1024  # octets of one line; then the host hangs up


@dataclass(frozen=True, slots=True)
class MailHost(HostDescription):
    """A described host that can serve sessions."""

    async def serve(self, stream: trio.abc.Stream, rng: Random | None = None) -> None:
        """Serve one session, until the client has gone; then close the stream.

        `rng` makes the random choices.
        """
        session = self.record.open_session(
            trio.current_time(),
            _source_of(stream),
            # A host that sleeps before its replies counts a connection until it wakes up.
            (lambda: True) if self.sleeps_on else partial(_is_connected, stream),
        )
        if self.offers("STARTTLS"):
            stream = UpgradableStream(stream)
        try:
            async with trio.open_nursery() as nursery:
                conversation = _HostSession(
                    self, session, ReplyWriter(stream, rng or Random(0), self.splits)
                )
                nursery.start_soon(conversation.receive, nursery.cancel_scope)
                await conversation.answer_all()
                nursery.cancel_scope.cancel()
        finally:
            self.record.close_session(session)
            await stream.aclose()


def _source_of(stream: trio.abc.Stream) -> str:
    """The client's IP address; all clients in memory, and of a local socket, are one."""
    if not isinstance(stream, trio.SocketStream):
        return ""
    try:
        address = stream.socket.getpeername()
    except OSError:  # it has gone already
        return ""
    return str(address[0]) if isinstance(address, tuple) else ""


def _is_connected(stream: trio.abc.Stream) -> bool:
    """Whether the client has not ended its half; True where the kernel doesn't tell."""
    if not isinstance(stream, trio.SocketStream) or not hasattr(socket, "TCP_INFO"):
        return True
    try:
        info = stream.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)
    except OSError:
        return False
    return info == bytes([TCP_ESTABLISHED])


class _PendingCommand(Struct, frozen=True):
    """A command that was read and not answered yet."""

    at_s: float
    line: str
    together: bool  # its write held another command
    logged: LoggedCommand


class _HostSession:
    """One session: one task reads without waiting, another sends the replies in order."""

    def __init__(self, host: MailHost, session: HostLogSession, reply_writer: ReplyWriter) -> None:
        self._host = host
        self._session = session
        self._writer = reply_writer
        self._script = SmtpScript(host, session)
        self._upgradable = (
            reply_writer.stream if isinstance(reply_writer.stream, UpgradableStream) else None
        )
        # Answered, without those that had a fault of their mailbox.
        self._verbs: Counter[str] = Counter()
        self._commands, self._next = trio.open_memory_channel[_PendingCommand](WAITING_MAX)
        self._faulty = host.troubled_sessions is None or session.number <= host.troubled_sessions

    async def receive(self, gone: trio.CancelScope) -> None:
        """Read commands as they come; cancel the session when the client has gone."""
        buffer = bytearray()
        closed_by = "client"
        try:
            while octets := await self._writer.stream.receive_some(READ_OCTETS):
                buffer += octets
                *lines, rest = bytes(buffer).split(b"\n")
                buffer[:] = rest
                if len(rest) > UNENDED_OCTETS_MAX:
                    self._session.blame("a line without an end")
                    closed_by = "host"
                    break
                self._session.turnarounds += bool(lines)
                for line in lines:
                    await self._process(line, together=len(lines) > 1 or bool(rest))
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            closed_by = "reset"
        self._session.closed = self._session.closed or closed_by
        if self._host.sleeps_on:
            self._commands.close()  # what was read before is answered
        else:
            gone.cancel()

    async def _process(self, octets: bytes, *, together: bool) -> None:
        session, now = self._session, trio.current_time()
        if not octets.endswith(b"\r"):
            session.blame(f"a line that ends without CR: {octets[:80]!r}")
        line = octets.removesuffix(b"\r").decode("utf-8", "replace")
        logged = session.log_command(now, line)
        session.quit |= line.upper() == "QUIT"
        if self._upgradable is not None and line.upper() == "STARTTLS":
            self._upgradable.hold()
        if (mailbox := rcpt_mailbox(line)) is not None:
            session.recipients.append(mailbox)
            self._host.record.count(mailbox, now)
        await self._commands.send(_PendingCommand(now, line, together, logged))

    async def answer_all(self) -> None:
        """Greet, then answer each command in order, until one side hangs up."""
        connected = LoggedCommand(self._session.opened_at_s, "")
        greeting = self._script.greet()
        try:
            if greeting.teaser:
                await trio.sleep(self._host.latency_s)
                await self._writer.send(as_octets(greeting.teaser))
            if not await self._answer(connected, greeting, "CONNECT"):
                return
            while (pending := await self._next_pending()) is not None:
                reply = self._script.receive(pending.line, pending.at_s, together=pending.together)
                if not await self._answer(pending.logged, reply, pending.line):
                    return
                if self._upgradable is not None and pending.line.upper() == "STARTTLS":
                    if reply.text.startswith("220") and not await self._start_tls():
                        return
                    self._upgradable.release()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self._session.closed = self._session.closed or "reset"

    async def _start_tls(self) -> bool:
        """Change to TLS; return False if that ends the session."""
        assert self._upgradable is not None
        if (fault := self._fault("TLS")) is not None:
            await fault.answer(self._writer, b"")
            self._session.closed = "reset" if isinstance(fault, ResetConnection) else "host"
            return False
        await self._upgradable.start_tls()
        self._script.secured()
        return True

    async def _next_pending(self) -> _PendingCommand | None:
        """The next command; None after `idle_s` without one, when 421 is sent."""
        try:
            if self._host.idle_s is None:
                return await self._next.receive()
            with trio.move_on_after(self._host.idle_s):
                return await self._next.receive()
        except trio.EndOfChannel:  # the client has gone
            return None
        self._session.closed = "host"
        await self._writer.send(as_octets("421 4.4.2 Error: timeout exceeded"))
        return None

    async def _answer(self, logged: LoggedCommand, reply: ScriptReply, line: str) -> bool:
        """Send one reply at its time, or its fault instead; return whether the session goes on."""
        host, session = self._host, self._session
        logged.reply = reply.text
        if reply.wait_s == inf:
            await trio.sleep_forever()
        due = max(logged.at_s + host.latency_s, trio.current_time()) + host.reply_s + reply.wait_s
        if due > trio.current_time():
            await trio.sleep_until(due)
        if not reply.text:  # hangs up without a word
            session.closed = session.closed or "host"
            return False
        fault = self._fault(line)
        octets = as_octets(reply.text, host.encoding)
        if fault is None:
            await self._writer.send(octets)
            goes_on = not reply.close
        else:
            logged.fault = type(fault).__name__
            goes_on = await fault.answer(self._writer, octets) and not reply.close
        logged.answered_at_s = trio.current_time()
        if not goes_on:
            polite = session.quit and fault is None and reply.text.startswith("221")
            closed_by = (
                "quit" if polite else "reset" if isinstance(fault, ResetConnection) else "host"
            )
            session.closed = session.closed or closed_by
        return goes_on

    def _fault(self, line: str) -> ReplyFault | None:
        """The fault at this command: by its mailbox, by its verb, or by chance."""
        host = self._host
        if not self._faulty:
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
