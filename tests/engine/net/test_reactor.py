"""Lines on real sockets: what trio does for a stream, a line must do by itself."""

import socket
import struct
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
import trio
from trio.testing import memory_stream_pair, wait_all_tasks_blocked

from mailprobe.engine.net.reactor import (
    DROPPED_OCTETS_MAX,
    GONE,
    RECEIVE_OCTETS,
    SERVED_MAX,
    UNSERVED_OCTETS_MAX,
    Reactor,
    SocketChannel,
    StreamChannel,
    open_reactor,
)

LONG_S = 60.0  # a wait that ends before this was ended by something
FOREVER = float("inf")


@pytest.fixture
async def lines():
    async with open_reactor() as opened:
        assert opened is not None
        yield opened


async def connect(lines: Reactor) -> tuple[SocketChannel, trio.SocketStream]:
    """A line, and the other end of its connection."""
    [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
    stream = await trio.open_tcp_stream("127.0.0.1", listener.socket.getsockname()[1])
    theirs = await listener.accept()
    await listener.aclose()
    line = lines.open_channel(stream)
    assert isinstance(line, SocketChannel)
    return line, theirs


async def wait(line: SocketChannel, until: float = FOREVER) -> None:
    with trio.fail_after(LONG_S):
        await line.wait(until)


async def receive(line: SocketChannel) -> bytes:
    """What comes next, however often the line wakes for nothing."""
    while (octets := line.receive()) is None:
        await wait(line)
    return octets


async def test_octets_end_the_wait_and_are_received(lines):
    line, theirs = await connect(lines)
    assert line.receive() is None
    await theirs.send_all(b"220 hello\r\n")
    assert await receive(line) == b"220 hello\r\n"
    assert line.receive() is None
    await line.close()
    await theirs.aclose()


async def test_octets_that_came_before_the_wait_end_it_at_once(lines):
    line, theirs = await connect(lines)
    await theirs.send_all(b"220 hello\r\n")
    await wait(line)
    assert await receive(line) == b"220 hello\r\n"
    await line.close()
    await theirs.aclose()


async def test_more_octets_than_one_read_takes_are_all_received(lines):
    line, theirs = await connect(lines)
    said = bytes(range(256)) * 160
    assert len(said) > 4 * RECEIVE_OCTETS
    received = b""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(theirs.send_all, said)
        while len(received) < len(said):
            received += await receive(line)
    assert received == said
    await line.close()
    await theirs.aclose()


async def test_an_end_that_comes_with_the_last_octets_is_seen_after_them(lines):
    """The kernel tells both at once, and tells them only once."""
    line, theirs = await connect(lines)
    await theirs.send_all(b"421 bye\r\n")
    await theirs.aclose()
    assert await receive(line) == b"421 bye\r\n"
    assert await receive(line) == b""
    await line.close()


async def test_a_reset_is_trouble(lines):
    line, theirs = await connect(lines)
    theirs.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    await theirs.aclose()
    await wait(line)
    with pytest.raises(GONE):
        line.receive()
    await line.close()


async def test_a_wait_ends_at_its_deadline(lines):
    line, theirs = await connect(lines)
    began = trio.current_time()
    await wait(line, began + 0.05)
    assert trio.current_time() >= began + 0.05
    assert line.receive() is None
    await line.close()
    await theirs.aclose()


async def test_an_earlier_deadline_than_the_last_one_is_kept(lines):
    line, theirs = await connect(lines)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(line.wait, trio.current_time() + LONG_S)
        await wait_all_tasks_blocked()
        line.interrupt()
    for _ in range(3):
        await wait(line, trio.current_time() + 0.02)
    await line.close()
    await theirs.aclose()


async def test_a_deadline_that_has_passed_ends_the_wait(lines):
    line, theirs = await connect(lines)
    await wait(line, trio.current_time() - 1)
    await line.close()
    await theirs.aclose()


async def test_waking_ends_the_wait(lines):
    line, theirs = await connect(lines)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait, line)
        await wait_all_tasks_blocked()
        line.interrupt()
    assert line.receive() is None
    line.interrupt()  # nobody waits: nothing happens
    await line.close()
    await theirs.aclose()


async def test_a_cancelled_wait_leaves_the_line_as_it_was(lines):
    line, theirs = await connect(lines)
    with trio.move_on_after(0) as scope:
        await line.wait(FOREVER)
    assert scope.cancelled_caught
    await theirs.send_all(b"x")
    assert await receive(line) == b"x"
    await line.close()
    await theirs.aclose()


