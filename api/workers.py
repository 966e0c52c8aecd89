"""`--workers N`: processes that serve on the same sockets, and the parent that watches over them.

The parent opens the sockets, forks, and then only waits: it runs no loop, no
thread and no handler, so that it can fork again at any time and that little can
go wrong in it. A worker that dies is replaced and takes nobody down. A worker
whose parent dies drains and ends (on Linux, prctl(2)).

Forked and not started afresh, because a worker so replaced runs the very code and
settings of the others, whatever has been installed meanwhile, and because the
lists that the parent has loaded are shared.
"""

import ctypes
import gc
import logging
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NoReturn

from mailprobe.api.signals import drain_signals

logger = logging.getLogger("mailprobe.workers")

Work = Callable[[Callable[[], None]], None]

DRAIN_S = 9.5  # after a worker's own drain, before an operator's patience of 10 s
BACKOFF_S = 0.1  # before a worker is replaced, doubling
BACKOFF_S_MAX = 30.0
STEADY_S = 30.0  # who served so long died of something new

_PR_SET_PDEATHSIG = 1  # prctl(2)


def supervise(
    work: Work,
    count: int,
    *,
    sockets: Sequence[socket.socket] = (),
    drain_s: float = DRAIN_S,
    ready: Callable[[], None] = lambda: None,
) -> int:
    """Run `work` in `count` processes until one of `drain_signals`; return the exit code.

    `work(ready)` serves until its process gets one of them, and calls `ready`
    once it accepts requests; when all have, `ready` is called here, once. The listening `sockets` are closed here when the drain
    begins, so that nobody is let in whom no worker will serve. Returns 0 when all have drained; 1 when one has not
    (it failed while draining, or took longer than `drain_s` and was killed), or
    when one of the first `count` ended before it was ready: the others are
    drained then.

    To be called in the main thread of a process that has no other and runs no loop.
    """
    if threading.active_count() > 1:
        raise RuntimeError("a process with threads cannot be forked safely")
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ignored, there would be nothing to wait for
    watched = {signal.SIGCHLD, *drain_signals()}
    mask: set[int] = set(signal.pthread_sigmask(signal.SIG_BLOCK, watched))
    try:
        return _Supervisor(work, count, sockets, drain_s, ready, watched, mask).run()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


@dataclass(slots=True)
class _Worker:
    pid: int
    born: float
    ready_fd: int  # the reading end of a pipe: an octet comes when the worker serves
    was_ready: bool = False  # as far as anybody has looked

    def poll(self) -> None:
        """Does it serve, or has it?"""
        with suppress(BlockingIOError):  # a process of its own may still hold the other end
            self.was_ready = self.was_ready or os.read(self.ready_fd, 1) != b""

    def bury(self) -> None:
        self.poll()
        os.close(self.ready_fd)


@dataclass(slots=True)
class _WorkerSlot:
    """One of the `count`: who works there, or when the next one will."""

    worker: _Worker | None = None
    ever_ready: bool = False
    backoff_s: float = BACKOFF_S
    due: float = 0.0


