"""The faults of a campaign: what is done to the service while clients send.

A fault returns when it is over; the service may be dead then. Each waits for what clients get, not for
a time, where it claims that the service goes on.
"""

import errno
import os
import resource
import signal
import sqlite3
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import trio
from msgspec import Struct

from tests.campaign.world import SETTLE_S, Mode, World, set_clock

HELD_S = 3.0  # a fault that ends by itself
LONG_S = 25.0  # beyond every lease of work that is claimed
FEW_DESCRIPTORS = 64
FILL_OCTETS = 1024 * 1024
SEEN_S = 1.5  # until every process sees its new clock
# What is stored while the clock is ahead is due by that clock: as much later as it was ahead.
JUMPS = ("+45s", "-3600s", "+30s", "+0s")
FAILED_CALLBACKS = 5
STALLED = 100  # clients of each kind that stall
FLOODING = 60
NOWHERE = "https://127.0.0.1:9/dns-query"  # nothing listens there

Act = Callable[[World], Awaitable[None]]


class Fault(Struct, frozen=True):
    """`env`: settings of the start before it. `is_long`: not in a campaign of a few minutes."""

    act: Act
    env: Callable[[World], dict[str, str]] = lambda world: {}
    is_long: bool = False


async def kill_all(world: World) -> None:
    """kill -9 of every process at once, at any moment."""
    await trio.sleep(world.rng.uniform(0, 0.5))
    await world.kill()


async def kill_worker(world: World) -> None:
    """kill -9 of a worker, again and again: the others go on, and it is replaced."""
    for _ in range(3):
        _signal(world.rng.choice(world.processes()[1:]), signal.SIGKILL)
        await world.progress(5)


async def kill_parent(world: World) -> None:
    """kill -9 of the parent: its workers drain and end."""
    processes = world.processes()
    _signal(processes[0], signal.SIGKILL)
    with trio.fail_after(60):
        while any(_is_there(pid) for pid in processes):  # noqa: ASYNC110 - other processes
            await trio.sleep(0.1)
    await world.kill()


async def kill_one_by_one(world: World) -> None:
    """kill -9 of every process, one after another."""
    for pid in world.processes()[::-1]:
        _signal(pid, signal.SIGKILL)
        await trio.sleep(world.rng.uniform(0, 0.1))
    await world.kill()


async def halt_worker(world: World) -> None:
    """SIGSTOP of a worker, and SIGCONT: it goes on with what it held."""
    with _halted([world.rng.choice(world.processes()[1:])]):
        await trio.sleep(HELD_S)
    await world.progress(5)


async def halt_worker_beyond_its_leases(world: World) -> None:
    """SIGSTOP of a worker until others have taken what it had claimed, or its parent replaced it."""
    with _halted([world.rng.choice(world.processes()[1:])]):
        await trio.sleep(LONG_S)
    await world.progress(5)


async def halt_all(world: World) -> None:
    """SIGSTOP of every process, and SIGCONT."""
    with _halted(world.processes()):
        await trio.sleep(HELD_S)
    await world.progress(5)


async def jump_clock(world: World) -> None:
    """The clock jumps ahead, an hour back, and home."""
    for jump in JUMPS:
        set_clock(world.disk, jump)
        await trio.sleep(SEEN_S)
        await world.progress(10)
    await world.kill()  # libfaketime makes a stop slow, which has a time limit


async def fill_disk(world: World) -> None:
    """The disk is full for a while; then there is room again."""
    fill = world.disk / "fill"
    try:
        with fill.open("wb", buffering=0) as file, suppress(OSError):
            while True:
                file.write(bytes(FILL_OCTETS))
        with fill.open("ab", buffering=0) as file, suppress(OSError):
            while True:
                file.write(b"x")
        await trio.sleep(HELD_S)
    finally:
        fill.unlink()
    await world.progress(10)


async def lock_database(world: World) -> None:
    """Another process holds the database."""
    db = sqlite3.connect(
        world.place.database, isolation_level=None, timeout=10, check_same_thread=False
    )
    try:
        await trio.to_thread.run_sync(db.execute, "BEGIN IMMEDIATE")
        await trio.sleep(HELD_S)
        db.execute("ROLLBACK")
    finally:
        db.close()
    await world.progress(10)


async def leave_few_descriptors(world: World) -> None:
    """Each process may have 64 open files, with more clients than that."""
    pids = world.processes()
    before = {pid: _limit(pid, FEW_DESCRIPTORS) for pid in pids}
    async with _stalling(world, b"GET /health HTTP/1.1\r\n"):
        await trio.sleep(HELD_S)
    for pid, soft in before.items():
        if soft is not None:
            _limit(pid, soft)
    await world.progress(10)


async def lose_resolver(world: World) -> None:
    """No resolver answers: results are unknown, and nothing else changes."""
    await world.progress(20)


