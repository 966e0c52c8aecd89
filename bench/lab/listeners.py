"""The lab's mail hosts on real sockets: one address of 127.0.0.0/8 each, one port for all.

One socket is bound to each address, and none to all of them: so nothing beyond
this machine can ever reach the lab, an address without a host refuses by itself
as in the field, and the kernel tells hosts apart. 2,000 such sockets take 40 ms
and 2,000 descriptors; a single socket on 0.0.0.0 would save them, at the price
of an open port on every interface and of hosts that can't refuse.
"""

import errno
import resource
import socket
from collections.abc import Mapping
from contextlib import ExitStack
from itertools import count
from random import Random

import trio

from ..world.mail_host import HostAddress, MailHost

BACKLOG = 128
PORT_TRIES = 20
DESCRIPTORS_A_HOST = 4  # its listener, and a prober's connections to it at one time
DESCRIPTORS_OTHER = 200


class CannotListen(Exception):
    """The system does not let this process hold the sockets that the scenario needs."""


def allow_descriptors(hosts: int) -> None:
    """Raise this process's soft limit of open files as far as the scenario needs."""
    needed = hosts * DESCRIPTORS_A_HOST + DESCRIPTORS_OTHER
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft != resource.RLIM_INFINITY and soft < hosts * 2 + DESCRIPTORS_OTHER:
        raise CannotListen(
            f"the scenario has {hosts} mail hosts and needs {hosts * 2 + DESCRIPTORS_OTHER} open "
            f"files, but the limit is {soft}: raise it with `ulimit -n`, or take a smaller scenario"
        )


def check_loopback() -> None:
    """Raise OSError where loopback is down: to bind its addresses succeeds there all the same."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as unsent:
        unsent.connect(("127.0.0.1", 9))


class LabListeners:
    """All listening sockets of a scenario; `port` is the same for all.

    A free one, unless one is asked for.
    """

    def __init__(self, hosts: Mapping[str, MailHost], port: int = 0) -> None:
        self.hosts = hosts
        self.port = self._asked_port = port
        self._listening: dict[str, socket.socket] = {}
        self._open = ExitStack()

    def __enter__(self) -> "LabListeners":
        """Bind them all, on a port that is free on each address. Raises CannotListen."""
        for _ in range(PORT_TRIES):
            try:
                check_loopback()
                self._bind_all()
            except OSError as failed:
                self._open.close()
                if failed.errno != errno.EADDRINUSE:
                    raise CannotListen(
                        "the loopback addresses (127.0.0.0/8), where its mail hosts are, cannot be "
                        f"used: {failed.strerror}; see that the interface is up (ip link set lo up)"
                    ) from failed
            else:
                return self
        raise CannotListen(f"no port is free on all of {len(self.hosts)} addresses")

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def _bind_all(self) -> None:
        self.port = self._asked_port
        self._listening = {}
        for address, host in self.hosts.items():
            if host.address is HostAddress.OPEN:
                self._listening[address] = self._listen(address, BACKLOG)
            elif host.address is HostAddress.SILENT:
                self._shut(address)

    def _listen(self, address: str, backlog: int) -> socket.socket:
        listener = self._open.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address, self.port))
        self.port = listener.getsockname()[1]
        listener.listen(backlog)
        return listener

    def _shut(self, address: str) -> None:
        """Listen at an address whose connects are never answered.

        Linux drops a SYN when the queue of connections that wait to be accepted
        is full: a backlog of 0 holds one, which we make ourselves.
        """
        self._listen(address, 0)
        filler = self._open.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
        filler.connect((address, self.port))

    async def serve(self, seed: int) -> None:
        """Serve every client, until cancelled."""
        async with trio.open_nursery() as nursery:
            for address, door in self._listening.items():
                door.setblocking(False)
                listener = trio.SocketListener(trio.socket.from_stdlib_socket(door))
                nursery.start_soon(_accept, listener, self.hosts[address], f"{seed}/{address}")


async def _accept(listener: trio.SocketListener, host: MailHost, seed: str) -> None:
    """One host's sessions, each with a chance of its own from the seed."""
    async with trio.open_nursery() as nursery:
        for number in count(1):
            try:
                stream = await listener.accept()
            except OSError as full:
                if full.errno not in (errno.EMFILE, errno.ENFILE, errno.ECONNABORTED):
                    raise
                await trio.sleep(0.1)
                continue
            rng = Random(f"{seed}/{number}")
            nursery.start_soon(host.serve, stream, rng)
