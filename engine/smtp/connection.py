"""A Conversation over a trio stream, with the read clock.

Each reply, complete, has `read_s` from its command's write or from the reply
before it, whichever is later; octets that drip in do not extend it. After any
failure the connection is good for nothing but closing: `usable` is false and
stays so, so that a late reply can't be taken for another question's answer.
"""

import trio

from engine.smtp.wire import QUIT, Command, Conversation, Stage, TheirMistake, Turn

RECEIVE_OCTETS = 8192  # replies are short; a larger buffer is only dearer to allocate
QUIT_S = 0.3  # a seat is held meanwhile; a server that has read QUIT needs no more of us
LATE_GRACE_S = 0.01  # where we came late to listen ourselves: one look at what has arrived


class ReadTimedOut(Exception):
    """The read clock ran out before the reply was complete."""


class Overdue(ReadTimedOut):
    """Nobody waits for the reply any more; the host is not to blame."""


class ConnectionLost(Exception):
    """The server closed or reset the connection, in a few words."""


class Connection:
    """One SMTP connection. Never used by two tasks at once."""

    def __init__(self, stream: trio.abc.Stream, read_s: float) -> None:
        self.conversation = Conversation()
        self._stream = stream
        self._read_s = read_s
        self.said_at = self.heard_at = trio.current_time()  # the last write, the last reply
        self._failed = False

    @property
    def usable(self) -> bool:
        """Another command may be said: nothing failed, nothing is unanswered or unread."""
        conversation = self.conversation
        return not self._failed and conversation.quiet and conversation.stage is not Stage.CLOSED

    async def say(self, *commands: Command) -> None:
        """Write a group of commands in one go.

        Raises ReadTimedOut where the server does not take them in time, ConnectionLost,
        and TheirMistake where it spoke without being asked.
        """
        if self.conversation.unread and not self.conversation.unanswered:
            self._failed = True
            raise TheirMistake("it spoke without being asked")
        octets = self.conversation.send(*commands)
        self.said_at = trio.current_time()
        try:
            with trio.fail_after(self._read_s):
                await self._stream.send_all(octets)
        except trio.TooSlowError:
            self._failed = True
            raise ReadTimedOut from None
        except (trio.BrokenResourceError, trio.ClosedResourceError, OSError) as error:
            # The server may have said why before it closed: hear() will tell.
            if not await self._hears_last_words():
                self._failed = True
                raise ConnectionLost("closed by the server") from error

    async def _hears_last_words(self) -> bool:
        """After a failed write: is there a reply of 421 or the like to be read?"""
        try:
            with trio.move_on_after(0.01):
                octets = await self._stream.receive_some(RECEIVE_OCTETS)
                self.conversation.receive(octets)
                return bool(octets)
        except (trio.BrokenResourceError, trio.ClosedResourceError, OSError):
            pass
        return False

    def heard_already(self) -> Turn | None:
        """The next reply where it has come already. Raises TheirMistake."""
        try:
            turn = self.conversation.next_turn()
        except TheirMistake:
            self._failed = True
            raise
        if turn is not None:
            self.heard_at = trio.current_time()
        return turn

    async def hear(self, *, until: float = float("inf")) -> Turn:
        """The reply to the oldest unanswered command, with that command.

        `until` (trio's clock) ends the wait earlier than the read clock does.
        Raises ReadTimedOut, or Overdue where it was `until`; ConnectionLost, TheirMistake.
        """
        try:
            turn = self.conversation.next_turn()
            if turn is None:
                deadline = min(max(self.said_at, self.heard_at) + self._read_s, until)
                grace = trio.current_time() + LATE_GRACE_S
                with trio.CancelScope(deadline=max(deadline, grace)):
                    turn = await self._receive_turn()
            if turn is None:
                raise Overdue if trio.current_time() >= until else ReadTimedOut
        except BaseException:
            self._failed = True
            raise
        self.heard_at = trio.current_time()
        return turn

    async def _receive_turn(self) -> Turn:
        while True:
            try:
                octets = await self._stream.receive_some(RECEIVE_OCTETS)
            except (trio.BrokenResourceError, trio.ClosedResourceError, OSError) as error:
                raise ConnectionLost("reset by the server") from error
            if not octets:
                raise ConnectionLost("closed by the server")
            self.conversation.receive(octets)
            if (turn := self.conversation.next_turn()) is not None:
                return turn

    async def listen(self) -> None:
        """Return when the server speaks or closes unasked; cancelled to be used again."""
        try:
            octets = await self._stream.receive_some(RECEIVE_OCTETS)
            self.conversation.receive(octets)
        except (trio.BrokenResourceError, trio.ClosedResourceError, OSError):
            pass
        self._failed = True

    async def quit(self) -> None:
        """Say QUIT where that may be said, hear the answer within QUIT_S, close."""
        try:
            if self.usable:
                await self.say(QUIT)
                await self.hear(until=trio.current_time() + QUIT_S)
        except (ReadTimedOut, ConnectionLost, TheirMistake):
            pass
        finally:
            await self.close()

    async def close(self) -> None:
        """Close at once, whatever is unanswered. Never blocks."""
        self._failed = True
        await trio.aclose_forcefully(self._stream)
