"""Limits of a reader process: it sets them itself, before it looks at any file.

The kernel enforces it, whatever the reader is doing. Only the seconds that its starter waits for it
are counted by the starter: a reader that is paused takes none.
"""

import ctypes
import math
import os
import resource
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

MEMORY_OCTETS_MAX = 512 << 20  # the largest honest workbook takes a quarter of it
NICENESS = 5  # a third of the service's share of a busy CPU: a list still ends in its time
OPEN_FILES_MAX = 64

_PR_SET_PDEATHSIG = 1  # prctl(2)
_CLONE_NEWUSER, _CLONE_NEWNET = 0x10000000, 0x40000000  # unshare(2)

# How a process ends at a limit -> in words, after the name of the list.
ENDS: Mapping[int, str] = {
    signal.SIGXCPU: "takes more computing time than a list may",
}
# Signals by which somebody else ends a process, such as an operator, or the kernel that needs
# memory: whatever the file is, it did not do that.
OTHERS_ENDS = frozenset({signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT})
TOO_LONG = "takes longer to read than a list may"
AT_WORK_SHARE = 0.1  # of its time: a reader that has computed for less stood still
UNREADABLE = "cannot be read; save it anew, or as CSV"
NO_MEMORY = f"takes more than {MEMORY_OCTETS_MAX >> 20} MiB of memory to read"


class Bounds(Struct, frozen=True):
    """The time that a reader has."""

    cpu_s: int
    wall_s: float = math.inf  # that its starter waits for it


START_CPU_S = 60
UPLOAD = Bounds(START_CPU_S, wall_s=120)
# A list of one's own may be larger than an upload: its reader gets more time by its size, ten
# times what honest lists need on a slow machine.
OCTETS_PER_CPU_S = 128 * 1024
ROWS_PER_CPU_S = 300  # written into a workbook
ROWS_PER_WALL_S = 100  # the starter pauses as long as it works


def own_file_bounds(octets: int, rows: int = 0) -> Bounds:
    """For a list on one's own machine: reading it, or writing its rows."""
    return Bounds(START_CPU_S + octets // OCTETS_PER_CPU_S + rows // ROWS_PER_CPU_S)


def workbook_bounds(rows: int) -> Bounds:
    """For the workbook of a list with so many rows."""
    return Bounds(START_CPU_S + rows // ROWS_PER_CPU_S, 2 * START_CPU_S + rows // ROWS_PER_WALL_S)


def leave_network() -> None:
    """Take the network from this process and those that it forks."""
    libc = ctypes.CDLL(None, use_errno=True)
    # With privileges at once, else where users may have namespaces.
    if sys.platform == "linux" and libc.unshare(_CLONE_NEWNET) != 0:
        libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNET)


def end_with(parent: int) -> None:
    """End this process when its parent ends, and not by a signal to both."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # it ended just before
            os._exit(0)


def lower_priority() -> None:
    """Have a lower priority: others wait for this machine."""
    with suppress(OSError):
        os.nice(NICENESS)


def limit_process() -> None:
    """Limit what this process may use, but for its time."""
    with suppress(OSError):  # where memory ends all the same, this process goes first
        Path("/proc/self/oom_score_adj").write_text("1000")
    for kind, limit in (
        (resource.RLIMIT_AS, MEMORY_OCTETS_MAX),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NOFILE, OPEN_FILES_MAX),
    ):
        with suppress(ValueError, OSError):  # the limit is lower already
            resource.setrlimit(kind, (limit, limit))


def allow_cpu(seconds: float) -> None:
    """From now on this process may compute so long."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    until = math.ceil(used.ru_utime + used.ru_stime + seconds)
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    if hard != resource.RLIM_INFINITY:
        until = min(until, hard)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_CPU, (until, hard))


def end_of(returncode: int | None, otherwise: str = UNREADABLE) -> str:
    """Why a reader ended without a report, in words that follow the name of its list."""
    return ENDS.get(-(returncode or 0), otherwise)
