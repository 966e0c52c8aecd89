"""A Conversation over a line, with the read clock.

Each reply, complete, has `read_s` from its command's write or from the reply
before it, whichever is later; octets that drip in do not extend it. After any
failure the connection is good for nothing but closing: `usable` is false and
stays so, so that a late reply can't be taken for another question's answer.
"""

import ssl

import trio

from mailprobe.engine.net.reactor import GONE, LATE_GRACE_S, ByteChannel, OnOctets, StreamChannel
from mailprobe.engine.net.tls import TlsChannel
from mailprobe.engine.smtp.wire import (
    CONNECT,
    QUIT,
    Command,
    CommandReply,
    Conversation,
    RemoteProtocolError,
    Stage,
    rcpt,
)

HANG_UP_S = 0.05  # a server that listens sees our end within a round trip
QUIT_S = 0.3  # a seat is held meanwhile; a server that has read QUIT needs no more of us


class ReadTimedOut(Exception):
    """The read clock ran out before the reply was complete."""


class Overdue(ReadTimedOut):
    """Nobody waits for the reply any more; the host is not to blame."""


class ConnectionLost(Exception):
    """The server closed or reset the connection, in a few words."""


class SmtpConnection:
    """One SMTP connection. Never used by two tasks at once."""

    def __init__(self, line: ByteChannel | trio.abc.Stream, read_s: float) -> None:
        self.conversation = Conversation()
        self._now = trio.lowlevel.current_clock().current_time
        self._channel = StreamChannel(line) if isinstance(line, trio.abc.Stream) else line
        self._read_s = read_s
        # For how long, at the least, nothing more has come after what was received last.
        self.silent_s = self._channel.silent_s
        self.sent_at = self.received_at = self._now()  # the last write, the last reply
        self._arrived_at = self.received_at  # what was read last
        self._failed = False

    @property
    def usable(self) -> bool:
        """Another command may be said: nothing failed, nothing is unanswered or unread."""
        conversation = self.conversation
        return not self._failed and conversation.quiet and conversation.stage is not Stage.CLOSED

    async def send(self, *commands: Command) -> None:
        """Write a group of commands in one go.

        Raises ReadTimedOut where the server does not take them in time, ConnectionLost,
        and TheirMistake where it spoke without being asked.
        """
        if rest := self.send_now(*commands):
            await self.flush(rest)

    def send_now(self, *commands: Command) -> bytes:
        """Write a group of commands as far as that goes at once; the rest is for say_rest().

        Raises TheirMistake where the server spoke without being asked.
        """
        if self.conversation.unread and not self.conversation.unanswered:
            self._failed = True
            raise RemoteProtocolError("it spoke without being asked")
        return self._write(self.conversation.send(*commands))

    def send_rcpt_now(self, mailbox: str) -> bytes:
        """As say_now() does with one RCPT."""
        octets = self.conversation.send_rcpt(mailbox)
        return self.send_now(rcpt(mailbox)) if octets is None else self._write(octets)

    def _write(self, octets: bytes) -> bytes:
        self.sent_at = self._now()
        try:
            sent = self._channel.send_now(octets)
        except GONE:
            return octets  # say_rest() meets it again
        return b"" if sent == len(octets) else octets[sent:]

    async def flush(self, octets: bytes) -> None:
        """Write what the system did not take at once. Raises ReadTimedOut, ConnectionLost."""
        try:
            await self._channel.send(octets, self._read_s)
        except trio.TooSlowError:
            self._failed = True
            raise ReadTimedOut from None
        except GONE as error:
            # The server may have said why before it closed: hear() will tell.
            if not await self._reads_last_reply():
                self._failed = True
                raise ConnectionLost("closed by the server") from error

    async def _reads_last_reply(self) -> bool:
        """After a failed write: is there a reply of 421 or the like to be read?"""
        try:
            await self._channel.wait(self._now() + LATE_GRACE_S)
            octets = self._channel.receive()
        except GONE:
            return False
        self.conversation.receive(octets or b"")
        return bool(octets)

    def already_received(self) -> CommandReply | None:
        """The next reply where it has come already. Raises TheirMistake."""
        try:
            turn = self.conversation.next_exchange()
        except RemoteProtocolError:
            self._failed = True
            raise
        if turn is not None:
            self.received_at = self._arrived_at
        return turn

    async def receive_reply(self, *, until: float = float("inf")) -> CommandReply:
        """The reply to the oldest unanswered command, with that command.

        `until` (trio's clock) ends the wait earlier than the read clock does.
        Raises ReadTimedOut, or Overdue where it was `until`; ConnectionLost, TheirMistake.
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
        """Since when the oldest unanswered command waits: its write, or the reply before its own."""
        return self.sent_at if self.sent_at > self.received_at else self.received_at

    def deadline(self, until: float) -> float:
        """When the reply to the oldest unanswered command is to be complete."""
        latest = self.sent_at if self.sent_at > self.received_at else self.received_at
        deadline = latest + self._read_s
        return deadline if deadline < until else until

    def check_clock(self, until: float) -> None:
        """Raise ReadTimedOut where the deadline has passed, or Overdue where it was `until`."""
        deadline = self.deadline(until)
        if self._now() >= deadline:
            self._failed = True
            raise Overdue if deadline == until else ReadTimedOut

    def receive(self) -> bool:
        """Read what has come; say whether anything has. Raises ConnectionLost."""
        octets = self._octets()
        if octets is None:
            return False
        self.conversation.receive(octets)
        return True

    def receive_exchange(self) -> CommandReply | None:
        """Read what has come: the next turn, where that is one whole reply and nothing else.

        None where nothing has come, or more or less than that: heard_already() goes on
        with it. Raises ConnectionLost, TheirMistake.
        """
        try:
            octets = self._channel.receive()
            if not octets:
                self._check_open(octets)
                return None
            turn = self.conversation.complete_exchange(octets)
        except GONE as error:
            raise self._lost("reset by the server") from error
        except RemoteProtocolError:
            self._failed = True
            raise
        self._arrived_at = self._channel.arrived_at
        if turn is not None:
            self.received_at = self._arrived_at
        return turn

    def _octets(self) -> bytes | None:
        """What has come, None where nothing has. Raises ConnectionLost."""
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
        """Nothing has come: yet, or ever, which the empty octets say. Raises ConnectionLost."""
        if octets is not None:
            raise self._lost("closed by the server")

    def _lost(self, words: str) -> ConnectionLost:
        self._failed = True
        return ConnectionLost(words)

    def unread(self) -> bool:
        """Has anything come that belongs to no reply yet?"""
        return self.conversation.unread

    async def follow(self, go_on: OnOctets, until: float) -> None:
        """Let `go_on` take what comes, first until `until`, until it says that the wait is over.

        It may be called from another task; it raises nothing.
        """
        try:
            await self.receive_until(go_on, until)
        except BaseException:
            self._failed = True
            raise

    async def receive_until(self, go_on: OnOctets, until: float) -> None:
        """As follow() does, while nothing is unanswered: a wait that is cancelled does no harm."""
        self._channel.on_octets = go_on
        try:
            further = go_on() if self.conversation.unread else until
            while further is not None and not await self._channel.wait(further):
                further = go_on()
        finally:
            self._channel.on_octets = None

    def replied(self) -> bool:
        """Did the server speak or close, of whom nothing was asked? Then nothing may be any more."""
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
        """End the wait: what it was given is called, and says whether to go on."""
        self._channel.interrupt()

    async def start_tls(self, *, until: float = float("inf")) -> str:
        """Speak TLS from now on, as the server has agreed to; its version. The certificate
        is not judged.

        The handshake has the time of one reply. Raises what hear() raises.
        """
        try:
            self.conversation.secured()
            line = TlsChannel(self._channel)
            await self._shake_hands(line, self.deadline(until), until)
            self._channel, self.silent_s = line, line.silent_s
            self.received_at = self._now()
            self.receive()  # what was said together with the handshake's end was not asked for
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
        """The turn as an explanation has it: when, by us?, text."""
        lines = [(self.received_at, False, line) for line in str(turn.reply).split("\n")]
        if turn.command is not CONNECT:
            lines.insert(0, (self.sent_at, True, turn.command.line))
        return lines

    async def quit(self) -> None:
        """Say QUIT where that may be said, hear the answer within QUIT_S, close.

        Elsewhere the server is given a moment to see the end, so that it does not count
        this connection and the next one at the same time.
        """
        try:
            if self.usable:
                await self.send(QUIT)
                await self.receive_reply(until=self._now() + QUIT_S)
            else:
                await self._channel.hang_up(HANG_UP_S)
        except (ReadTimedOut, ConnectionLost, RemoteProtocolError):
            pass
        finally:
            await self.close()

    async def close(self) -> None:
        """Close at once, whatever is unanswered. Never blocks."""
        self._failed = True
        await self._channel.close()
