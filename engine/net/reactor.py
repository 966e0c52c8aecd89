"""The octets of one connection: sent at once, waited for until a deadline, or until woken.

Waiting is what a prober does most. trio's own way asks the kernel anew for each
wait and opens a cancel scope for each deadline; here every socket is registered
once (epoll, edge-triggered), one task wakes all whose octets have come, and one
keeps the deadlines: 34 µs an exchange became 20. A stream that is no socket (the
world of the tests, a proxy's tunnel of another kind) is waited for in trio's way.

A line is used by one task at a time; `interrupt` may come from any. While that task waits,
`on_octets` may take what comes in its place, so that the usual costs no switch of tasks.

What has come is read as soon as the kernel reports it, and served in the order of its
coming, a few lines at a time. So a busy engine knows when a reply came, however late it
gets to it, and that nothing followed meanwhile: see `silent_s`.
"""

import select
import socket
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from heapq import heappop, heappush
from typing import Protocol

import trio

from mailprobe.engine.background import log_fault, supervised

RECEIVE_OCTETS = 8192  # replies are short; a larger buffer is only dearer to allocate
SERVED_MAX = 64  # lines served before others have their turn: 3 ms of work
EVENTS_MAX = 64  # taken from the kernel at once
POLLS_MAX = 16  # before lines are served: 1,024 receives are 3 ms
UNSERVED_OCTETS_MAX = 32 * 1024  # twice what a reply may have; the rest stays in the kernel
LATE_GRACE_S = 0.01  # where we came late to listen ourselves: one look at what has arrived

GONE = (trio.BrokenResourceError, trio.ClosedResourceError, OSError)


OnOctets = Callable[[], float | None]


class ByteChannel(Protocol):
    """One connection's octets. Whatever goes wrong with it raises one of GONE.

    `on_octets` is called where octets have come during a wait, or its deadline has, if the
    line can do that: until when to wait on (trio's clock), or None where the wait is over.
    """

    on_octets: OnOctets | None

    @property
    def arrived_at(self) -> float:
        """What receive() returned last had come by then (trio's clock)."""

    def silent_s(self) -> float:
        """For so long after `arrived_at` nothing more has come; 0 where that is not known."""

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

    def interrupt(self) -> None:
        """End the wait that there is, if there is one."""

    async def hang_up(self, within_s: float) -> None:
        """End our half, and return when the server has ended its own, or after so long."""

    async def close(self) -> None:
        """Close at once. Never blocks."""


class StreamChannel:
    """A line over any stream of trio's."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self.on_octets: OnOctets | None = None  # never called: a task must receive
        self.arrived_at = trio.current_time()
        self._stream = stream
        self._waiting: trio.CancelScope | None = None
        self._arrived: bytes | None = None
        self._error: Exception | None = None

    def silent_s(self) -> float:
        return 0.0

    def send_now(self, octets: bytes) -> int:
        return 0  # it has no such way

    async def send(self, octets: bytes, within_s: float) -> None:
        with trio.fail_after(within_s):
            await self._stream.send_all(octets)

    async def wait(self, until: float) -> bool:
        until = max(until, trio.current_time() + LATE_GRACE_S)
        try:
            with trio.CancelScope(deadline=until) as self._waiting:
                self._arrived = bytes(await self._stream.receive_some(RECEIVE_OCTETS))
                self.arrived_at = trio.current_time()
        except GONE as error:
            self._error = error
        finally:
            self._waiting = None
        return False

    def receive(self) -> bytes | None:
        come, self._arrived = self._arrived, None
        error, self._error = self._error, None
        if error is not None:
            raise error
        return come

    def interrupt(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()

    async def hang_up(self, within_s: float) -> None:
        await self.close()  # in memory the server sees it at once

    async def close(self) -> None:
        await trio.aclose_forcefully(self._stream)


class SocketChannel:
    """A line over a connected socket, which is its own from now on."""

    def __init__(self, lines: "Reactor", connected: socket.socket) -> None:
        self.fileno = connected.fileno()
        self.on_octets: OnOctets | None = None
        self.until = float("inf")  # of the wait that there is
        self.timer_at = float("inf")  # the deadline that is kept for it
        self.arrived_at = lines.now()
        self._reactor = lines
        self._socket = connected
        self._ready = False  # octets may have come since nothing was there last
        self._ending = (
            False  # the server closed or reset it: there is more to be read, if only that
        )
        self._received: bytes | None = None  # before anybody asked for it
        self._trouble: OSError | None = None  # met by that, after those octets
        self.queued = False  # to be served
        self._task: trio.lowlevel.Task | None = None
        self._over = False  # the wait, by the word of on_octets

    @property
    def unread(self) -> bool:
        """There is something to receive, or may be."""
        return self._ready or self._received is not None or self._trouble is not None

    def silent_s(self) -> float:
        """As two looks at the kernel tell, so it is never too long."""
        if self._ready or self._received is not None:
            return 0.0
        return self._reactor.polled_at - self.arrived_at

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
        if self.unread:
            return False
        self._task = trio.lowlevel.current_task()
        self._wait_on(until)
        self._over = False
        await trio.lowlevel.wait_task_rescheduled(self._fail)
        return self._over

    def _wait_on(self, until: float) -> None:
        self.until = until
        if until < self.timer_at:
            self._reactor.set_timer(self)

    def _fail(self, _: object) -> trio.lowlevel.Abort:
        self._task = None
        return trio.lowlevel.Abort.SUCCEEDED

    def receive(self) -> bytes | None:
        if self._received is None and self._trouble is None:
            self._receive()
            if self._received is not None:
                self.arrived_at = self._reactor.now()
        octets, self._received = self._received, None
        if octets is None and self._trouble is not None:
            error, self._trouble = self._trouble, None
            raise error
        return octets

    def _receive(self) -> None:
        """Add to what was received before, if anything has come; `arrived_at` is the caller's."""
        try:
            octets = self._socket.recv(RECEIVE_OCTETS)
        except BlockingIOError:
            self._ready = False
            return
        except OSError as error:
            self._ready, self._trouble = False, error
            return
        # Fewer than there was room for: the socket is drained (epoll(7)), but for its end.
        self._ready = len(octets) == RECEIVE_OCTETS or self._ending
        if self._received is None:
            self._received = octets
        elif octets:  # the end is read once more, by itself
            self._received += octets

    def arrived(self, events: int) -> bool:
        """Receive at once what the kernel reports; say whether that was done.

        `arrived_at` is set, and the line queued to be served, by the caller.
        """
        self._ready = True
        if events != select.EPOLLIN:
            self._ending = True
        if self._task is None:
            return False
        if self.on_octets is None:
            self.interrupt()
            return False
        if self._received is None or len(self._received) < UNSERVED_OCTETS_MAX:
            self._receive()
        return True

    def serve(self) -> None:
        """Octets have come, or the deadline has: let `on_octets` go on, or else the task."""
        self.queued = False
        while self._task is not None:
            if self.on_octets is None:
                self.interrupt()
                return
            try:
                until = self.on_octets()
            except Exception:  # a bug ends the one who waits, and not those who wait elsewhere
                log_fault(self.on_octets)
                self.interrupt()  # it goes on by itself, and meets the bug there
                return
            if until is None:
                self._over = True
                self.interrupt()
                return
            self.until = until
            if until < self.timer_at:
                self._reactor.set_timer(self)
            if not self._ready and self._received is None and self._trouble is None:
                return

    def interrupt(self) -> None:
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
        self._reactor.forget(self)
        self._socket.close()


