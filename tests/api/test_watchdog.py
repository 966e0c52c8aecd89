"""What ends a process that hangs, on real processes. Run as a program, this file is one."""

import ctypes
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import trio

from mailprobe.api.watchdog import EXIT_CODE, Watchdog

WITHIN_S = 20.0  # far more than any step here takes
SILENCE_S = 1.0
HANGS_S = 1000.0


def hang_in_python() -> None:
    while True:
        pass


def hang_in_c() -> None:
    """Neither a signal handler nor a thread of Python runs beside this: it keeps the lock."""
    ctypes.PyDLL(None).sleep(int(HANGS_S))


def hang_in_a_wait() -> None:
    time.sleep(HANGS_S)


HANGS: dict[str, Callable[[], None]] = {
    each.__name__: each for each in (hang_in_python, hang_in_c, hang_in_a_wait)
}


async def serve(how: str, where: str) -> None:
    drain = trio.Event()
    watchdog = Watchdog(silence_s=SILENCE_S, stop_s=WITHIN_S if where == "nowhere" else 0.1)
    with trio.open_signal_receiver(signal.SIGTERM) as signals:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watchdog.limit_stop, drain)
            nursery.start_soon(watchdog.watch)
            await trio.sleep(1.5 * SILENCE_S if where == "nowhere" else 0.0)
            watchdog.beat()
            print("serves", flush=True)
            if where == "the loop":
                HANGS[how]()
            if where == "a thread":
                nursery.start_soon(trio.to_thread.run_sync, HANGS[how])
            await anext(signals)
            drain.set()
            nursery.cancel_scope.cancel()


@contextmanager
def started(where: str, *hows: str) -> Iterator[list["subprocess.Popen[str]"]]:
    """Processes that serve, and hang there in these ways."""
    with ExitStack() as stack:
        processes = []
        for how in hows:
            command = [sys.executable, "-m", __name__, how, where]
            process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
            stack.callback(process.communicate)
            stack.callback(process.kill)
            processes.append(process)
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "serves\n"
        yield processes


def test_a_process_whose_loop_hangs_writes_where_and_ends():
    with started("the loop", *HANGS) as processes:
        for how, process in zip(HANGS, processes, strict=True):
            _, said = process.communicate(timeout=WITHIN_S)
            assert process.returncode == EXIT_CODE == 70
            assert f"in {how}" in said


def test_sigterm_ends_a_process_whatever_a_thread_does():
    with started("a thread", *HANGS) as processes:
        for process in processes:
            process.send_signal(signal.SIGTERM)
        for how, process in zip(HANGS, processes, strict=True):
            _, said = process.communicate(timeout=WITHIN_S)
            assert process.returncode == 70
            assert f"in {how}" in said


def test_a_process_that_does_not_hang_lives_longer_and_ends_well():
    with started("nowhere", "") as (process,):
        process.send_signal(signal.SIGTERM)
        assert process.communicate(timeout=WITHIN_S) == ("", "")
        assert process.returncode == 0


if __name__ == "__main__":
    trio.run(serve, sys.argv[1], sys.argv[2])
