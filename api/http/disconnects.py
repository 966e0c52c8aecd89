"""Detects clients that hang up, without reading from them.

Reading shows an end of file, but a connection is not read while a request is under way and
more bytes follow it. EPOLLRDHUP (epoll_ctl(2)) reports it at once and leaves those bytes in
place. One edge-triggered epoll set serves all connections: each costs one system call, and
nothing while its client stays.
"""

import select
from collections.abc import Callable

import trio

from mailprobe.engine.background import log_fault

HungUp = Callable[[bool], None]  # True: closed both ways; False: sends no more, may still read


class HangUps:
    """Notifies each watched connection when its client hangs up."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._watched: dict[int, HungUp] = {}

    def watch(self, number: int, hung_up: HungUp) -> None:
        """Call `hung_up` when the client of the socket with this number hangs up."""
        self._watched[number] = hung_up
        self._epoll.register(number, select.EPOLLRDHUP | select.EPOLLET)

    def forget(self, number: int) -> None:
        """Watch no longer. Call before closing the socket, as its number may be reused."""
        if self._watched.pop(number, None) is not None:
            self._epoll.unregister(number)

    async def run(self) -> None:
        """Notify connections until cancelled."""
        while True:
            await trio.lowlevel.wait_readable(self._epoll.fileno())
            for number, events in self._epoll.poll(0):
                hung_up = self._watched.get(number)
                if hung_up is not None:
                    _notify(hung_up, both_ways=bool(events & (select.EPOLLHUP | select.EPOLLERR)))

    def close(self) -> None:
        self._epoll.close()


def _notify(hung_up: HungUp, *, both_ways: bool) -> None:
    """Each event comes once: a bug in one connection must not lose the others' events."""
    try:
        hung_up(both_ways)
    except Exception:
        log_fault(hung_up)
