"""Clients that hang up, told by the kernel whether anybody reads from them or not.

An end of file is seen by reading, and a connection is not read while a request is
under way and octets follow it. EPOLLRDHUP (epoll_ctl(2)) tells of it at once, without
taking those octets. One set for all connections of a server, edge-triggered: a
connection costs one system call, and nothing while its client stays.
"""

import select
from collections.abc import Callable

import trio

from mailprobe.engine.background import log_fault

HungUp = Callable[[bool], None]  # True: both ways; False: it sends no more, and may still read


class HangUps:
    """Tells each watched connection once its client has gone."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._watched: dict[int, HungUp] = {}

    def watch(self, number: int, hung_up: HungUp) -> None:
        """Call this when the client of that socket hangs up."""
        self._watched[number] = hung_up
        self._epoll.register(number, select.EPOLLRDHUP | select.EPOLLET)

    def forget(self, number: int) -> None:
        """Before the socket is closed: its number may be another's afterwards."""
        if self._watched.pop(number, None) is not None:
            self._epoll.unregister(number)

    async def run(self) -> None:
        """Tell them, until cancelled."""
        while True:
            await trio.lowlevel.wait_readable(self._epoll.fileno())
            for number, events in self._epoll.poll(0):
                hung_up = self._watched.get(number)
                if hung_up is not None:
                    _notify(hung_up, both_ways=bool(events & (select.EPOLLHUP | select.EPOLLERR)))

    def close(self) -> None:
        self._epoll.close()


def _notify(hung_up: HungUp, *, both_ways: bool) -> None:
    """Each event comes once: a connection's fault must not lose the others theirs."""
    try:
        hung_up(both_ways)
    except Exception:
        log_fault(hung_up)