class _Supervisor:
    def __init__(
        self,
        work: Work,
        count: int,
        sockets: Sequence[socket.socket],
        drain_s: float,
        ready: Callable[[], None],
        watched: set[signal.Signals],
        mask: set[int],
    ) -> None:
        self._work = work
        self._sockets = sockets
        self._drain_s = drain_s
        self._ready: Callable[[], None] | None = ready  # until it has been called
        self._watched = watched
        self._mask = mask  # what workers unblock again
        self._slots = [_WorkerSlot() for _ in range(count)]

    def run(self) -> int:
        gc.collect()
        gc.freeze()  # so that collections in workers do not unshare the pages
        gc.enable()  # it was held back for the start
        while True:
            self._fill()
            signalled = signal.sigtimedwait(self._watched, self._until_due())
            if signalled is not None and signalled.si_signo != signal.SIGCHLD:
                return self._drain()
            for slot, worker, code in self._reap():
                if not self._succeeded(slot, worker, code):
                    self._drain()
                    return 1
            self._notify_ready()

    def _notify_ready(self) -> None:
        if self._ready is None:
            return
        for slot in self._slots:
            if slot.worker is not None:
                slot.worker.poll()
                slot.ever_ready |= slot.worker.was_ready
        if all(slot.ever_ready for slot in self._slots):
            self._ready()
            self._ready = None

    def _fill(self) -> None:
        now = time.monotonic()
        for slot in self._slots:
            if slot.worker is None and slot.due <= now:
                slot.worker = self._fork()

    def _until_due(self) -> float:
        dues = [slot.due for slot in self._slots if slot.worker is None]
        return max(0.0, min(dues) - time.monotonic()) if dues else 3600.0

    def _reap(self) -> list[tuple[_WorkerSlot, _Worker, int]]:
        """Whose process has ended, and its exit code (negative: the signal)."""
        ended = []
        for slot in self._slots:
            if slot.worker is None:
                continue
            pid, status = os.waitpid(slot.worker.pid, os.WNOHANG)
            if pid:
                slot.worker.bury()
                slot.ever_ready |= slot.worker.was_ready
                ended.append((slot, slot.worker, os.waitstatus_to_exitcode(status)))
                slot.worker = None
        return ended

    def _succeeded(self, slot: _WorkerSlot, worker: _Worker, code: int) -> bool:
        """Plan for a successor; False if nobody could ever start in this place."""
        if not slot.ever_ready:
            logger.error("worker %d could not start (%s)", worker.pid, _notified(code))
            return False
        now = time.monotonic()
        if worker.was_ready and now - worker.born > STEADY_S:
            slot.backoff_s = BACKOFF_S
        slot.due = now + slot.backoff_s
        slot.backoff_s = min(2 * slot.backoff_s, BACKOFF_S_MAX)
        logger.error(
            "worker %d ended (%s); another starts in %.1f s",
            worker.pid,
            _notified(code),
            slot.due - now,
        )
        return True

    def _drain(self) -> int:
        """Tell all to end and wait for them."""
        deadline = time.monotonic() + self._drain_s
        self._signal_all(signal.SIGTERM)
        for sock in self._sockets:
            sock.close()
        clean = True
        while any(slot.worker for slot in self._slots):
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                self._signal_all(signal.SIGKILL)
                deadline += self._drain_s  # even that takes a moment
            signal.sigtimedwait({signal.SIGCHLD}, max(0.0, left_s))
            for _, worker, code in self._reap():
                if code and worker.was_ready:  # told before that, a worker has nothing to drain
                    logger.error("worker %d did not drain (%s)", worker.pid, _notified(code))
                    clean = False
        return 0 if clean else 1

    def _signal_all(self, number: signal.Signals) -> None:
        for slot in self._slots:
            if slot.worker is not None:  # not reaped, so the pid is still its own
                os.kill(slot.worker.pid, number)

    def _fork(self) -> _Worker:
        ready_fd, reported_fd = os.pipe()
        os.set_blocking(ready_fd, False)
        sys.stdout.flush()
        sys.stderr.flush()
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._be_worker(parent, reported_fd)
        os.close(reported_fd)
        return _Worker(pid, time.monotonic(), ready_fd)

    def _be_worker(self, parent: int, reported_fd: int) -> NoReturn:
        """All that the new process does; it never returns into the parent's code."""
        code = 1
        try:
            _exit_with(parent)
            signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)

            def ready() -> None:
                os.write(reported_fd, b".")
                if os.getppid() == parent:
                    os.kill(parent, signal.SIGCHLD)  # look: it waits for nothing but signals

            self._work(ready)
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        except BaseException:
            traceback.print_exc()
        finally:
            with suppress(Exception):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)  # not the parent's atexit and finally


def _exit_with(parent: int) -> None:
    """Have this process told to drain when its parent ends, however that ends."""
    if sys.platform != "linux":
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:  # it ended just before
        os._exit(0)


def _notified(code: int) -> str:
    return f"exit code {code}" if code >= 0 else signal.Signals(-code).name