async def halt_outside(world: World) -> None:
    """The resolver and all mail hosts hang."""
    with _halted([world.lab.process.pid]):
        await trio.sleep(HELD_S)
        await world.progress(3)
    await world.progress(5)


async def hang_receivers(world: World) -> None:
    """Receivers of callbacks read, and never answer."""
    await _fail_callbacks(world, "hang")


async def fail_receivers(world: World) -> None:
    """Receivers of callbacks answer 500."""
    await _fail_callbacks(world, "fail")


async def _fail_callbacks(world: World, mode: Mode) -> None:
    enough = world.receiver.failed + FAILED_CALLBACKS
    world.receiver.mode = mode
    try:
        with trio.fail_after(SETTLE_S):
            while world.receiver.failed < enough:  # noqa: ASYNC110 - its connections add to it
                await trio.sleep(0.1)
    finally:
        world.receiver.mode = "ok"
    await world.progress(5)


async def stall_clients(world: World) -> None:
    """Clients stop in the middle of a head or a body, and read no answer."""
    head = b"POST /v1/email/verify/stream HTTP/1.1\r\nHost: a.test\r\n"
    body = b'{"emails": ["ann@mailinator.com"'
    who = world.witness.books[1].who
    keyed = head + f"Authorization: Bearer {who.key}\r\nContent-Length: 9000\r\n\r\n".encode()
    async with _stalling(world, head), _stalling(world, keyed + body):
        await world.progress(10)


async def flood(world: World) -> None:
    """Strangers send what no key goes with, as fast as they are answered."""
    octets = (
        b"POST /v1/email/verify HTTP/1.1\r\nHost: a.test\r\nAuthorization: Bearer sk_live_x\r\n"
        b'Content-Type: application/json\r\nContent-Length: 20\r\n\r\n{"email":"a@b.test"}'
    )

    async def send() -> None:
        while True:
            with suppress(OSError, trio.BrokenResourceError):
                async with await trio.open_tcp_stream("127.0.0.1", world.port) as stream:
                    while True:
                        await stream.send_all(octets * 5 + os.urandom(3) * world.rng.randrange(2))
                        if not await stream.receive_some(65536):
                            break
            await trio.sleep(0.01)

    async with trio.open_nursery() as nursery:
        for _ in range(FLOODING):
            nursery.start_soon(send)
        await world.progress(10)
        nursery.cancel_scope.cancel()


async def stop(world: World) -> None:
    """SIGTERM under load: what is under way is answered."""
    await world.stop()


FAULTS: dict[str, Fault] = {
    "kill_all": Fault(kill_all),
    "kill_worker": Fault(kill_worker),
    "kill_parent": Fault(kill_parent),
    "kill_one_by_one": Fault(kill_one_by_one),
    "halt_worker": Fault(halt_worker),
    "halt_all": Fault(halt_all),
    "halt_long": Fault(halt_worker_beyond_its_leases, is_long=True),
    "jump_clock": Fault(jump_clock, lambda world: set_clock(world.disk, "+0s")),
    "fill_disk": Fault(fill_disk),
    "lock_database": Fault(lock_database),
    "few_descriptors": Fault(leave_few_descriptors),
    "lose_resolver": Fault(lose_resolver, lambda world: {"MAILPROBE_DOH_URLS": NOWHERE}),
    "halt_outside": Fault(halt_outside),
    "hang_receivers": Fault(hang_receivers),
    "fail_receivers": Fault(fail_receivers),
    "stall_clients": Fault(stall_clients),
    "flood": Fault(flood),
    "stop": Fault(stop),
}


@contextmanager
def _halted(pids: list[int]) -> Iterator[None]:
    for pid in pids:
        _signal(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            _signal(pid, signal.SIGCONT)


class _stalling:
    """Connections that have sent these octets, and then nothing."""

    def __init__(self, world: World, octets: bytes) -> None:
        self._world, self._octets = world, octets
        self._streams: list[trio.SocketStream] = []

    async def __aenter__(self) -> None:
        for _ in range(STALLED):
            with suppress(OSError, trio.BrokenResourceError, trio.TooSlowError), trio.fail_after(5):
                stream = await trio.open_tcp_stream("127.0.0.1", self._world.port)
                self._streams.append(stream)
                await stream.send_all(self._octets)

    async def __aexit__(self, *_: object) -> None:
        for stream in self._streams:
            await trio.aclose_forcefully(stream)


def _signal(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def _is_there(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError as error:
        return error.errno not in (errno.ENOENT, errno.ESRCH)
    return state != "Z"


def _limit(pid: int, soft: int) -> int | None:
    """Set how many files a process may open; return what it was, None if the process has ended."""
    try:
        before, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))
    except ProcessLookupError:
        return None
    return before
