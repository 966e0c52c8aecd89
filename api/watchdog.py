"""Ends a process whose event loop hangs, after writing where: its supervisor starts another.

The loop calls `beat` several times in `silence_s`. Without a beat for so long, the stack of each
thread is written to standard error, and the process ends with exit code 70. The same happens to
a stop that takes too long. Both come from outside of the interpreter (a thread of faulthandler's,
a timer of the kernel), so that C code which never gives back the interpreter's lock, such as an
XML parser's, does not prevent them. No signal handler and no Python thread would run then.

A process that was halted for so long (SIGSTOP, a frozen container) may end when it goes on.
"""

import ctypes
import faulthandler
import sys
from collections.abc import Callable

import trio

EXIT_CODE = 70  # EX_SOFTWARE of sysexits(3)
SILENCE_S = 9.0  # with the time to write the stacks, a hanging process has ended within 10 s
STOP_S = 9.0  # likewise for a stop
BEATS = 10  # in `silence_s`: so many may be late before it is
WRITE_S = 0.5  # for the stacks; the process then ends, written or not

_STANDARD_ERROR = 2
_CLOCK_MONOTONIC = 1
_SIGEV_THREAD = 2


class Watchdog:
    """The watchdog of this process, which has one at most. It waits from the first beat on."""

    def __init__(self, silence_s: float = SILENCE_S, stop_s: float = STOP_S) -> None:
        self._silence_s = silence_s
        self._stop_s = stop_s
        self._is_stopping = False
        self._exit = _ExitTimer()

    async def watch(self) -> None:
        """Beat until cancelled."""
        while True:
            self.beat()
            await trio.sleep(self._silence_s / BEATS)

    def beat(self) -> None:
        """The event loop goes on."""
        if not self._is_stopping:
            self._end_in(self._silence_s)

    async def limit_stop(self, drain: trio.Event) -> None:
        """From `drain` on, the process has `stop_s` to end."""
        await drain.wait()
        self._is_stopping = True
        self._end_in(self._stop_s)

    def _end_in(self, seconds: float) -> None:
        faulthandler.dump_traceback_later(seconds, file=_STANDARD_ERROR)
        self._exit.set(seconds + WRITE_S)


class _SignalEvent(ctypes.Structure):
    """struct sigevent of sigevent(7), for SIGEV_THREAD."""

    _fields_ = (
        ("value", ctypes.c_void_p),
        ("signo", ctypes.c_int),
        ("notify", ctypes.c_int),
        ("function", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("reserved", ctypes.c_byte * 32),
    )


class _TimerSetting(ctypes.Structure):
    """struct itimerspec of timer_settime(2); the interval stays 0."""

    _fields_ = (
        ("interval_s", ctypes.c_long),
        ("interval_ns", ctypes.c_long),
        ("value_s", ctypes.c_long),
        ("value_ns", ctypes.c_long),
    )


class _ExitTimer:
    """A timer whose thread calls `_exit(EXIT_CODE)` of the C library. Elsewhere than on Linux it does nothing."""

    def __init__(self) -> None:
        if sys.platform != "linux":
            return
        self._libc = ctypes.CDLL(None, use_errno=True)
        exit_function = ctypes.cast(self._libc._exit, ctypes.c_void_p)
        event = _SignalEvent(EXIT_CODE, 0, _SIGEV_THREAD, exit_function)
        self._timer = ctypes.c_void_p()
        self._call(
            self._libc.timer_create,
            _CLOCK_MONOTONIC,
            ctypes.byref(event),
            ctypes.byref(self._timer),
        )

    def set(self, seconds: float) -> None:
        """End the process in so many seconds, and not when it was set to before."""
        if sys.platform != "linux":
            return
        whole, part = divmod(seconds, 1)
        setting = _TimerSetting(0, 0, int(whole), int(part * 1e9))
        self._call(self._libc.timer_settime, self._timer, 0, ctypes.byref(setting), None)

    def _call(self, function: Callable[..., int], *arguments: object) -> None:
        if function(*arguments) != 0:
            raise OSError(ctypes.get_errno(), "a timer")
