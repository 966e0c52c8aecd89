"""Runs one SMTP conversation over a byte channel.

The conversation (see mailprobe.engine.smtp.wire) decides; here its octets are written and what
comes is read, each step with the time of trio's clock.
"""

import ssl
from collections.abc import Iterator
from contextlib import contextmanager

import trio

from ..net.reactor import GONE, LATE_GRACE_S, ByteChannel, OnOctets, StreamChannel
from ..net.tls import TlsChannel
from .wire import (
    QUIT,
    Command,
    CommandReply,
    ConnectionLost,
    Conversation,
    LocalProtocolError,
    Overdue,
    ReadTimedOut,
    RemoteProtocolError,
)

HANG_UP_S = 0.05  # a reading server sees the end of the stream within a round trip
QUIT_S = 0.3  # the permit is held meanwhile; a server that has read QUIT closes by itself


class SmtpConnection:
    """One SMTP connection. Never used by two tasks at once."""

    def __init__(self, line: ByteChannel | trio.abc.Stream, read_s: float) -> None:
        self.now = trio.lowlevel.current_clock().current_time
        self.conversation = Conversation(read_s, self.now())
        self._channel = StreamChannel(line) if isinstance(line, trio.abc.Stream) else line
        self._read_s = read_s
        self.unsent = b""  # octets that the system did not take at once, for flush()
        self._mute = False  # no more may be written: a write was cut short

    @property
    def usable(self) -> bool:
        """True if another command may be sent: nothing failed, nothing is unanswered or unread."""
        return self.conversation.usable

    async def send(self, *commands: Command) -> None:
        """Write a group of commands in one go.

        Raises ReadTimedOut if the server does not read them in time, ConnectionLost,
        and RemoteProtocolError if it sent a reply without a command.
        """
        self.conversation.pass_time(self.now())
        self.conversation.send(*commands)
        if not self.write():
            await self.flush()

    def write(self) -> bool:
        """Write what the system takes of the outgoing octets at once; False if flush() must follow."""
        outgoing = self.conversation.outgoing
        octets = outgoing[0] if len(outgoing) == 1 else b"".join(outgoing)
        outgoing.clear()
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
            self.conversation.state.fail()
            raise ReadTimedOut from None
        except GONE as error:
            # The server may have replied before it closed: receive_reply() returns that reply.
            if not await self._reads_last_reply():
                self.conversation.state.fail()
                raise ConnectionLost("closed by the server") from error

    async def _reads_last_reply(self) -> bool:
        """After a failed write: has a reply come, such as 421, that explains it?"""
        try:
            await self._channel.wait(self.now() + LATE_GRACE_S)
        except GONE:
            return False
        self.read()
        return self.conversation.unread

    def read(self) -> None:
        """Read what has come, or that the server has closed, into the conversation."""
        channel, conversation = self._channel, self.conversation
        try:
            octets = channel.receive()
        except GONE:
            conversation.end(self.now(), "reset by the server")
            return
        if octets:
            conversation.receive(octets, self.now(), channel.arrived_at, channel.silent_s())
        elif octets is None:
            conversation.pass_time(self.now())
        else:
            conversation.end(self.now(), "closed by the server")

    async def receive_reply(self, *, until: float = float("inf")) -> CommandReply:
        """Return the oldest unanswered command with its reply.

        `until` (trio's clock) ends the wait earlier than the read deadline does. Raises
        ReadTimedOut, or Overdue if `until` passed first; ConnectionLost, RemoteProtocolError.
        """
        conversation = self.conversation
        with self._failing():
            while (turn := conversation.next_exchange()) is None:
                await self._channel.wait(conversation.deadline(until))
                self.read()
                conversation.check_clock(until)
        return turn

    async def exchange(
        self,
        command: Command,
        lines: list[tuple[float, bool, str]],
        *,
        until: float = float("inf"),
    ) -> CommandReply:
        """Send a command and return it with its reply; their lines are added to `lines`.

        Raises what send() and receive_reply() raise.
        """
        await self.send(command)
        turn = await self.receive_reply(until=until)
        lines += self.conversation.lines_of(turn)
        return turn

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """A cancelled wait, or an error, leaves the connection unusable."""
        try:
            yield
        except BaseException:
            self.conversation.state.fail()
            raise

    async def follow(self, go_on: OnOctets, until: float) -> None:
        """Call `go_on` when octets come, when `until` passes, or once interrupted, until it ends the wait.

        It reads what has come, and returns the next deadline, or None to end the wait. It may be
        called from another task and must not raise.
        """
        self._channel.follow(go_on)
        try:
            further = go_on() if self.conversation.unread else until
            while further is not None and not await self._channel.wait(further):
                further = go_on()
        finally:
            self._channel.follow(None)

    def interrupt(self) -> None:
        """End the wait. The waiter's `go_on` is called and returns whether to continue."""
        self._channel.interrupt()

    async def start_tls(self, *, until: float = float("inf")) -> str:
        """Start TLS after STARTTLS was accepted; return its version.

        The certificate is not checked. The handshake has the time of one reply. Raises
        what receive_reply() raises.
        """
        conversation = self.conversation
        with self._failing():
            conversation.secured()
            line = TlsChannel(self._channel)
            await self._shake_hands(line, conversation.deadline(until), until)
            self._channel = line
            conversation.shaken_hands(self.now())
            self.read()  # octets that came with the handshake's end answer no command
            if conversation.lost:
                raise ConnectionLost(conversation.lost)
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

    async def quit(self) -> bool:
        """Send QUIT and close; False if the server still owes a reply, and nothing is closed.

        If nothing is unanswered, wait at most QUIT_S for the reply to QUIT. Otherwise send
        QUIT if it may follow unanswered commands, end our half, and wait at most HANG_UP_S for
        the server to do the same. If it does not, it may count the connection as open until
        its reply is sent: see ended().
        """
        is_done = True
        try:
            is_done = await self._quit()
        finally:
            self.conversation.state.fail()
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
        """Send QUIT behind unanswered commands, if it may follow them (RFC 2920 3.1)."""
        if self._mute:
            return
        try:
            self.conversation.send(QUIT)
            await self._channel.send(self.conversation.outgoing.pop(), HANG_UP_S)
        except (LocalProtocolError, trio.TooSlowError, *GONE):
            return

    async def ended(self, within_s: float) -> bool:
        """End our half if that is not done, and wait for the server to end its own; False if it did not.

        What it still sends is dropped.
        """
        return await self._channel.hang_up(within_s)

    async def close(self) -> None:
        """Close at once, whatever is unanswered. Never blocks."""
        self.conversation.state.fail()
        await self._channel.close()
