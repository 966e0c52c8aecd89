"""Runs one SMTP conversation over a byte channel, with a read deadline for each reply.

A reply must be complete within `read_s` seconds of its command's write or of the reply
before it, whichever is later. Octets that arrive slowly do not extend this. After any
failure the connection can only be closed: `usable` stays false, so that a late reply
is never paired with another command.
"""

import ssl

import trio

from mailprobe.engine.net.reactor import GONE, LATE_GRACE_S, ByteChannel, OnOctets, StreamChannel
from mailprobe.engine.net.tls import TlsChannel
from mailprobe.engine.smtp import wire
from mailprobe.engine.smtp.wire import (
    CONNECT,
    QUIT,
    Command,
    CommandReply,
    Conversation,
    LocalProtocolError,
    RemoteProtocolError,
    Stage,
    rcpt,
)

HANG_UP_S = 0.05  # a reading server sees the end of the stream within a round trip
QUIT_S = 0.3  # the permit is held meanwhile; a server that has read QUIT closes by itself


class ReadTimedOut(Exception):
    """The read deadline passed before the reply was complete."""


class Overdue(ReadTimedOut):
    """The caller's own deadline passed; the host is not at fault."""


class ConnectionLost(Exception):
    """The server closed or reset the connection; the message says which."""


class SmtpConnection:
    """One SMTP connection. Never used by two tasks at once."""

    def __init__(self, line: ByteChannel | trio.abc.Stream, read_s: float) -> None:
        self.conversation = Conversation()
        self.now = trio.lowlevel.current_clock().current_time
        self._channel = StreamChannel(line) if isinstance(line, trio.abc.Stream) else line
        self._read_s = read_s
        # Seconds, at least, for which nothing has come since the last octets received.
        self.silent_s = self._channel.silent_s
        self.sent_at = self.received_at = self.now()  # of the last write and of the last reply
        self._arrived_at = self.received_at  # of the last octets read
        self._failed = False
        self.unsent = b""  # octets that the system did not take at once, for flush()
        self._mute = False  # no more may be written: a write was cut short, or a reply was no SMTP

    @property
    def usable(self) -> bool:
        """True if another command may be sent: nothing failed, nothing is unanswered or unread."""
        conversation = self.conversation
        return not self._failed and conversation.quiet and conversation.stage is not Stage.CLOSED

    async def send(self, *commands: Command) -> None:
        """Write a group of commands in one go.

        Raises ReadTimedOut if the server does not read them in time, ConnectionLost,
        and RemoteProtocolError if it sent a reply without a command.
        """
        if not self.send_now(*commands):
            await self.flush()

    def send_now(self, *commands: Command) -> bool:
        """Write what the system takes of these commands at once; False if flush() must follow.

        Raises RemoteProtocolError if the server sent a reply without a command.
        """
        if self.conversation.unread and not self.conversation.unanswered:
            self._failed = True
            raise RemoteProtocolError("it spoke without being asked")
        return self._write(self.conversation.send(*commands))

    def send_rcpt_now(self, mailbox: str) -> bool:
        """Do what send_now() does for one RCPT."""
        octets = self.conversation.send_rcpt(mailbox)
        return self.send_now(rcpt(mailbox)) if octets is None else self._write(octets)

    def _write(self, octets: bytes) -> bool:
        self.sent_at = self.now()
        try:
            sent = self._channel.send_now(octets)
        except GONE:
            self.unsent = octets  # flush() meets the error again
            return False
        if sent == len(octets):
            return True
        self._mute = True
        self.unsent = octets[sent:]
        return False

    async def flush(self) -> None:
        """Write what the system did not take at once. Raises ReadTimedOut, ConnectionLost."""
        octets, self.unsent = self.unsent, b""
        try:
            await self._channel.send(octets, self._read_s)
            self._mute = False
        except trio.TooSlowError:
            self._failed = True
            raise ReadTimedOut from None
        except GONE as error:
            # The server may have replied before it closed: receive_reply() returns that reply.
            if not await self._reads_last_reply():
                self._failed = True
                raise ConnectionLost("closed by the server") from error

    async def _reads_last_reply(self) -> bool:
        """After a failed write: has a reply come, such as 421, that explains it?"""
        try:
            await self._channel.wait(self.now() + LATE_GRACE_S)
            octets = self._channel.receive()
        except GONE:
            return False
        self.conversation.receive(octets or b"")
        return bool(octets)

    def already_received(self) -> CommandReply | None:
        """Return the next reply if it was read already, else None. Raises RemoteProtocolError."""
        try:
            turn = self.conversation.next_exchange()
        except RemoteProtocolError:
            self._failed = self._mute = True
            raise
        if turn is not None:
            self.received_at = self._arrived_at
        return turn

    async def receive_reply(self, *, until: float = float("inf")) -> CommandReply:
        """Return the oldest unanswered command with its reply.

        `until` (trio's clock) ends the wait earlier than the read deadline does. Raises
        ReadTimedOut, or Overdue if `until` passed first; ConnectionLost, RemoteProtocolError.
        """
        try:
            while (turn := self.already_received()) is None:
                await self._channel.wait(self.deadline(until))
                if not self.receive():
                    self.check_clock(until)
        except BaseException:
            self._failed = True
            raise
        return turn

    @property
    def since(self) -> float:
        """When the oldest unanswered command began to wait: at its write, or the reply before."""
        return self.sent_at if self.sent_at > self.received_at else self.received_at

    def deadline(self, until: float) -> float:
        """Return when the reply to the oldest unanswered command must be complete."""
        latest = self.sent_at if self.sent_at > self.received_at else self.received_at
        deadline = latest + self._read_s
        return deadline if deadline < until else until

    def check_clock(self, until: float) -> None:
        """Raise ReadTimedOut if the deadline has passed, or Overdue if the deadline was `until`."""
        deadline = self.deadline(until)
        if self.now() >= deadline:
            self._failed = True
            raise Overdue if deadline == until else ReadTimedOut

    def receive(self) -> bool:
        """Read what has come; return whether anything has. Raises ConnectionLost."""
        octets = self._octets()
        if octets is None:
            return False
        self.conversation.receive(octets)
        return True

    def receive_exchange(self) -> CommandReply | None:
        """Read what has come; return the command and its reply if that is exactly one reply.

        None if nothing, or more or less than one reply has come: then already_received()
        continues. Raises ConnectionLost, RemoteProtocolError.
        """
        try:
            octets = self._channel.receive()
            if not octets:
                self._check_open(octets)
                return None
            turn = self.conversation.next_exchange(octets)
        except GONE as error:
            raise self._lost("reset by the server") from error
        except RemoteProtocolError:
            self._failed = self._mute = True
            raise
        self._arrived_at = self._channel.arrived_at
        if turn is not None:
            self.received_at = self._arrived_at
        return turn

    def _octets(self) -> bytes | None:
        """Return what has come, None if nothing has. Raises ConnectionLost."""
        try:
            octets = self._channel.receive()
        except GONE as error:
            raise self._lost("reset by the server") from error
        if not octets:
            self._check_open(octets)
            return None
        self._arrived_at = self._channel.arrived_at
        return octets

    def _check_open(self, octets: bytes | None) -> None:
        """Raise ConnectionLost for empty octets, which mean the end; None means nothing yet."""
        if octets is not None:
            raise self._lost("closed by the server")

    def _lost(self, words: str) -> ConnectionLost:
        self._failed = True
        return ConnectionLost(words)

    def unread(self) -> bool:
        """Has anything come that belongs to no reply yet?"""
        return self.conversation.unread

    async def follow(self, go_on: OnOctets, until: float) -> None:
        """Call `go_on` when octets come or `until` passes, until it ends the wait.

        It returns the next deadline, or None to end the wait. It may be called from another
        task and must not raise. A cancelled wait leaves the connection unusable.
        """
        try:
            await self.receive_until(go_on, until)
        except BaseException:
            self._failed = True
            raise

    async def receive_until(self, go_on: OnOctets, until: float) -> None:
        """As follow(), while nothing is unanswered; cancelling leaves the connection usable."""
        self._channel.on_octets = go_on
        try:
            further = go_on() if self.conversation.unread else until
            while further is not None and not await self._channel.wait(further):
                further = go_on()
        finally:
            self._channel.on_octets = None

    def replied(self) -> bool:
        """Did the server send or close while nothing was unanswered? Then it is unusable."""
        try:
            octets = self._channel.receive()
        except GONE:
            octets = b""
        if octets is None:
            return False
        self.conversation.receive(octets)
        self._failed = True
        return True

    def interrupt(self) -> None:
        """End the wait. The waiter's `go_on` is called and returns whether to continue."""
        self._channel.interrupt()

    async def start_tls(self, *, until: float = float("inf")) -> str:
        """Start TLS after STARTTLS was accepted; return its version.

        The certificate is not checked. The handshake has the time of one reply. Raises
        what receive_reply() raises.
        """
        try:
            self.conversation.secured()
            line = TlsChannel(self._channel)
            await self._shake_hands(line, self.deadline(until), until)
            self._channel, self.silent_s = line, line.silent_s
            self.received_at = self.now()
            self.receive()  # octets that came with the handshake's end answer no command
        except BaseException:
            self._failed = True
            raise
        return line.version

    @staticmethod
    async def _shake_hands(line: TlsChannel, deadline: float, until: float) -> None:
        try:
            await line.handshake(deadline)
        except trio.TooSlowError:
            raise (Overdue if deadline == until else ReadTimedOut) from None
        except ssl.SSLError as error:
            raise RemoteProtocolError(
                f"no TLS: {getattr(error, 'reason', None) or error}"
            ) from error
        except GONE as error:
            raise ConnectionLost("closed by the server") from error

    def lines_of(self, turn: CommandReply) -> list[tuple[float, bool, str]]:
        """Return the exchange as lines for an explanation: (time, sent by us, text)."""
        lines = [(self.received_at, False, line) for line in str(turn.reply).split("\n")]
        if turn.command is not CONNECT:
            lines.insert(0, (self.sent_at, True, turn.command.line))
        return lines

    def unanswered_lines(self, recipient: str = "") -> list[tuple[float, bool, str]]:
        """Return the commands without a reply, as lines_of() does; no RCPT but the recipient's."""
        own = wire.rcpt(recipient)
        lines = [
            command.line
            for command in self.conversation.unanswered
            if command is not CONNECT and (command.verb != "RCPT" or command == own)
        ]
        return [(self.sent_at, True, line) for line in dict.fromkeys(lines)]

    async def quit(self) -> bool:
        """Send QUIT and close; False if the server still owes a reply, and nothing is closed.

        If nothing is unanswered, wait at most QUIT_S for the reply to QUIT. Otherwise send
        QUIT where it may stand behind the rest, end our half, and wait at most HANG_UP_S for
        the server to do the same. If it does not, it may count the connection as open until
        its reply is sent: see ended().
        """
        is_done = True
        try:
            is_done = await self._quit()
        finally:
            self._failed = True
            if is_done:
                await self.close()
        return is_done

    async def _quit(self) -> bool:
        try:
            if self.usable:
                await self.send(QUIT)
                await self.receive_reply(until=self.now() + QUIT_S)
                return True
            if not self.conversation.unanswered:
                await self._channel.hang_up(HANG_UP_S)
                return True
            await self._send_last_quit()
            return await self.ended(HANG_UP_S)
        except ReadTimedOut:
            return False
        except (ConnectionLost, RemoteProtocolError):
            return True

    async def _send_last_quit(self) -> None:
        """Send QUIT behind unanswered commands, if it may stand there (RFC 2920 3.1)."""
        if self._mute:
            return
        try:
            await self._channel.send(self.conversation.send(QUIT), HANG_UP_S)
        except (LocalProtocolError, trio.TooSlowError, *GONE):
            return

    async def ended(self, within_s: float) -> bool:
        """End our half if that is not done, and wait for the server to end its own; False in vain.

        What it still sends is dropped.
        """
        return await self._channel.hang_up(within_s)

    async def close(self) -> None:
        """Close at once, whatever is unanswered. Never blocks."""
        self._failed = True
        await self._channel.close()
