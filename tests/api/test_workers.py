"""The supervisor of several workers, on real processes. Run as a program, this file is one."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial

import pytest
import trio

from mailprobe.api.http.listeners import listeners_on, open_sockets
from mailprobe.api.http.server import drain_on_signals, serve_app
from mailprobe.api.workers import supervise
from tests.api.raw_http import connected, error_body, respond

GET = "GET / HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n\r\n"
WITHIN_S = 10.0  # the limit for a drain after SIGTERM; far more than any step here takes


# -- the program -----------------------------------------------------------------------------


async def app(scope, receive, send):
    """`/` answers with the process id; `/stream` sends it at once and ends a second later."""
    me = str(os.getpid()).encode()
    if scope["path"] == "/":
        await respond(send, me)
        return
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": me, "more_body": True})
    await trio.sleep(1)
    await send({"type": "http.response.body", "body": b"end"})


async def beat(beats):
    while True:
        beats()
        await trio.sleep(0.05)


async def serve(sockets, ready, beats):
    drain = trio.Event()
    async with trio.open_nursery() as nursery:
        await nursery.start(partial(drain_on_signals, drain))
        ready()
        nursery.start_soon(beat, beats)
        await serve_app(app, listeners_on(sockets), drain=drain, error_body=error_body)
        nursery.cancel_scope.cancel()


def main(how: str, count: str) -> int:
    sockets = open_sockets("127.0.0.1", 0)
    port = sockets[0].getsockname()[1]
    luck, given = os.pipe()
    os.set_blocking(luck, False)
    os.write(given, b".")

    def work(tell, beats) -> None:
        def ready() -> None:
            os.write(1, b"%d\n" % port)  # one write: lines of several workers do not mix
            tell()

        if how == "one stands still":
            with suppress(BlockingIOError):
                if os.read(luck, 1):  # only the first worker gets the octet
                    signal.pause()
        if how == "slow start":
            for _ in range(40):
                beats()
                time.sleep(0.05)

        if how == "one fails":
            try:
                os.read(luck, 1)  # only the first worker gets the octet
            except BlockingIOError:
                sys.exit(3)
        if how == "stubborn":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            ready()
            while True:
                signal.pause()
        trio.run(serve, sockets, ready, beats)

    def announce() -> None:
        if how == "announces":
            os.write(1, b"all\n")

    drain_s = 0.5 if how == "stubborn" else WITHIN_S
    silence_s = 2.0 if how == "beats" else 10 * WITHIN_S
    return supervise(
        work, int(count), sockets=sockets, drain_s=drain_s, silence_s=silence_s,
        start_silence_s=1.0 if how in ("one stands still", "slow start") else 10 * WITHIN_S,
        ready=announce,
    )  # fmt: skip


# -- the tests ----------------------------------------------------------------------------------


class Program:
    def __init__(self, process: trio.Process, said: bytes) -> None:
        self.process = process
        self.said = said  # the output so far
        self.port = int(said.split()[0]) if said else 0

    async def receive(self, lines: int) -> list[bytes]:
        """Return the first `lines` lines of the output, once they are there."""
        assert self.process.stdout is not None
        with trio.fail_after(WITHIN_S):
            while self.said.count(b"\n") < lines:
                self.said += await self.process.stdout.receive_some()
        return self.said.split()[:lines]

    async def responding_pid(self) -> int:
        """Return the id of the process that answers one request."""
        async with connected(self.port) as raw:
            return int((await raw.request(GET)).body)

    async def request_until(self, enough: Callable[[set[int]], bool]) -> set[int]:
        """Send requests until the set of answering process ids is `enough`; return the set."""
        pids: set[int] = set()
        with trio.fail_after(WITHIN_S):
            while not enough(pids):
                pids.add(await self.responding_pid())
        return pids

    async def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return await self.ended()

    async def ended(self) -> int:
        with trio.fail_after(WITHIN_S):
            return await self.process.wait()


@asynccontextmanager
async def running(how: str = "serves", count: int = 2) -> AsyncIterator[Program]:
    command = [sys.executable, "-m", __name__, how, str(count)]
    process = await trio.lowlevel.open_process(command, stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        with trio.fail_after(WITHIN_S):
            said = await process.stdout.receive_some()  # when one is ready, or all have ended
        yield Program(process, bytes(said))
    finally:
        with trio.CancelScope(shield=True):
            if process.returncode is None:
                process.terminate()
            with trio.move_on_after(2 * WITHIN_S):
                await process.wait()
            await process.stdout.aclose()


def two(pids: set[int]) -> bool:
    return len(pids) == 2


async def test_all_workers_serve_and_all_drain():
    async with running(count=2) as program:
        await program.request_until(two)
        assert await program.end() == 0


async def test_an_interrupt_drains_too():
    async with running(count=2) as program:
        await program.responding_pid()
        assert await program.end(signal.SIGINT) == 0


async def test_a_killed_worker_takes_nobody_down_and_is_replaced():
    """Under load, only the killed worker's requests are lost, and a new worker replaces it."""
    lost: list[Exception] = []
    answers, answered = trio.open_memory_channel[int](0)

    async def load() -> None:
        while True:
            try:
                await answers.send(await program.responding_pid())
            except (OSError, trio.BrokenResourceError, AssertionError) as error:
                lost.append(error)

    async def until_two(dead: set[int]) -> set[int]:
        pids: set[int] = set()
        with trio.fail_after(WITHIN_S):
            while not two(pids):
                pids.add(await answered.receive())
                pids -= dead
        return pids

    async with running(count=2) as program, trio.open_nursery() as nursery:
        for _ in range(8):
            nursery.start_soon(load)
        first = await until_two(set())
        for killed in first:
            os.kill(killed, signal.SIGKILL)
            await gone(killed)
            await until_two({killed})
        assert not await until_two(set()) & first
        nursery.cancel_scope.cancel()
        assert len(lost) <= 2 * 8, lost
    assert program.process.returncode == 0


