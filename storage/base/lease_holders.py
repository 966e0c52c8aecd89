"""Names of lease holders, by which a process finds out that a holder's process has ended.

A name says where the process runs (the boot of the kernel and the namespaces that count
process ids and start times), its id and start time, and a token. Only a process that runs
in the same place judges a holder, and a holder counts as gone only if that is certain: a
live process must never lose its leases. Where /proc cannot say, a name is the token alone,
and its leases end by themselves.
"""

import os
import re
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

PROC = Path("/proc")
NAME = re.compile(r"(?P<place>.+)/(?P<pid>\d+)@(?P<started>\d+)/\w+")
ENDED = ("Z", "X")  # states of a process that only waits to be reaped (proc(5))


class _ProcessStat(NamedTuple):
    pid: int
    state: str
    threads: int
    started: int  # clock ticks since the boot


def new_holder() -> str:
    """Return a new name for a holder in this process; leases are never inherited."""
    token = uuid4().hex
    place, own = place_of_process(), _stat("self")
    return f"{place}/{own.pid}@{own.started}/{token}" if place and own else token


def own_holder() -> str:
    """Return the name of this process as a holder: always the same, until it forks."""
    return _holder_of(os.getpid())


@cache
def _holder_of(_: int) -> str:
    return new_holder()


def is_gone(holder: str) -> bool:
    """Return whether the holder's process has ended for certain."""
    named = NAME.fullmatch(holder)
    if named is None or named["place"] != place_of_process():
        return False
    pid = int(named["pid"])
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        pass  # it exists, and belongs to another user
    found = _stat(str(pid))
    if found is None:
        return False  # /proc may hide the processes of other users
    # The files of a process are closed when its last thread ends, which may be later than the
    # first one.
    has_ended = found.state in ENDED and found.threads <= 1
    return has_ended or found.started != int(named["started"])


@cache
def place_of_process() -> str:
    """Return where process ids and start times mean the same; empty if /proc cannot say.

    Time namespaces shift the start times that /proc shows.
    """
    try:
        boot = (PROC / "sys/kernel/random/boot_id").read_text("ascii").strip()
        processes = os.readlink(PROC / "self/ns/pid")
    except OSError:
        return ""
    own = _stat("self")
    if own is None or own.pid != os.getpid():
        return ""  # /proc shows the processes of another namespace
    times = ""
    with suppress(OSError):  # an older kernel has no such namespaces
        times = os.readlink(PROC / "self/ns/time")
    return f"{boot}:{processes}:{times}"


def _stat(process: str) -> _ProcessStat | None:
    """Read /proc/PID/stat; None if that is not possible. The program's name may contain anything."""
    try:
        pid, _, rest = (PROC / process / "stat").read_text("utf-8", "replace").partition(" (")
        fields = rest.rpartition(") ")[2].split()
        return _ProcessStat(int(pid), fields[0], int(fields[17]), int(fields[19]))
    except (OSError, ValueError, IndexError):
        return None
