"""The octets of one connection: sent at once, waited for until a deadline, or until woken.

Waiting is what a prober does most. trio's own way asks the kernel anew for each
wait and opens a cancel scope for each deadline; here every socket is registered
once (epoll, edge-triggered), one task wakes all whose octets have come, and one
keeps the deadlines: 34 µs an exchange became 20. A stream that is no socket (the
world of the tests, a proxy's tunnel of another kind) is waited for in trio's way.

A line is used by one task at a time; `wake` may come from any. While that task waits,
`on_octets` may take what comes in its place, so that the usual costs no switch of tasks.
"""

import select
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from heapq import heappop, heappush
from typing import Protocol

import trio

RECEIVE_OCTETS = 8192  # replies are short; a larger buffer is only dearer to allocate
EVENTS_MAX = 64  # taken from the kernel before others have their turn: 3 ms of work
LATE_GRACE_S = 0.01  # where we came late to listen ourselves: one look at what has arrived

GONE = (trio.BrokenResourceError, trio.ClosedResourceError, OSError)


OnOctets = Callable[[], float | None]


class Line(Protocol):
    """One connection's octets. Whatever goes wrong with it raises one of GONE.

    `on_octets` is called where octets have come during a wait, if the line can do that:
    until when to wait on (trio's clock), or None where the wait is over.
    """

    on_octets: OnOctets | None

    def send_now(self, octets: bytes) -> int:
        """Hand the octets to the system; says how many it took, mostly all."""

    async def send(self, octets: bytes, within_s: float) -> None:
        """Hand the octets to the system as it takes them, or raise trio.TooSlowError."""

    async def wait(self, until: float) -> bool:
        """Return when octets may have come, at `until` (trio's clock), or when woken.

        True where `on_octets` has taken what came, and said that the wait is over.
        """

    def receive(self) -> bytes | None:
        """What has come, empty at the end of the stream; None where nothing has."""

    def wake(self) -> None:
        """End the wait that there is, if there is one."""

    async def hang_up(self, within_s: float) -> None:
        """End our half, and return when the server has ended its own, or after so long."""

    async def close(self) -> None:
        """Close at once. Never blocks."""