class Reactor:
    """All sockets that are waited for: one wait in the kernel, one for the next deadline."""

    def __init__(self) -> None:
        self.now = trio.lowlevel.current_clock().current_time
        self.polled_at = self.now()  # all that had come by then is received
        self._epoll = select.epoll()
        self._unserved: deque[SocketChannel] = deque()
        self._channels: dict[int, SocketChannel] = {}  # by descriptor
        self._timers: list[
            tuple[float, int, SocketChannel]
        ] = []  # a heap; one or few for each line
        self._count = 0
        self._sleeping = trio.CancelScope()

    def open_channel(self, stream: trio.abc.Stream) -> ByteChannel:
        """A line over this stream; a socket's descriptor is taken out of it."""
        if not isinstance(stream, trio.SocketStream):
            return StreamChannel(stream)
        connected = socket.socket(fileno=stream.socket.detach())
        connected.setblocking(False)
        line = SocketChannel(self, connected)
        self._channels[line.fileno] = line
        self._epoll.register(line.fileno, select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLET)
        return line

    def forget(self, line: SocketChannel) -> None:
        if self._channels.get(line.fileno) is line:
            del self._channels[line.fileno]
            self._epoll.unregister(line.fileno)
            line.until = float("inf")

    def set_timer(self, line: SocketChannel) -> None:
        """Keep the line's deadline, which is earlier than the one that is kept."""
        self._count += 1
        line.timer_at = line.until
        heappush(self._timers, (line.until, self._count, line))
        if line.until < self._sleeping.deadline:
            self._sleeping.deadline = line.until

    async def watch(self) -> None:
        """Receive what comes, and serve its lines in that order. Runs until cancelled."""
        unserved = self._unserved
        while True:
            if unserved:
                await trio.lowlevel.checkpoint()
            else:
                await trio.lowlevel.wait_readable(self._epoll.fileno())
            self._poll()
            for _ in range(min(len(unserved), SERVED_MAX)):
                unserved.popleft().serve()

    def _poll(self) -> None:
        """Receive all that has come, as far as POLLS_MAX goes."""
        for _ in range(POLLS_MAX):
            now = self.now()
            arrivals = self._epoll.poll(0, EVENTS_MAX)
            received = [
                line
                for number, events in arrivals
                if (line := self._channels.get(number)) is not None and line.arrived(events)
            ]
            arrived_at = self.now()  # by now
            for line in received:
                line.arrived_at = arrived_at
                if not line.queued:
                    line.queued = True
                    self._unserved.append(line)
            if len(arrivals) < EVENTS_MAX:
                self.polled_at = now
                return

    async def keep_time(self) -> None:
        """Wake lines at their deadlines. Runs until cancelled."""
        while True:
            now, called = self.now(), 0
            while self._timers and self._timers[0][0] <= now and called < SERVED_MAX:
                called += 1
                rang_at, _, line = heappop(self._timers)
                if rang_at != line.timer_at:
                    continue  # an earlier one took its place
                line.timer_at = float("inf")
                if line.until <= now:
                    if not line.queued:  # else it is served soon, and sets its next deadline
                        line.serve()
                elif line.until < line.timer_at:
                    self.set_timer(line)
            if called == SERVED_MAX:
                await trio.lowlevel.checkpoint()
                continue
            next_at = self._timers[0][0] if self._timers else float("inf")
            with trio.CancelScope(deadline=next_at) as self._sleeping:
                await trio.sleep_forever()

    def close(self) -> None:
        self._epoll.close()


@asynccontextmanager
async def open_reactor() -> AsyncIterator[Reactor | None]:
    """The lines of one prober; None where the system has no epoll."""
    if not hasattr(select, "epoll"):
        yield None
        return
    lines = Reactor()
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(supervised, lines.watch)
            nursery.start_soon(supervised, lines.keep_time)
            yield lines
            nursery.cancel_scope.cancel()
    finally:
        lines.close()