async def test_octets_that_arrive_during_a_wait_are_received_without_waking(lines):
    line, theirs = await connect(lines)
    received: list[bytes] = []

    def receive() -> float | None:
        if octets := line.receive():
            received.append(octets)
        return None if b"".join(received) == b"abc" else FOREVER

    line.on_octets = receive
    async with trio.open_nursery() as nursery:

        async def waits() -> None:
            await wait(line)
            assert b"".join(received) == b"abc"

        nursery.start_soon(waits)
        await wait_all_tasks_blocked()
        for octet in (b"a", b"b", b"c"):
            await theirs.send_all(octet)
            await wait_all_tasks_blocked()
    await line.close()
    await theirs.aclose()


async def test_octets_beyond_the_send_buffer_are_sent_as_it_drains(lines):
    line, theirs = await connect(lines)
    octets = b"x" * 16_000_000
    sent = line.send_now(octets)
    assert sent < len(octets)
    received = 0
    async with trio.open_nursery() as nursery:
        nursery.start_soon(line.send, octets[sent:], LONG_S)
        while received < len(octets):
            received += len(await theirs.receive_some())
    await line.close()
    await theirs.aclose()


async def test_a_peer_that_does_not_read_is_not_waited_for(lines):
    line, theirs = await connect(lines)
    octets = b"x" * 16_000_000
    sent = line.send_now(octets)
    with pytest.raises(trio.TooSlowError):
        await line.send(octets[sent:], 0.05)
    await line.close()
    await theirs.aclose()


async def test_a_descriptor_that_is_used_again_is_not_taken_for_the_old_line(lines):
    for number in range(20):
        line, theirs = await connect(lines)
        await theirs.send_all(b"%d" % number)
        if number % 2:
            assert await receive(line) == b"%d" % number
        await line.close()
        await theirs.aclose()


async def test_a_stream_that_is_no_socket_is_a_line_too(autojump_clock):
    lines = Reactor()
    ours, theirs = memory_stream_pair()
    line = lines.open_channel(ours)
    assert isinstance(line, StreamChannel)
    began = trio.current_time()
    await line.wait(began + 3)
    assert trio.current_time() == pytest.approx(began + 3)
    assert line.receive() is None
    await theirs.send_all(b"x")
    await line.wait(FOREVER)
    assert line.receive() == b"x"
    await theirs.aclose()
    await line.wait(FOREVER)
    assert line.receive() == b""
    await line.close()
    lines.close()


async def test_a_deadline_that_was_moved_delays_no_other_line(autojump_clock, lines):
    """A line whose deadline was moved earlier and then later leaves its old one in the queue."""
    moved, its_peer = await connect(lines)
    other, others_peer = await connect(lines)
    woken_at: list[float] = []

    async def wait_on_the_other() -> None:
        await other.wait(6.0)
        woken_at.append(trio.current_time())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait_on_the_other)
        nursery.start_soon(moved.wait, 5.0)
        await wait_all_tasks_blocked()
        moved.interrupt()
        await moved.wait(3.0)
        await moved.wait(10.0)
    assert woken_at == [6.0]
    for each in (moved, its_peer, other, others_peer):
        await (each.close() if isinstance(each, SocketChannel) else each.aclose())


class Listener:
    """Takes what comes on a line, as a session does that waits for a reply."""

    def __init__(self, line: SocketChannel) -> None:
        self.line = line
        self.octets = b""
        self.came = trio.Event()
        line.on_octets = self.receive

    def receive(self) -> float:
        if octets := self.line.receive():
            self.octets += octets
            self.came.set()
        return FOREVER

    async def wait(self) -> None:
        await self.line.wait(FOREVER)


@asynccontextmanager
async def listening(lines: Reactor) -> AsyncIterator[tuple[Listener, trio.SocketStream]]:
    line, theirs = await connect(lines)
    listener = Listener(line)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(listener.wait)
        await wait_all_tasks_blocked()
        yield listener, theirs
        nursery.cancel_scope.cancel()
    await line.close()
    await theirs.aclose()