class StreamLine:
    """A line over any stream of trio's."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self.on_octets: OnOctets | None = None  # never called: a task must receive
        self._stream = stream
        self._waiting: trio.CancelScope | None = None
        self._come: bytes | None = None
        self._trouble: Exception | None = None

    def send_now(self, octets: bytes) -> int:
        return 0  # it has no such way

    async def send(self, octets: bytes, within_s: float) -> None:
        with trio.fail_after(within_s):
            await self._stream.send_all(octets)

    async def wait(self, until: float) -> bool:
        until = max(until, trio.current_time() + LATE_GRACE_S)
        try:
            with trio.CancelScope(deadline=until) as self._waiting:
                self._come = bytes(await self._stream.receive_some(RECEIVE_OCTETS))
        except GONE as trouble:
            self._trouble = trouble
        finally:
            self._waiting = None
        return False

    def receive(self) -> bytes | None:
        come, self._come = self._come, None
        trouble, self._trouble = self._trouble, None
        if trouble is not None:
            raise trouble
        return come

    def wake(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()

    async def hang_up(self, within_s: float) -> None:
        await self.close()  # in memory the server sees it at once

    async def close(self) -> None:
        await trio.aclose_forcefully(self._stream)


class SocketLine:
    """A line over a connected socket, which is its own from now on."""

    def __init__(self, lines: "Lines", connected: socket.socket) -> None:
        self.fileno = connected.fileno()
        self.on_octets: OnOctets | None = None
        self.until = float("inf")  # of the wait that there is
        self.rings_at = float("inf")  # the deadline that is kept for it
        self._lines = lines
        self._socket = connected
        self._ready = False  # octets may have come since nothing was there last
        self._ending = (
            False  # the server closed or reset it: there is more to be read, if only that
        )
        self._task: trio.lowlevel.Task | None = None
        self._over = False  # the wait, by the word of on_octets

    def send_now(self, octets: bytes) -> int:
        try:
            return self._socket.send(octets)
        except BlockingIOError:
            return 0

    async def send(self, octets: bytes, within_s: float) -> None:
        with trio.fail_after(within_s):
            sent = 0
            while sent < len(octets):
                await trio.lowlevel.wait_writable(self._socket)
                sent += self.send_now(octets[sent:])

    async def wait(self, until: float) -> bool:
        if self._ready:
            return False
        self._task = trio.lowlevel.current_task()
        self._wait_on(until)
        self._over = False
        await trio.lowlevel.wait_task_rescheduled(self._give_up)
        return self._over

    def _wait_on(self, until: float) -> None:
        self.until = until
        if until < self.rings_at:
            self._lines.ring(self)

    def _give_up(self, _: object) -> trio.lowlevel.Abort:
        self._task = None
        return trio.lowlevel.Abort.SUCCEEDED

    def receive(self) -> bytes | None:
        try:
            octets = self._socket.recv(RECEIVE_OCTETS)
        except BlockingIOError:
            self._ready = False
            return None
        # Fewer than there was room for: the socket is drained (epoll(7)), but for its end.
        self._ready = len(octets) == RECEIVE_OCTETS or self._ending
        return octets

    def arrived(self, events: int) -> None:
        self._ready = True
        if events != select.EPOLLIN:
            self._ending = True
        while self._ready and self._task is not None:
            if self.on_octets is None:
                self.wake()
            elif (until := self.on_octets()) is None:
                self._over = True
                self.wake()
            else:
                self.until = until
                if until < self.rings_at:
                    self._lines.ring(self)

    def wake(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            trio.lowlevel.reschedule(task)

    async def hang_up(self, within_s: float) -> None:
        until = trio.current_time() + within_s
        try:
            self._socket.shutdown(socket.SHUT_WR)
            while trio.current_time() < until and self.receive() != b"":
                await self.wait(until)
        except GONE:
            return

    async def close(self) -> None:
        self._lines.forget(self)
        self._socket.close()


class Lines:
    """All sockets that are waited for: one wait in the kernel, one for the next deadline."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._lines: dict[int, SocketLine] = {}  # by descriptor
        self._bells: list[tuple[float, int, SocketLine]] = []  # a heap; one or few for each line
        self._count = 0
        self._sleeping = trio.CancelScope()

    def line(self, stream: trio.abc.Stream) -> Line:
        """A line over this stream; a socket's descriptor is taken out of it."""
        if not isinstance(stream, trio.SocketStream):
            return StreamLine(stream)
        connected = socket.socket(fileno=stream.socket.detach())
        connected.setblocking(False)
        line = SocketLine(self, connected)
        self._lines[line.fileno] = line
        self._epoll.register(line.fileno, select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLET)
        return line

    def forget(self, line: SocketLine) -> None:
        if self._lines.get(line.fileno) is line:
            del self._lines[line.fileno]
            self._epoll.unregister(line.fileno)
            line.until = float("inf")

    def ring(self, line: SocketLine) -> None:
        """Keep the line's deadline, which is earlier than the one that is kept."""
        self._count += 1
        line.rings_at = line.until
        heappush(self._bells, (line.until, self._count, line))
        if line.until < self._sleeping.deadline:
            self._sleeping.deadline = line.until

    async def watch(self) -> None:
        """Wake lines as their octets come. Runs until cancelled."""
        while True:
            await trio.lowlevel.wait_readable(self._epoll.fileno())
            for number, events in self._epoll.poll(0, EVENTS_MAX):
                if line := self._lines.get(number):
                    line.arrived(events)

    async def keep_time(self) -> None:
        """Wake lines at their deadlines. Runs until cancelled."""
        while True:
            now = trio.current_time()
            while self._bells and self._bells[0][0] <= now:
                rang_at, _, line = heappop(self._bells)
                if rang_at != line.rings_at:
                    continue  # an earlier one took its place
                line.rings_at = float("inf")
                if line.until <= now:
                    line.wake()
                elif line.until < line.rings_at:
                    self.ring(line)
            next_at = self._bells[0][0] if self._bells else float("inf")
            with trio.CancelScope(deadline=next_at) as self._sleeping:
                await trio.sleep_forever()

    def close(self) -> None:
        self._epoll.close()


@asynccontextmanager
async def open_lines() -> AsyncIterator[Lines | None]:
    """The lines of one prober; None where the system has no epoll."""
    if not hasattr(select, "epoll"):
        yield None
        return
    lines = Lines()
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lines.watch)
            nursery.start_soon(lines.keep_time)
            yield lines
            nursery.cancel_scope.cancel()
    finally:
        lines.close()
