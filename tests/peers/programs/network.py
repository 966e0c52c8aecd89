"""A network of its own for a block, with its own loopback, ports and firewall (network_namespaces(7)).

A firewall rule made in it concerns no other process, and ends with it.
"""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager

from mailprobe.bench.peers.namespace import raise_loopback

CLONE_NEWNET = 0x40000000  # sched.h
LIBC = ctypes.CDLL(None, use_errno=True)


@contextmanager
def own_network() -> Iterator[None]:
    """Move this thread into a new network; its sockets and its new processes belong to it.

    Other threads stay outside, and so do sockets that are open already.
    """
    outside = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        _call(LIBC.unshare, CLONE_NEWNET)
        try:
            raise_loopback()
            yield
        finally:
            _call(LIBC.setns, outside, CLONE_NEWNET)
    finally:
        os.close(outside)


def _call(function: "ctypes._NamedFuncPointer", *arguments: int) -> None:
    if function(*arguments):
        number = ctypes.get_errno()
        raise OSError(number, f"{function.__name__}: {os.strerror(number)}")
