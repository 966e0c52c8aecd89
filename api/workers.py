"""`--workers N`: worker processes on the same sockets, and the parent that supervises them.

The parent opens the sockets, forks, and then only waits. It runs no event loop, thread or
signal handler, so that it can fork again at any time and little can fail in it. A worker
that dies is replaced, and so is one without a heartbeat; the others are not affected. A worker
whose parent dies drains and ends (on Linux, prctl(2)).

Workers are forked, not started anew, so that a replacement runs the same code and settings
as the others, whatever was installed meanwhile, and shares the lists in memory.
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
from typing import NoReturn

from msgspec import Struct

from .signals import drain_signals

logger = logging.getLogger("mailprobe.workers")

Work = Callable[[Callable[[], None], Callable[[], None]], None]

DRAIN_S = 9.5  # after a worker's own drain, within the 10 s that a stop may take
SILENCE_S = 10.0  # without a heartbeat; a worker's own watchdog is quicker, unless it is halted
START_SILENCE_S = 30.0  # likewise before it accepts requests: its start computes for a while
CHECKS = 10  # of the heartbeats in that time
BEATS_OCTETS = 65_536  # a whole pipe
READY, BEAT = b"r", b"b"
BACKOFF_S = 0.1  # before a worker is replaced, doubling
BACKOFF_S_MAX = 30.0
STEADY_S = 30.0  # a worker that served so long did not die at its start: no back-off

_PR_SET_PDEATHSIG = 1  # prctl(2)


def supervise(
    work: Work,
    count: int,
    *,
    sockets: Sequence[socket.socket] = (),
    drain_s: float = DRAIN_S,
    silence_s: float = SILENCE_S,
    start_silence_s: float = START_SILENCE_S,
    ready: Callable[[], None] = lambda: None,
) -> int:
    """Run `work` in `count` processes until one of `drain_signals`; return the exit code.

    `work(ready, beat)` serves until its process gets one of them. It calls `ready` when it accepts
    requests, and `beat` again and again from its start on: without such a call for
    `start_silence_s`, and for `silence_s` once it accepts requests, it is killed and
    replaced. When all accept requests, `ready` is called here, once. The listening `sockets`
    are closed here when the drain begins, so that no client connects that no worker will
    serve.

    Returns 0 when all workers have drained. Returns 1 if one has not (it failed while
    draining, or was killed after `drain_s` seconds), or if one of the first `count` ended
    before it was ready; then the others are drained.

    Call it in the main thread of a process without other threads and without an event loop.
    Raises RuntimeError if there are other threads.
    """
    if threading.active_count() > 1:
        raise RuntimeError("a process with threads cannot be forked safely")
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # if it were ignored, waitpid would find no child
    watched = {signal.SIGCHLD, *drain_signals()}
    mask: set[int] = set(signal.pthread_sigmask(signal.SIG_BLOCK, watched))
    try:
        silences_s = start_silence_s, silence_s
        return _Supervisor(work, count, sockets, drain_s, silences_s, ready, watched, mask).run()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


class _Worker(Struct):
    pid: int
    started: float
    ready_fd: int  # the reading end of a pipe: READY comes when the worker serves, BEAT each time
    was_ready: bool = False  # as of the last poll
    silent_s: float = 0.0  # since its last beat, or its start
    is_hung: bool = False  # it was killed for that

    def poll(self) -> bool:
        """Update `was_ready`; return whether there was a beat since the last poll."""
        try:
            beats = os.read(self.ready_fd, BEATS_OCTETS)
        except BlockingIOError:  # a child of the worker may hold the other end open
            return False
        self.was_ready = self.was_ready or READY in beats
        return beats != b""

    def close(self) -> None:
        self.poll()
        os.close(self.ready_fd)


class _WorkerSlot(Struct):
    """One of the `count`: its worker, or the time when the next one starts."""

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
        silences_s: tuple[float, float],
        ready: Callable[[], None],
        watched: set[signal.Signals],
        mask: set[int],
    ) -> None:
        self._work = work
        self._sockets = sockets
        self._drain_s = drain_s
        self._start_silence_s, self._silence_s = silences_s
        self._check_s = min(silences_s) / CHECKS
        self._checked_at = time.monotonic()
        self._ready: Callable[[], None] | None = ready  # until it has been called
        self._watched = watched
        self._mask = mask  # the workers' signal mask
        self._slots = [_WorkerSlot() for _ in range(count)]

    def run(self) -> int:
        gc.collect()
        gc.freeze()  # so that collections in workers do not unshare the pages
        gc.enable()  # it was paused for the start
        while True:
            self._fill()
            signalled = signal.sigtimedwait(self._watched, self._until_due())
            if signalled is not None and signalled.si_signo != signal.SIGCHLD:
                return self._drain()
            for slot, worker, code in self._reap():
                if not self._schedule_successor(slot, worker, code):
                    self._drain()
                    return 1
            self._check_workers()
            self._notify_ready()

    def _check_workers(self) -> None:
        """Kill each worker that has been silent for too long; it is replaced when it has ended."""
        now = time.monotonic()
        # If this process was halted too, its workers had no time to be heard.
        passed_s = min(now - self._checked_at, 2 * self._check_s)
        self._checked_at = now
        for slot in self._slots:
            worker = slot.worker
            if worker is None:
                continue
            worker.silent_s = 0.0 if worker.poll() else worker.silent_s + passed_s
            slot.ever_ready |= worker.was_ready
            silence_s = self._silence_s if worker.was_ready else self._start_silence_s
            if worker.silent_s >= silence_s:
                worker.is_hung = True
                logger.error("worker hangs: pid=%d silent_s=%g", worker.pid, worker.silent_s)
                os.kill(worker.pid, signal.SIGKILL)

    def _notify_ready(self) -> None:
        if self._ready is None:
            return
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
        check_s = self._check_s
        return max(0.0, min(min(dues) - time.monotonic(), check_s)) if dues else check_s

    def _reap(self) -> list[tuple[_WorkerSlot, _Worker, int]]:
        """Return the workers that have ended, with exit codes (negative: the signal)."""
        ended = []
        for slot in self._slots:
            if slot.worker is None:
                continue
            pid, status = os.waitpid(slot.worker.pid, os.WNOHANG)
            if pid:
                slot.worker.close()
                slot.ever_ready |= slot.worker.was_ready
                ended.append((slot, slot.worker, os.waitstatus_to_exitcode(status)))
                slot.worker = None
        return ended

    def _schedule_successor(self, slot: _WorkerSlot, worker: _Worker, code: int) -> bool:
        """Schedule a replacement; False if the slot's first worker ended by itself before it was ready."""
        if not (slot.ever_ready or worker.is_hung):
            logger.error("worker did not start: pid=%d exit=%s", worker.pid, _described(code))
            return False
        now = time.monotonic()
        if worker.was_ready and now - worker.started > STEADY_S:
            slot.backoff_s = BACKOFF_S
        slot.due = now + slot.backoff_s
        slot.backoff_s = min(2 * slot.backoff_s, BACKOFF_S_MAX)
        logger.error(
            "worker ended: pid=%d exit=%s restart_in_s=%.1f",
            worker.pid,
            _described(code),
            slot.due - now,
        )
        return True

    def _drain(self) -> int:
        """Stop all workers and wait for them; return the exit code."""
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
                if code and worker.was_ready:  # else it had nothing to drain
                    logger.error(
                        "worker did not drain: pid=%d exit=%s", worker.pid, _described(code)
                    )
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
        """Run the new process; never returns into the parent's code."""
        code = 1
        try:
            _exit_with(parent)
            signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)

            os.set_blocking(reported_fd, False)  # a halted parent reads nothing

            def beat() -> None:
                with suppress(BlockingIOError):
                    os.write(reported_fd, BEAT)

            def ready() -> None:
                with suppress(BlockingIOError):
                    os.write(reported_fd, READY)
                if os.getppid() == parent:
                    os.kill(parent, signal.SIGCHLD)  # wakes it, to announce that all are ready

            self._work(ready, beat)
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        except BaseException:
            traceback.print_exc()
        finally:
            with suppress(Exception):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)  # skips the parent's atexit and finally blocks


def _exit_with(parent: int) -> None:
    """Send this process SIGTERM when its parent ends in any way."""
    if sys.platform != "linux":
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:  # it ended just before
        os._exit(0)


def _described(code: int) -> str:
    return str(code) if code >= 0 else signal.Signals(-code).name