async def test_a_server_that_is_left_is_waited_for_unless_it_goes_on_sending(mock_clock, lines):
    line, theirs = await connect(lines)
    assert not await line.hang_up(0)
    assert await theirs.receive_some() == b""
    assert not await line.hang_up(0)
    await theirs.send_all(b"550 No\r\n")
    await theirs.aclose()
    with trio.fail_after(LONG_S):
        assert await line.hang_up(LONG_S)
    await line.close()
    line, theirs = await connect(lines)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(theirs.send_all, b"2" * 2 * DROPPED_OCTETS_MAX)
        with trio.fail_after(LONG_S):
            assert await line.hang_up(LONG_S)
        nursery.cancel_scope.cancel()
    await line.close()
    await theirs.aclose()


async def test_silence_counts_from_the_last_octets_to_the_last_look_at_the_kernel(
    mock_clock, lines
):
    async with listening(lines) as (asked, theirs), listening(lines) as (other, others_peer):
        await theirs.send_all(b"250 Ok\r\n")
        await asked.came.wait()
        assert asked.line.silent_s() == 0
        mock_clock.jump(0.5)
        assert asked.line.silent_s() == 0  # the kernel was not looked at since
        await others_peer.send_all(b"250 Ok\r\n")
        await other.came.wait()
        assert asked.line.silent_s() == 0.5
        assert asked.line.arrived_at == 0
        assert other.line.silent_s() == 0
        asked.came = trio.Event()
        await theirs.send_all(b"250 Ok\r\n")
        await asked.came.wait()
        assert asked.line.silent_s() == 0
        assert asked.line.arrived_at == 0.5


async def test_a_line_is_not_silent_whose_octets_nobody_has_taken(mock_clock, lines):
    """Neither those in the kernel, nor those that were received while others were served."""
    async with listening(lines) as (asked, theirs), listening(lines) as (other, others_peer):
        await theirs.send_all(b"250 Ok\r\n")
        await asked.came.wait()
        asked.line.interrupt()  # the one who waits is gone
        asked.line.on_octets = None
        await theirs.send_all(b"250 Ok\r\n")
        while not asked.line.unread:
            await trio.lowlevel.checkpoint()
        mock_clock.jump(0.5)
        await others_peer.send_all(b"250 Ok\r\n")
        await other.came.wait()
        assert asked.line.silent_s() == 0


async def test_every_line_is_served_however_much_one_says(lines):
    """More lines than are served at once, one of which says more than is received ahead."""
    async with AsyncExitStack() as stack:
        listeners = [
            await stack.enter_async_context(listening(lines)) for _ in range(2 * SERVED_MAX + 1)
        ]
        long = b"2" * 3 * UNSERVED_OCTETS_MAX
        async with trio.open_nursery() as nursery:
            nursery.start_soon(listeners[0][1].send_all, long)
            for _, theirs in listeners[1:]:
                await theirs.send_all(b"250 Ok\r\n")
        with trio.fail_after(LONG_S):
            for listener, _ in listeners:
                await listener.came.wait()
            while listeners[0][0].octets != long:
                listeners[0][0].came = trio.Event()
                await listeners[0][0].came.wait()
        assert {listener.octets for listener, _ in listeners[1:]} == {b"250 Ok\r\n"}


async def test_a_deadline_calls_whoever_takes_octets_without_waking_it(mock_clock, lines):
    line, theirs = await connect(lines)
    called_at: list[float] = []

    def receive() -> float | None:
        called_at.append(trio.current_time())
        return None if len(called_at) == 3 else trio.current_time() + 1

    line.on_octets = receive
    mock_clock.autojump_threshold = 0
    assert await line.wait(1)
    assert called_at == [1, 2, 3]
    await line.close()
    await theirs.aclose()


@pytest.mark.parametrize("by", ["octets", "deadline"])
async def test_a_bug_of_one_line_is_its_own(lines, faults, by):
    """Whoever waits there meets the bug; the other lines are served on."""
    line, theirs = await connect(lines)
    failed = trio.Event()

    def receive() -> float | None:
        failed.set()
        raise RuntimeError("a bug")

    line.on_octets = receive
    async with listening(lines) as (other, others_peer):
        async with trio.open_nursery() as nursery:
            until = FOREVER if by == "octets" else trio.current_time() + 0.01
            nursery.start_soon(wait, line, until)
            await wait_all_tasks_blocked()
            if by == "octets":
                await theirs.send_all(b"250 Ok\r\n")
            await failed.wait()
        await others_peer.send_all(b"250 Ok\r\n")
        with trio.fail_after(LONG_S):
            await other.came.wait()
    assert "a bug" in faults[0]
    await line.close()
    await theirs.aclose()