async def test_a_worker_without_a_heartbeat_is_replaced():
    async with running("beats", count=2) as program:
        first = await program.request_until(two)
        halted = first.pop()
        os.kill(halted, signal.SIGSTOP)
        await gone(halted)
        assert halted not in await program.request_until(lambda pids: bool(pids - first))
        assert await program.end() == 0


async def test_a_worker_that_stands_still_before_its_first_heartbeat_is_replaced():
    async with running("one stands still", count=2) as program:
        await program.request_until(two)
        assert await program.end() == 0


async def test_a_start_that_takes_longer_and_beats_is_not_ended():
    async with running("slow start", count=2) as program:
        await program.request_until(two)
        assert await program.end() == 0


async def test_open_streams_of_all_workers_end_whole():
    async with running(count=2) as program:
        await program.request_until(two)
        ends: list[bytes] = []
        pids: set[bytes] = set()
        begun = trio.Semaphore(0)

        async def stream() -> None:
            async with connected(program.port) as raw:
                await raw.send("GET /stream HTTP/1.1\r\nHost: a.test\r\n\r\n")
                await raw.head()
                pids.add(await raw.chunk())
                begun.release()
                ends.append(await raw.chunk())
                ends.append(await raw.chunk())

        async with trio.open_nursery() as nursery:
            for _ in range(8):
                nursery.start_soon(stream)
            for _ in range(8):
                await begun.acquire()
            assert await program.end() == 0
        assert sorted(ends) == [b""] * 8 + [b"end"] * 8
        with pytest.raises(OSError, match="refused"):
            await program.responding_pid()


async def test_workers_end_when_their_parent_is_killed():
    async with running(count=2) as program:
        pids = await program.request_until(two)
        program.process.kill()
        for pid in pids:
            await gone(pid)


async def gone(pid: int) -> None:
    """Wait for the end of a process that is not our child."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        with trio.fail_after(WITHIN_S):
            await trio.lowlevel.wait_readable(fd)
    finally:
        os.close(fd)


async def test_a_worker_that_cannot_start_ends_all():
    async with running("one fails", count=3) as program:
        assert await program.ended() == 1


async def test_a_worker_that_does_not_drain_is_killed_and_the_exit_status_is_1():
    async with running("stubborn", count=2) as program:
        assert await program.end() == 1


async def test_a_process_with_threads_is_not_forked():
    await trio.to_thread.run_sync(lambda: None)  # trio keeps the thread alive for a while
    with pytest.raises(RuntimeError, match="threads"):
        supervise(lambda ready, beat: None, 1)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))


async def test_the_parent_announces_when_all_serve_and_once() -> None:
    """After the announcement, any of the workers can answer a request."""
    async with running("announces", 3) as program:
        port = b"%d" % program.port
        assert await program.receive(4) == [port, port, port, b"all"]
        os.kill(await program.responding_pid(), signal.SIGKILL)
        assert await program.receive(5) == [port, port, port, b"all", port]  # the new worker's
        assert await program.end() == 0
        assert program.said.count(b"all") == 1
